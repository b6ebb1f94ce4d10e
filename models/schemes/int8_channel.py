"""int8-channel: symmetric, one scale per output channel. Embedding and lm_head too, one scale per row.

DequantizeLinear and MatMul: the form in which Intel's NPU compiler keeps weights in 8 bits up to the multiplier, and
estimates Meteor Lake fastest (docs/npu-estimates.md).
"""

from __future__ import annotations

from spec_edge.models.checkpoint import Weights
from spec_edge.models.schemes.int8 import absmax
from spec_edge.models.schemes.scheme import Packed, Scheme, channels, planned_channels


def pack(weights: Weights, name: str) -> Packed:
    """8 bits, the largest weight of an output at 127 steps."""
    return channels(weights.dense(name)[:, None], 8, absmax)


SCHEME = Scheme("int8-channel", pack, plan=lambda name, shape: planned_channels(name, shape, 8), opset=21)
