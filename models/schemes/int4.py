"""int4: symmetric, blocks of 32 along the inputs; embedding and lm_head stay int8."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spec_edge.models.checkpoint import Weights
from spec_edge.models.schemes import int8
from spec_edge.models.schemes.scheme import VOCABULARY, Packed, Scheme, blocks_of, grid, planned_blocks, rounded

STEPS_AT_EXTREME = (8.0, 7.5, 7.0, 6.5)
"""Where a trial puts the block's extreme weight: at -8 it is exact, below it the other weights get a finer grid."""


def least_squares(w: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scale [n, blocks] with the least squared error among the trials.

    For given steps q the best scale is sum(w q) / sum(q q) and leaves sum(w w) - sum(w q)^2 / sum(q q), so the trial
    with the largest second term wins. The extreme weight keeps its sign: it goes to -8, the grid's longer side.
    """
    extreme = np.take_along_axis(w, np.abs(w).argmax(axis=-1)[..., None], -1)[..., 0]
    best = np.zeros_like(extreme)
    gain = np.zeros_like(extreme)
    for steps in STEPS_AT_EXTREME:
        q = grid(w, extreme / np.float32(-steps), 4)
        wq, qq = np.einsum("nbj,nbj->nb", w, q), np.einsum("nbj,nbj->nb", q, q)
        scale = np.divide(wq, qq, out=np.zeros_like(wq), where=qq > 0)
        better = scale * wq > gain
        best[better], gain[better] = scale[better], (scale * wq)[better]
    return best


def pack(weights: Weights, name: str) -> Packed:
    """4-bit blocks; 8-bit ones for the vocabulary matrices."""
    if name in VOCABULARY:
        return int8.pack(weights, name)
    return rounded(blocks_of(weights.dense(name), name), 4, least_squares)


def plan(name: str, shape: tuple[int, ...]) -> Packed:
    """The same of a shape."""
    return planned_blocks(name, shape, 8 if name in VOCABULARY else 4)


SCHEME = Scheme("int4", pack, plan=plan)
