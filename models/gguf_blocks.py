"""GGUF tensor types: raw rows enter; float32 values, or the file's own quantised values as a BlockTensor, leave.

`dense` is ggml's own arithmetic (the gguf package). `blocks` is the same values in the form that the exporter
writes: 4-bit types stay 4-bit, 5-, 6- and 8-bit types go into an 8-bit container. Types with a minimum are
centred (offset = minimum + half range * scale), which keeps rounding errors of quantised activations small.
`BlockTensor.dense` then equals `dense` bit for bit for Q4_0, Q5_0, Q8_0 and Q6_K; for Q4_1, Q5_1, Q4_K and Q5_K
the offset is one more rounded sum, so they agree to one unit in the last place of the block's largest term.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from spec_edge.models.blockwise import BlockTensor
from spec_edge.models.contract import SpecError

U8 = NDArray[np.uint8]
F32 = NDArray[np.float32]
Parts = tuple[U8, F32, F32 | None]
"""q uint8 [n, w], scale [n, w / block], minimum [n, w / block] or None: n file blocks of w weights."""


@dataclass(frozen=True)
class BlockType:
    """A quantised type. `levels`: number of values a weight takes; `block`: weights that share a scale."""

    levels: int
    block: int
    unpack: Callable[[U8], Parts]


def _half(raw: U8, at: int) -> F32:
    """The float16 at byte `at` of every block, as float32 [n, 1]."""
    half: F32 = raw[:, at : at + 2].copy().view("<f2").astype(np.float32)
    return half


def _nibbles(raw: U8, run: int) -> U8:
    """[n, b] bytes to [n, 2 b] values: of each run of bytes first the low halves, then the high halves."""
    grouped = raw.reshape(len(raw), -1, 1, run)
    return np.concatenate([grouped & np.uint8(15), grouped >> np.uint8(4)], axis=2).reshape(len(raw), -1)


def _bits(raw: U8) -> U8:
    """[n, b] bytes to [n, 8 b] bits, lowest first."""
    return np.unpackbits(raw, axis=1, bitorder="little")


def _q4_0(raw: U8) -> Parts:
    return _nibbles(raw[:, 2:], 16), _half(raw, 0), None


def _q4_1(raw: U8) -> Parts:
    return _nibbles(raw[:, 4:], 16), _half(raw, 0), _half(raw, 2)


def _q5_0(raw: U8) -> Parts:
    return _nibbles(raw[:, 6:], 16) | (_bits(raw[:, 2:6]) << np.uint8(4)), _half(raw, 0), None


def _q5_1(raw: U8) -> Parts:
    return _nibbles(raw[:, 8:], 16) | (_bits(raw[:, 4:8]) << np.uint8(4)), _half(raw, 0), _half(raw, 2)


def _q8_0(raw: U8) -> Parts:
    return raw[:, 2:] ^ np.uint8(128), _half(raw, 0), None


def _k_scales(raw: U8) -> tuple[F32, F32]:
    """Scales and minimums of the 8 sub-blocks of Q4_K and Q5_K: float32 [n, 8] each, exact products."""
    low, mid, high = raw[:, 4:8], raw[:, 8:12], raw[:, 12:16]
    scale = np.concatenate([low & 63, (high & 15) | ((low >> 2) & 48)], axis=1)
    minimum = np.concatenate([mid & 63, (high >> 4) | ((mid >> 2) & 48)], axis=1)
    return _half(raw, 0) * scale.astype(np.float32), -(_half(raw, 2) * minimum.astype(np.float32))


def _q4_k(raw: U8) -> Parts:
    return _nibbles(raw[:, 16:], 32), *_k_scales(raw)


def _q5_k(raw: U8) -> Parts:
    # bit g of high byte j belongs to weight 32 g + j
    high = _bits(raw[:, 16:48]).reshape(len(raw), 32, 8).transpose(0, 2, 1).reshape(len(raw), 256)
    return _nibbles(raw[:, 48:], 32) | (high << np.uint8(4)), *_k_scales(raw)


def _q6_k(raw: U8) -> Parts:
    low = _nibbles(raw[:, :128], 64)
    high = raw[:, 128:192].reshape(len(raw), 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)
    q = low | ((high.reshape(len(raw), 256) & np.uint8(3)) << np.uint8(4))
    scale = raw[:, 192:208].copy().view(np.int8).astype(np.float32) * _half(raw, 208)
    return q, scale, None


QUANTISED: Mapping[str, BlockType] = {
    "Q4_0": BlockType(16, 32, _q4_0),
    "Q4_1": BlockType(16, 32, _q4_1),
    "Q5_0": BlockType(32, 32, _q5_0),
    "Q5_1": BlockType(32, 32, _q5_1),
    "Q8_0": BlockType(256, 32, _q8_0),
    "Q4_K": BlockType(16, 32, _q4_k),
    "Q5_K": BlockType(32, 32, _q5_k),
    "Q6_K": BlockType(64, 16, _q6_k),
}
PLAIN = ("F32", "F16", "BF16")
SUPPORTED = (*PLAIN, *QUANTISED)


def check_kind(kind: str, tensor: str) -> None:
    """SpecError naming the type if it is not one of `SUPPORTED`."""
    if kind not in SUPPORTED:
        raise SpecError(
            f"tensor '{tensor}' is of type {kind}, which is not supported. Supported: {', '.join(SUPPORTED)}"
        )


def _finite(values: F32) -> F32:
    if not np.isfinite(values).all():
        raise SpecError("a weight of the file is not a finite number: the file is damaged, download it again")
    return values


def dense(raw: U8, kind: str) -> F32:
    """Rows uint8 [N, bytes per row] to float32 [N, K]; SpecError if a value is infinite or not a number."""
    with np.errstate(all="ignore"):
        return _finite(np.asarray(dequantize(raw, GGMLQuantizationType[kind]), np.float32))


def blocks(raw: U8, kind: str) -> BlockTensor | None:
    """Rows uint8 [N, bytes per row] as their quantised values, or None for F32, F16 and BF16. Errors as `dense`."""
    spec = QUANTISED.get(kind)
    if spec is None:
        return None
    rows = len(raw)
    bits, half = (4, 8) if spec.levels == 16 else (8, spec.levels // 2)
    with np.errstate(all="ignore"):
        q, scale, minimum = spec.unpack(raw.reshape(-1, GGML_QUANT_SIZES[GGMLQuantizationType[kind]][1]))
        offset = None if minimum is None else _finite(minimum + np.float32(half) * scale).reshape(rows, -1)
    q = (q + np.uint8((1 << (bits - 1)) - half)).reshape(rows, -1, spec.block)
    return BlockTensor(bits, spec.block, q, _finite(scale).reshape(rows, -1), offset)
