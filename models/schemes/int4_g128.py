"""int4-g128: symmetric, one scale for 128 inputs of an output channel; embedding and lm_head stay int8 per channel."""

from __future__ import annotations

from spec_edge.models.checkpoint import Weights
from spec_edge.models.schemes import int8_channel
from spec_edge.models.schemes.int4 import least_squares
from spec_edge.models.schemes.scheme import VOCABULARY, Packed, Scheme, blocks_of, channels, planned_channels

GROUP = 128


def pack(weights: Weights, name: str) -> Packed:
    """4 bits in groups; 8 bits per channel for the vocabulary matrices."""
    if name in VOCABULARY:
        return int8_channel.pack(weights, name)
    return channels(blocks_of(weights.dense(name), name, GROUP), 4, least_squares)


def plan(name: str, shape: tuple[int, ...]) -> Packed:
    """The same of a shape."""
    return planned_channels(name, shape, 8) if name in VOCABULARY else planned_channels(name, shape, 4, GROUP)


SCHEME = Scheme("int4-g128", pack, plan=plan, opset=21)
