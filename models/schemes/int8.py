"""int8: symmetric, blocks of 32 along the inputs, round to nearest. Embedding and lm_head too."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spec_edge.models.checkpoint import Weights
from spec_edge.models.schemes.scheme import Packed, Scheme, blocks_of, planned_blocks, rounded


def absmax(w: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scale [n, blocks] that puts the largest weight of a block at 127 steps."""
    scale: NDArray[np.float32] = np.abs(w).max(axis=-1) / np.float32(127)
    return scale


def pack(weights: Weights, name: str) -> Packed:
    """8-bit blocks."""
    return rounded(blocks_of(weights.dense(name), name), 8, absmax)


SCHEME = Scheme("int8", pack, plan=lambda name, shape: planned_blocks(name, shape, 8))
