"""What a request does to logits before they become a law: bias, penalties, forbidden words.

Enters: one row of logits, which is changed in place, and the tokens before it.
Repetition penalty and forbidden words are those of transformers' processors; presence and frequency penalty those of
the OpenAI API, which vLLM shares: they count generated tokens only, all others count the prompt too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spec_edge.runtime.law import Floats

Ids = NDArray[np.int64]
Words = dict[tuple[int, ...], list[int]]


@dataclass(frozen=True)
class Past:
    """Every token before a position, prompt first. ids: int64 [n]; prompt: how many of them are the prompt's."""

    ids: Ids
    prompt: int = 0

    def __add__(self, path: Sequence[int]) -> Past:
        """With the tokens of a path after it."""
        return Past(np.append(self.ids, np.asarray(path, np.int64)), self.prompt) if path else self


def bias(logits: Floats, ids: Ids, amounts: Floats) -> None:
    """`amounts[i]` is added to the logit of `ids[i]`; the ids differ."""
    logits[ids] += amounts.astype(logits.dtype)


def repetition(logits: Floats, past: Past, penalty: float) -> None:
    """Logits of tokens in the text are divided by `penalty`, negative ones multiplied; once, however often it is."""
    seen = past.ids[past.ids < logits.size]
    score = logits[seen]
    # A token that occurs twice is written twice with the same value.
    logits[seen] = np.where(score < 0, score * penalty, score / penalty)


def counted(logits: Floats, past: Past, presence: float, frequency: float) -> None:
    """Off the logit of each generated token: `presence`, and `frequency` for each time it occurs."""
    ids, times = np.unique(past.ids[past.prompt :], return_counts=True)
    logits[ids] -= (presence + frequency * times).astype(logits.dtype)


def by_prefix(words: Iterable[tuple[int, ...]]) -> Words:
    """Forbidden words as a map from all but their last token to the last ones."""
    out: Words = {}
    for word in words:
        out.setdefault(word[:-1], []).append(word[-1])
    return out


def forbid(logits: Floats, past: Past, words: Words) -> None:
    """-inf for each token that would complete a forbidden word."""
    for n in {len(prefix) for prefix in words if len(prefix) <= past.ids.size}:
        logits[words.get(tuple(past.ids[past.ids.size - n :].tolist()), [])] = -np.inf
