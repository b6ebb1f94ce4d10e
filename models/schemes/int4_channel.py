"""int4-channel: symmetric, one scale per output channel; embedding and lm_head stay int8 per channel."""

from __future__ import annotations

from spec_edge.models.checkpoint import Weights
from spec_edge.models.schemes import int8_channel
from spec_edge.models.schemes.int4 import least_squares
from spec_edge.models.schemes.scheme import VOCABULARY, Packed, Scheme, channels, planned_channels


def pack(weights: Weights, name: str) -> Packed:
    """4 bits; 8 bits for the vocabulary matrices."""
    if name in VOCABULARY:
        return int8_channel.pack(weights, name)
    return channels(weights.dense(name)[:, None], 4, least_squares)


def plan(name: str, shape: tuple[int, ...]) -> Packed:
    """The same of a shape."""
    return planned_channels(name, shape, 8 if name in VOCABULARY else 4)


SCHEME = Scheme("int4-channel", pack, plan=plan, opset=21)
