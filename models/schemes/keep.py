"""keep: the file's own quantised values, exactly. What the file does not quantise stays as precise as it is."""

from __future__ import annotations

import numpy as np

from spec_edge.models.checkpoint import Weights
from spec_edge.models.contract import SpecError
from spec_edge.models.schemes.scheme import Packed, Scheme


def pack(weights: Weights, name: str) -> Packed:
    """The file's blocks; else float16 where that holds every value exactly, else float32."""
    blocks = weights.blocks(name)
    if blocks is not None:
        return blocks
    w = weights.dense(name)
    with np.errstate(over="ignore"):
        half = w.astype(np.float16)
    return half if np.array_equal(half.astype(np.float32), w) else w


def check(weights: Weights) -> None:
    """SpecError where the file has nothing quantised to keep."""
    if not any(weights.blocks(name) is not None for name in sorted(weights.names())):
        raise SpecError("the weights are not quantised, so there is nothing to keep: use --precision int8 or fp16")


SCHEME = Scheme("keep", pack, check)
