"""A law over tokens, and what is done with one: draw, condition, subtract.

Enters: ids with their probabilities, a generator. Leaves: tokens, or other laws. Nothing here knows of logits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BLOCK = 256

Floats = NDArray[np.floating]


@dataclass(frozen=True)
class Law:
    """A law over tokens. ids: int64 [n], ascending; p: float [n], sums to 1; any other token has probability 0.

    float64 where a transform left a choice of tokens, the logits' own type where all of them remain.
    """

    ids: NDArray[np.int64]
    p: Floats


def draw(law: Law, rng: np.random.Generator) -> int:
    """One token from the law; of a long one first a block of 256, so that no long running sum is built."""
    if law.p.size <= BLOCK:
        ends = law.p.cumsum(dtype=np.float64)
        return int(law.ids[_first_past(ends, rng.random() * ends[-1])])
    starts = np.arange(0, law.p.size, BLOCK)
    ends = np.add.reduceat(law.p, starts, dtype=np.float64).cumsum()
    goal = rng.random() * ends[-1]
    block = _first_past(ends, goal)
    inside = law.p[starts[block] : starts[block] + BLOCK].cumsum(dtype=np.float64)
    at = _first_past(inside, goal - (ends[block - 1] if block else 0.0))
    return int(law.ids[starts[block] + at])


def _first_past(ends: NDArray[np.float64], goal: float) -> int:
    """First place whose running sum exceeds `goal`; where rounding put `goal` at the end, the last that adds to it."""
    return min(int(ends.searchsorted(goal, side="right")), int(ends.searchsorted(ends[-1])))


def probability(law: Law, token: int) -> float:
    """Of one token."""
    at = int(law.ids.searchsorted(token))
    return float(law.p[at]) if at < law.ids.size and law.ids[at] == token else 0.0


def likeliest(law: Law, count: int) -> list[tuple[int, float]]:
    """At most `count` tokens with their probabilities, best first, the lowest id of a tie; none that is impossible."""
    count = min(count, law.p.size)
    top = np.argpartition(law.p, -count)[-count:]
    best = top[np.lexsort((top, -law.p[top]))]
    return [(int(law.ids[i]), float(law.p[i])) for i in best if law.p[i] > 0]


def without(law: Law, token: int) -> Law:
    """The law given that it is not `token`, which must be possible and must not hold all of the mass."""
    p = law.p.copy()
    p[law.ids.searchsorted(token)] = 0.0
    return Law(law.ids, p / p.sum())


def residual(law: Law, q: Floats) -> Law:
    """norm(max(0, p - q)) for a dense q [V]; p itself where rounding leaves nothing."""
    rest = np.maximum(law.p - q[law.ids], 0.0)
    total = float(rest.sum())
    return Law(law.ids, rest / total) if total > 0 else law


def dense(law: Law, size: int) -> NDArray[np.float64]:
    """float64 [size]: the form in which a draft states the law that a token was drawn from."""
    out = np.zeros(size)
    out[law.ids] = law.p
    return out


def siblings(law: Law, count: int, rng: np.random.Generator) -> list[tuple[int, Law]]:
    """At most `count` different tokens, drawn one after the other without replacement, each with the law that it was
    drawn from: `law` given that it is none of those before. This is what a draft with `q` wants of siblings.
    """
    drawn: list[tuple[int, Law]] = []
    for left in range(min(count, int(np.count_nonzero(law.p))), 0, -1):
        token = draw(law, rng)
        drawn.append((token, law))
        if left > 1:
            law = without(law, token)
    return drawn
