"""Prompt lookup: the text often repeats itself, so draft what followed the last time.

Enters: every token so far. Leaves: a chain that continues the latest earlier occurrence of the text's
longest known suffix. Source: Saxena 2023, prompt lookup decoding.
"""

from __future__ import annotations

from collections.abc import Sequence

from spec_edge.runtime.draft import EMPTY, UNREAD, Context, Draft, Output, Verdict
from spec_edge.runtime.drafters.options import DrafterOptions

READS = ("draft_tokens", "max_ngram", "min_ngram")
"""What this method reads that not every one does: see `drafters/options.py`."""

DRAFT_TOKENS = 7
"""By replay on training prompts (.ci/slow/replay_policy.py): under the adaptive policy 5 to 15 cost within 1 % of each
other; at a fixed length 3 to 5 would be best on average, 0.81 of plain decoding's cost against 0.82."""
MIN_NGRAM = 1
"""Most tokens accepted. Same replay: on a CPU matches of two or more cost 2 % less on average and 0.96 of plain
decoding at worst against 1.07; `auto`, the default method, weighs that at each step with the machine's own costs."""


class NgramIndex:
    """For n = min..max, where each n-gram last occurred before the end of the text; O(max) work per token."""

    def __init__(self, shortest: int, longest: int) -> None:
        self._after: dict[tuple[int, ...], int] = {}
        self._lengths = range(longest, shortest - 1, -1)
        self._known = 1

    def update(self, ids: Sequence[int]) -> None:
        """Take in the tokens that are new since the last call; `ids` only ever grows."""
        for end in range(self._known, len(ids)):
            # An n-gram enters when its next token is there: the suffix never finds itself.
            for n in self._lengths:
                if n <= end:
                    self._after[tuple(ids[end - n : end])] = end
        self._known = max(self._known, len(ids))

    def find(self, ids: Sequence[int]) -> tuple[int, int]:
        """(n, index of the token that followed) of the longest suffix that occurred before, or (0, 0)."""
        for n in self._lengths:
            if n <= len(ids) and (after := self._after.get(tuple(ids[len(ids) - n :]))):
                return n, after
        return 0, 0


def continuation(ids: Sequence[int], start: int, count: int) -> list[int]:
    """`count` tokens from `start` on; past the end of the text it reads its own output, so a period goes on."""
    out = list(ids[start : start + count])
    period = len(ids) - start
    while len(out) < count:
        out.append(out[len(out) - period])
    return out


class PromptLookup:
    """A chain of at most `draft_tokens`."""

    name = "prompt-lookup"
    wants: frozenset[str] = frozenset()

    def __init__(self, options: DrafterOptions) -> None:
        self._options = options
        self._index = self._empty()

    def _empty(self) -> NgramIndex:
        longest = self._options.max_ngram
        return NgramIndex(self._options.min_ngram or MIN_NGRAM, longest)

    def start(self, prompt: Sequence[int], read: Output = UNREAD) -> None:  # noqa: ARG002
        """Index the prompt; what follows is indexed as it comes."""
        self._index = self._empty()
        self._index.update(prompt)

    def propose(self, context: Context, width: int) -> Draft:
        self._index.update(context.ids)
        matched, start = self._index.find(context.ids)
        count = min(self._options.draft_tokens or DRAFT_TOKENS, width - 1)
        if not matched or count < 1:
            return EMPTY
        return Draft.chain(continuation(context.ids, start, count), grade=matched)

    def observe(self, verdict: Verdict, draft: Draft, output: Output) -> None:
        """Nothing to learn: the text itself is the memory."""


def create(options: DrafterOptions) -> PromptLookup:
    """The drafter of this file."""
    return PromptLookup(options)
