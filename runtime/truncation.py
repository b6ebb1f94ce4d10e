"""The numerics of top-k, top-p and min-p.

Enters: one row of logits or of weights. Leaves: a threshold, or the indices that stay.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from spec_edge.runtime.law import Floats

POOL = 4096
"""So many values are sorted rather than split further."""

LEVELS = (1e-3, 2e-5)
"""Shares of the whole. At most 1,000 weights exceed the first: most nuclei end among them."""


@lru_cache(maxsize=4)
def every(size: int) -> NDArray[np.int64]:
    """0..size - 1, kept: a fresh 400 kB at every row costs more in page faults than the rest of the row."""
    ids = np.arange(size)
    ids.setflags(write=False)
    return ids


def weights(logits: Floats, top: np.floating, temperature: float, out: Floats | None = None) -> Floats:
    """exp((logits - top) / T) of the same type, in `out` or a new array."""
    out = np.subtract(logits, top, out=out)
    if temperature != 1:
        out /= temperature
    return np.exp(out, out=out)


def kth_largest(values: Floats, k: int, groups: int = 1024) -> np.floating:
    """The k-th largest value, 0 < k <= V, without partitioning all of them.

    The k-th largest of the maxima of disjoint groups has at least k values at or above it.
    """
    if 4 * k <= groups <= values.size:
        maxima = values[: values.size - values.size % groups].reshape(-1, groups).max(axis=0)
        values = values[values >= np.partition(maxima, -k)[-k]]
    kth: np.floating = np.partition(values, -k)[-k]
    return kth


def nucleus(weight: Floats, top_p: float) -> NDArray[np.int64]:
    """Indices, ascending, of the fewest largest weights whose sum reaches `top_p` of the whole; at least one.

    Of weights that tie at the cut, those with the lowest indices stay.
    """
    total = float(weight.sum())
    at = _above(weight, total, top_p * total)
    inside = weight[at]
    cut, spare = _cut(inside, top_p * total)
    kept = at[inside >= cut]
    return np.delete(kept, np.flatnonzero(weight[kept] == cut)[-spare:]) if spare else kept


def _above(weight: Floats, total: float, need: float) -> NDArray[np.int64]:
    """Indices, ascending, of all weights above some level that hold `need` together; at worst all of them."""
    for level in LEVELS:
        at = (weight > level * total).nonzero()[0]
        if float(weight[at].sum(dtype=np.float64)) >= need:
            return at
    return every(weight.size)


def _cut(weight: Floats, need: float) -> tuple[np.floating, int]:
    """(the smallest weight of the nucleus, how many weights equal to it are not in it).

    Quickselect on mass: split at the mean, go on with the side the cut falls into, sort only what is left.
    """
    rest, above = weight, 0.0
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
    return rest[count - 1], int(np.count_nonzero(rest[count:] == rest[count - 1]))
