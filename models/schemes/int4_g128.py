"""int4-g128: symmetric, one scale for 128 inputs of an output channel; embedding and lm_head stay int8 per channel.

Where 128 does not divide the inputs (SmolLM2 has 576), 64 or 32.
"""

from __future__ import annotations

from spec_edge.models.checkpoint import Weights
from spec_edge.models.schemes import int8_channel
from spec_edge.models.schemes.int4 import least_squares
from spec_edge.models.schemes.scheme import VOCABULARY, Packed, Scheme, blocks_of, channels, planned_channels

GROUPS = (128, 64, 32)


def group(inputs: int) -> int:
    """Inputs that share a scale."""
    return next((size for size in GROUPS if inputs % size == 0), GROUPS[-1])


def pack(weights: Weights, name: str) -> Packed:
    """4 bits in groups; 8 bits per channel for the vocabulary matrices."""
    if name in VOCABULARY:
        return int8_channel.pack(weights, name)
    w = weights.dense(name)
    return channels(blocks_of(w, name, group(w.shape[1])), 4, least_squares)


def plan(name: str, shape: tuple[int, ...]) -> Packed:
    """The same of a shape."""
    if name in VOCABULARY:
        return planned_channels(name, shape, 8)
    return planned_channels(name, shape, 4, group(shape[1]))


SCHEME = Scheme("int4-g128", pack, plan=plan, opset=21)
