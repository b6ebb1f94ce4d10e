"""fp32: every matrix dense in float32, the scheme that parity is measured in."""

from __future__ import annotations

from spec_edge.models.checkpoint import Weights
from spec_edge.models.schemes.scheme import Packed, Scheme


def pack(weights: Weights, name: str) -> Packed:
    """float32 [N, K]."""
    return weights.dense(name)


SCHEME = Scheme("fp32", pack)
