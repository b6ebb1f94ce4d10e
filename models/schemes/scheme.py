"""What a weight scheme is, and the rounding that the integer schemes share.

Enters: a checkpoint's weights and a tensor name. Leaves: the matrix as the bundle will hold it (`Packed`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from spec_edge.models.blockwise import BlockTensor, ChannelTensor
from spec_edge.models.checkpoint import Weights
from spec_edge.models.contract import SpecError
from spec_edge.models.plugins import find

Packed: TypeAlias = NDArray[np.float32] | NDArray[np.float16] | BlockTensor | ChannelTensor
"""A matrix [N, K], output by input features: dense, in blocks along K, or with scales per output."""

Plan: TypeAlias = Callable[[str, tuple[int, ...]], Packed]
"""(tensor name, [N, K]) -> what `pack` makes of such a matrix, with zeros for values."""

VOCABULARY = ("model.embed_tokens.weight", "lm_head.weight")
"""Matrices that are read row by row or carry every logit's error: 4 bits of them cost more quality than they save."""

BLOCK = 32
"""Block of the integer schemes: what GGUF uses, and the smallest whose scales cost under an eighth of int8."""

_ROWS = 4096
"""Rows rounded at a time: bounds the scratch memory of a vocabulary-sized matrix."""


def _any_checkpoint(weights: Weights) -> None:
    """Most schemes take every checkpoint."""


@dataclass(frozen=True)
class Scheme:
    """How matrices are stored. `models/schemes/<name>.py` holds one as `SCHEME`.

    pack            (weights, tensor name) -> the matrix [N, K] as stored
    check           raises SpecError where a checkpoint does not suit the scheme
    accuracy_level  of MatMulNBits: 4 rounds activations to int8 per block (fast), 0 keeps them in float
    plan            None: sizes follow from the values, so nothing is known without them
    opset           of ONNX's own domain: 21 where a type or an attribute is used that 17 does not have
    head            how lm_head is packed where it is stored apart from a tied embedding; None: as `pack` says, once
    steps           activations that layers read are rounded to that many steps each side of 0; 0: not at all
    """

    name: str
    pack: Callable[[Weights, str], Packed]
    check: Callable[[Weights], None] = _any_checkpoint
    accuracy_level: int = 4
    plan: Plan | None = None
    opset: int = 17
    steps: int = 0
    head: Callable[[Weights, str], Packed] | None = None


def scheme(name: str) -> Scheme:
    """The scheme in `models/schemes/<name>.py`; BadUsage names the known ones."""
    found: Scheme = find("spec_edge.models.schemes", "SCHEME", name, "precision").SCHEME
    return found


def zeros(shape: tuple[int, ...], dtype: Any = np.float32) -> NDArray[Any]:
    """An array of this shape that takes no memory."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def planned_blocks(name: str, shape: tuple[int, ...], bits: int) -> BlockTensor:
    """`Plan` of blocks."""
    rows, inputs = shape
    _divides(name, inputs, BLOCK)
    blocks = (rows, inputs // BLOCK)
    return BlockTensor(bits, BLOCK, zeros((*blocks, BLOCK), np.uint8), zeros(blocks))


def planned_channels(name: str, shape: tuple[int, ...], bits: int, group: int | None = None) -> ChannelTensor:
    """`Plan` of scales per channel, or per `group` of its inputs."""
    rows, inputs = shape
    _divides(name, inputs, group or inputs)
    return ChannelTensor(bits, zeros((rows, inputs), np.int8), zeros((rows, inputs // (group or inputs))))


def _divides(name: str, inputs: int, block: int) -> None:
    if inputs % block:
        raise SpecError(f"{name} has {inputs} inputs, no multiple of {block}: use --precision fp16")


def blocks_of(w: NDArray[np.float32], name: str, block: int = BLOCK) -> NDArray[np.float32]:
    """[N, K] -> [N, K / block, block]; SpecError where K is no multiple of the block."""
    _divides(name, w.shape[1], block)
    return w.reshape(w.shape[0], -1, block)


def rounded(
    w: NDArray[np.float32], bits: int, scales: Callable[[NDArray[np.float32]], NDArray[np.float32]]
) -> BlockTensor:
    """Round w [N, blocks, block] to nearest on the symmetric grid of `bits`.

    scales  float32 [n, blocks, block] -> [n, blocks]; a scale of 0, or too small to divide by, makes a block of zeros
    """
    zero = 1 << (bits - 1)
    q = np.empty(w.shape, np.uint8)
    scale = np.empty(w.shape[:2], np.float32)
    for start in range(0, len(w), _ROWS):
        part = slice(start, start + _ROWS)
        scale[part] = scales(w[part])
        q[part] = grid(w[part], scale[part], bits) + zero
    return BlockTensor(bits, w.shape[2], q, scale)


def channels(
    w: NDArray[np.float32], bits: int, scales: Callable[[NDArray[np.float32]], NDArray[np.float32]]
) -> ChannelTensor:
    """Round w [N, groups, group] to nearest on the symmetric grid of `bits`; `scales` as in `rounded`."""
    q = np.empty((w.shape[0], w.shape[1] * w.shape[2]), np.int8)
    scale = np.empty(w.shape[:2], np.float32)
    for start in range(0, len(w), _ROWS):
        part = slice(start, start + _ROWS)
        scale[part] = scales(w[part])
        q[part] = grid(w[part], scale[part], bits).reshape(-1, q.shape[1])
    return ChannelTensor(bits, q, scale)


def grid(w: NDArray[np.float32], scale: NDArray[np.float32], bits: int) -> NDArray[np.float32]:
    """w / scale rounded to nearest, ties to even, clipped to [-2^(bits-1), 2^(bits-1)); as float32."""
    zero = 1 << (bits - 1)
    inverse = np.divide(1.0, scale, out=np.zeros_like(scale), where=np.abs(scale) >= np.finfo(np.float32).tiny)
    steps = w * inverse[..., None]
    np.rint(steps, out=steps)
    clipped: NDArray[np.float32] = np.clip(steps, -zero, zero - 1, out=steps)
    return clipped
