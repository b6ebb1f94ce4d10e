"""What the user asked of sampling, and the law it makes of one row of logits.

Enters: `Sampling` (the options), float logits [V] of one position, the tokens before it.
Leaves: the best token, or a sparse `Law` over the tokens that may follow.
The transforms and their order are those of transformers' logits processors: repetition penalty,
temperature, top-k, top-p, min-p. Ids that are only padding never reach this file: the engine
hands over the logits of real tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from spec_edge.models.contract import BadUsage

COLD = 1e-5
"""A temperature below this is greedy: dividing by it only overflows."""

BLOCK = 256
POOL = 4096
"""So many values are sorted rather than split further."""

Floats = NDArray[np.floating]


@dataclass(frozen=True)
class Sampling:
    """Options of one generation. A value that switches a transform off is its default.

    temperature         >= 0; below 1e-5 is greedy
    top_k               0, or the number of most likely tokens that stay (ties with the last one stay too)
    top_p               0..1: the fewest most likely tokens that hold this mass; 0 leaves one
    min_p               0..1: tokens at least this likely relative to the most likely one
    repetition_penalty  0.01..100: logits of tokens already in the text are divided (if negative, multiplied) by it
    seed                None for a fresh one
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        _within("temperature", self.temperature, 0.0, 1e6)
        _within("top-k", self.top_k, 0, 2**31 - 1)
        _within("top-p", self.top_p, 0.0, 1.0)
        _within("min-p", self.min_p, 0.0, 1.0)
        _within("repetition-penalty", self.repetition_penalty, 0.01, 100.0)
        if not isinstance(self.top_k, int):
            raise BadUsage(f"top-k must be a whole number, not {self.top_k}")
        if self.seed is not None:
            _within("seed", self.seed, -(2**63), 2**64 - 1)

    @property
    def greedy(self) -> bool:
        return self.temperature < COLD


def _within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise BadUsage(f"{name} must be between {low:g} and {high:g}, not {value}")


@dataclass(frozen=True)
class Law:
    """A law over tokens. ids: int64 [n], ascending; p: float [n], sums to 1; any other token has probability 0.

    float64 where a transform left a choice of tokens, the logits' own type where all of them remain.
    """

    ids: NDArray[np.int64]
    p: Floats


def generator(seed: int | None) -> np.random.Generator:
    """A generator from a 64-bit seed of either sign, or from fresh entropy."""
    return np.random.default_rng(None if seed is None else seed % 2**64)


def best(logits: Floats, history: NDArray[np.int64], sampling: Sampling) -> int:
    """The most likely token, the lowest id of a tie. FloatingPointError on NaN or infinity."""
    return _peak(_penalised(logits, history, sampling.repetition_penalty))


def law(logits: Floats, history: NDArray[np.int64], sampling: Sampling) -> Law:
    """The law of the token that follows `history` (prompt included). FloatingPointError on NaN or infinity.

    Of tokens that tie at the top-p cut, those with the lowest ids stay.
    """
    logits = _penalised(logits, history, sampling.repetition_penalty)
    top = logits[_peak(logits)]
    ids: NDArray[np.int64] | None = None
    if 0 < sampling.top_k < logits.size:
        ids = np.flatnonzero(logits >= _kth_largest(logits, sampling.top_k))
        logits = logits[ids].astype(np.float64)
    weight = _weights(logits, top, sampling.temperature)
    if sampling.top_p < 1 or sampling.min_p > 0:
        kept = _nucleus(weight, sampling.top_p)
        kept = np.compress(weight[kept] >= sampling.min_p, kept)
        ids = kept if ids is None else ids[kept]
        weight = _weights(logits[kept].astype(np.float64), top, sampling.temperature)
    # A numpy float64 here would make the division of float32 weights a slow one.
    weight /= float(weight.sum(dtype=np.float64))
    return Law(_all(weight.size) if ids is None else ids, weight)


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


def without(law: Law, token: int) -> Law:
    """The law given that it is not `token`, which must not hold all of the mass."""
    p = law.p.copy()
    p[law.ids.searchsorted(token)] = 0.0
    return Law(law.ids, p / p.sum())


def residual(law: Law, q: Floats) -> Law:
    """norm(max(0, p - q)) for a dense q [V]; p itself where rounding leaves nothing."""
    rest = np.maximum(law.p - q[law.ids], 0.0)
    total = float(rest.sum())
    return Law(law.ids, rest / total) if total > 0 else law


def _peak(logits: Floats) -> int:
    """argmax. It stops at the first NaN and finds +inf, so checking its own value checks the row."""
    at = int(logits.argmax())
    if not math.isfinite(logits[at]):
        raise FloatingPointError(f"logit of token {at} is {logits[at]}")
    return at


def _penalised(logits: Floats, history: NDArray[np.int64], penalty: float) -> Floats:
    if penalty == 1:
        return logits
    out: Floats = logits.copy()
    seen = history[history < out.size]
    score = out[seen]
    # A token that occurs twice is written twice with the same value: penalised once, as in transformers.
    out[seen] = np.where(score < 0, score * penalty, score / penalty)
    return out


def _kth_largest(values: Floats, k: int, groups: int = 1024) -> np.floating:
    """The k-th largest value, 0 < k <= V, without partitioning all of them.

    The k-th largest of the maxima of disjoint groups has at least k values at or above it.
    """
    if 4 * k <= groups <= values.size:
        maxima = values[: values.size - values.size % groups].reshape(-1, groups).max(axis=0)
        values = values[values >= np.partition(maxima, -k)[-k]]
    kth: np.floating = np.partition(values, -k)[-k]
    return kth


@lru_cache(maxsize=4)
def _all(size: int) -> NDArray[np.int64]:
    """0..size - 1, kept: a fresh 400 kB at every row costs more in page faults than the rest of the row."""
    ids = np.arange(size)
    ids.setflags(write=False)
    return ids


def _weights(logits: Floats, top: np.floating, temperature: float) -> Floats:
    """exp((logits - top) / T), a new array of the same type."""
    out: Floats = logits - top
    out /= temperature
    return np.exp(out, out=out)


def _nucleus(weight: Floats, top_p: float) -> NDArray[np.intp]:
    """Indices, ascending, of the fewest largest weights whose sum reaches `top_p` of the whole; at least one.

    Quickselect on mass: split at the mean, go on with the side the cut falls into, sort only what is left.
    """
    if top_p == 1:
        return _all(weight.size)
    total = float(weight.sum(dtype=np.float64))
    need, above = top_p * total, 0.0
    # All weights at or below this hold less than 1 - top_p together.
    rest = np.compress(weight > 0.999 * (1 - top_p) * total / weight.size, weight)
    while rest.size > POOL:
        pivot = rest.mean()
        upper = np.compress(rest > pivot, rest)
        if upper.size in (0, rest.size):
            break
        mass = above + float(upper.sum(dtype=np.float64))
        above, rest = (above, upper) if mass >= need else (mass, np.compress(rest <= pivot, rest))
    rest = np.sort(rest)[::-1]
    before = above + np.append(0.0, rest[:-1].astype(np.float64).cumsum())
    count = max(1, int(np.count_nonzero(before < need)))
    cut = rest[count - 1]
    spare = int(np.count_nonzero(rest[count:] == cut))
    kept = np.flatnonzero(weight >= cut)
    return np.delete(kept, np.flatnonzero(weight[kept] == cut)[-spare:]) if spare else kept
