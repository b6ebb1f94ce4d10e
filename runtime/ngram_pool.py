"""Lookahead's memory of n-grams, by their first token.

Enters: n-grams that the window found, and text. Leaves: what may follow a token, the latest first.
Source: Fu et al. 2024, lookahead decoding (arXiv 2402.02057).
"""

from __future__ import annotations

from collections.abc import Sequence

Guess = tuple[int, ...]
"""The n - 1 tokens after the first one."""


class NgramPool:
    """For each first token the `guesses` continuations that were seen last (n >= 2, guesses >= 1)."""

    def __init__(self, n: int, guesses: int) -> None:
        self.n = n
        self._guesses = guesses
        self._after: dict[int, dict[Guess, None]] = {}

    def add(self, ngram: Sequence[int]) -> None:
        """Take in one n-gram; O(n)."""
        seen = self._after.setdefault(ngram[0], {})
        guess = tuple(ngram[1:])
        # A dict keeps its order of insertion: taking the guess out first makes it the latest.
        seen.pop(guess, None)
        seen[guess] = None
        if len(seen) > self._guesses:
            del seen[next(iter(seen))]

    def add_text(self, ids: Sequence[int], start: int = 0) -> None:
        """Take in every n-gram that begins at `start` or later."""
        for i in range(start, len(ids) - self.n + 1):
            self.add(ids[i : i + self.n])

    def find(self, token: int) -> list[Guess]:
        """The guesses after `token`, latest first."""
        return list(reversed(self._after.get(token, {})))

    def __len__(self) -> int:
        return sum(map(len, self._after.values()))
