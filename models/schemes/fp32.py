"""fp32: every matrix dense in float32, the scheme that parity is measured in."""

from __future__ import annotations

import numpy as np

from spec_edge.models.checkpoint import Weights
from spec_edge.models.schemes.scheme import Packed, Scheme, zeros


def pack(weights: Weights, name: str) -> Packed:
    """float32 [N, K]."""
    return weights.dense(name)


def plan(name: str, shape: tuple[int, ...]) -> Packed:
    """The same of a shape."""
    del name
    return zeros(shape, np.float32)


SCHEME = Scheme("fp32", pack, plan=plan)
