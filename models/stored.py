"""A checkpoint's tensors in the weights file, and the record of where each lies.

Enters: config, rotary facts, weights and a scheme. Leaves: `Stored`, which is all that graph building reads: regions
of the file, no weights. Tensors pass through memory one at a time (q, k and v together, gate and up together).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from spec_edge.models.blockwise import BlockTensor, ChannelTensor
from spec_edge.models.checkpoint import ModelConfig, Weights
from spec_edge.models.contract import RopeFacts, SpecError
from spec_edge.models.graph import OPSET
from spec_edge.models.schemes.scheme import Packed, Scheme
from spec_edge.models.store import Region, WeightStore

SAFE_PEAK = 128.0
EMBEDDING = "model.embed_tokens"
HEAD = "lm_head"

ByDtype: TypeAlias = Mapping[str, Region]
"""A small tensor in each activation dtype of the bundle."""


@dataclass(frozen=True)
class Dense:
    """weight [K, N], the layout that MatMul reads."""

    weight: Region


@dataclass(frozen=True)
class DenseRows:
    """weight [N, K]: a vocabulary matrix, which Gather reads by rows and Gemm transposed."""

    weight: Region


@dataclass(frozen=True)
class Blocks:
    """w[n, b * block + j] = scale[n, b] * (q[n, b, j] - 2^(bits-1)) + offset[n, b].

    q             uint8 [N, K / block, block * bits / 8], low half of a byte first
    scale         [N, K / block]
    offset        [K / block, N], for the matmul; None where symmetric
    offset_rows   [N, K / block], for the embedding; None where symmetric or no embedding
    """

    bits: int
    block: int
    q: Region
    scale: ByDtype
    offset: ByDtype | None
    offset_rows: ByDtype | None

    @property
    def shape(self) -> tuple[int, int]:
        """[N, K]."""
        return self.q.shape[0], self.q.shape[1] * self.block


@dataclass(frozen=True)
class Channels:
    """w[n, k] = scale[n, k // group] * q[n, k], what DequantizeLinear reads.

    q      int8 or int4: [K, N], or [V, H] where it is a table
    scale  [N] or [V] where one group is all inputs; else [K / group, N]
    """

    group: int
    table: bool
    q: Region
    scale: ByDtype


Matrix: TypeAlias = Dense | DenseRows | Blocks | Channels
Table: TypeAlias = DenseRows | Blocks | Channels
"""A vocabulary matrix."""


@dataclass(frozen=True)
class Linear:
    """y = x W^T + bias. name: last part of the node names (`qkv_proj`). step: of int16 x; None: x is a float."""

    name: str
    matrix: Matrix
    bias: ByDtype | None
    step: float | None = None


@dataclass(frozen=True)
class Norm:
    """An RMS norm. shrink: power of two that keeps the squares of what it reads inside float16."""

    gamma: ByDtype
    shrink: float


@dataclass(frozen=True)
class Stored:
    """A model in the weights file.

    groups  by module path (`model.layers.0.self_attn.qkv`): projections of one input. One merged `Linear`, or one
            each where their packed forms differ
    norms   by tensor name
    cos, sin  float tables [rows, D / 2] of the fused lowering
    opset   of the graphs (`Scheme.opset`)
    """

    weights_file: str
    accuracy_level: int
    embedding: Table
    head: Table
    groups: Mapping[str, tuple[Linear, ...]]
    norms: Mapping[str, Norm]
    cos: ByDtype
    sin: ByDtype
    opset: int = OPSET


@dataclass(frozen=True)
class Writer:
    """Where tensors go and in which activation dtypes the small ones are needed."""

    store: WeightStore
    dtypes: tuple[str, ...]

    def small(self, key: str, array: NDArray[Any]) -> ByDtype:
        """Store `array` once in each activation dtype."""
        return {d: self.store.add(f"{key}:{d}", array.astype(d)) for d in self.dtypes}


def put_matrix(packed: Packed, out: Writer, key: str) -> Dense | Blocks | Channels:
    """Store a projection [N, K]."""
    if isinstance(packed, ChannelTensor):
        return _put_channels(packed, out, key)
    if not isinstance(packed, BlockTensor):
        return Dense(out.store.add(f"{key}:in_out", np.ascontiguousarray(packed.T)))
    return _put_blocks(packed, out, key, None)


def put_table(packed: Packed, out: Writer, key: str, gathered: bool) -> Table:
    """Store a vocabulary matrix [V, H] to multiply with and, where `gathered`, to read rows of."""
    if isinstance(packed, ChannelTensor):
        if packed.bits != 8 or packed.scale.shape[1] != 1:
            raise SpecError(f"{key}: a table has 8 bits and one scale per row; report this as a bug of spec-export")
        where = out.store.add(f"{key}:q8c", packed.q)
        return Channels(packed.group, True, where, out.small(f"{key}:scale", packed.scale[:, 0]))
    if not isinstance(packed, BlockTensor):
        return DenseRows(out.store.add(key, packed))
    rows = None if packed.offset is None or not gathered else out.small(f"{key}:offset_rows", packed.offset)
    return _put_blocks(packed, out, key, rows)


def _put_blocks(packed: BlockTensor, out: Writer, key: str, offset_rows: ByDtype | None) -> Blocks:
    offset = None if packed.offset is None else out.small(f"{key}:offset", np.ascontiguousarray(packed.offset.T))
    q = packed.q if packed.bits == 8 else packed.q[..., 0::2] | packed.q[..., 1::2] << 4
    where = out.store.add(f"{key}:q{packed.bits}", q)
    scale = out.small(f"{key}:scale", packed.scale)
    return Blocks(packed.bits, packed.block, where, scale, offset, offset_rows)


def _put_channels(packed: ChannelTensor, out: Writer, key: str) -> Channels:
    q = np.ascontiguousarray(packed.q.T)
    if packed.bits == 8:
        where = out.store.add(f"{key}:q8c", q)
    else:
        pairs = q.reshape(-1).view(np.uint8) & 15
        where = out.store.add(f"{key}:q4c", pairs[0::2] | pairs[1::2] << 4).halves(q.shape)
    scale = packed.scale[:, 0] if packed.scale.shape[1] == 1 else np.ascontiguousarray(packed.scale.T)
    return Channels(packed.group, False, where, out.small(f"{key}:scale", scale))


def merged(parts: Sequence[Packed]) -> Packed | None:
    """The matrices stacked along their outputs, or None where their packed forms differ."""
    if len({_kind(p) for p in parts}) != 1:
        return None
    scaled = [p for p in parts if isinstance(p, ChannelTensor)]
    if scaled:
        q, scale = np.concatenate([p.q for p in scaled]), np.concatenate([p.scale for p in scaled])
        return ChannelTensor(scaled[0].bits, q, scale)
    blocks = [p for p in parts if isinstance(p, BlockTensor)]
    if not blocks:
        return np.concatenate([p for p in parts if isinstance(p, np.ndarray)])
    offsets = [b.offset for b in blocks if b.offset is not None]
    return BlockTensor(
        blocks[0].bits,
        blocks[0].block,
        np.concatenate([b.q for b in blocks]),
        np.concatenate([b.scale for b in blocks]),
        np.concatenate(offsets) if offsets else None,
    )


def _kind(packed: Packed) -> tuple[object, ...]:
    if isinstance(packed, BlockTensor):
        return packed.bits, packed.block, packed.offset is None
    if isinstance(packed, ChannelTensor):
        return "channels", packed.bits, packed.scale.shape[1]
    return (packed.dtype.name,)


def store_model(
    config: ModelConfig,
    rope: RopeFacts,
    weights: Weights,
    scheme: Scheme,
    store: WeightStore,
    table_rows: int,
    dtypes: tuple[str, ...] = ("float32",),
    peaks: Mapping[str, float] | None = None,
) -> Stored:
    """Write every tensor of the model, packed by `scheme`.

    table_rows  rows of the cos and sin tables (`Form.context`)
    dtypes      activation dtypes of the graphs to come
    peaks       largest magnitude that each norm and each group read, by name; an unknown norm's counts as small
    Errors: what `scheme` refuses, a peak that it needs, and a file that cannot be written, as SpecError.
    """
    scheme.check(weights)
    out = Writer(store, dtypes)
    embedding = put_table(scheme.pack(weights, f"{EMBEDDING}.weight"), out, EMBEDDING, True)
    head = _head(config, weights, scheme, out) or embedding
    groups = {
        path: put_group(weights, scheme, out, path, names, _step(scheme, peaks or {}, path))
        for path, names in modules(config).items()
    }
    norms = {
        name: Norm(out.small(name, weights.dense(f"{name}.weight")), shrink((peaks or {}).get(name, 0.0)))
        for name in _norms(config)
    }
    cos, sin = rotary_tables(rope, table_rows, out)
    return Stored(store.path.name, scheme.accuracy_level, embedding, head, groups, norms, cos, sin, scheme.opset)


def _head(config: ModelConfig, weights: Weights, scheme: Scheme, out: Writer) -> Table | None:
    """None: the embedding is read for it too."""
    if config.tied and scheme.head is None:
        return None
    name = EMBEDDING if config.tied else HEAD
    return put_table((scheme.head or scheme.pack)(weights, f"{name}.weight"), out, HEAD, False)


def rotary_tables(rope: RopeFacts, rows: int, out: Writer, prefix: str = "") -> tuple[ByDtype, ByDtype]:
    """cos and sin [rows, D / 2] of positions 0 to rows - 1, under the keys `cos` and `sin` behind `prefix`."""
    angle = np.arange(rows)[:, None] * np.asarray(rope.inv_freq)[None]
    tables = {"cos": np.cos(angle) * rope.scale, "sin": np.sin(angle) * rope.scale}
    cos, sin = (out.small(f"{prefix}{name}", table) for name, table in tables.items())
    return cos, sin


def _step(scheme: Scheme, peaks: Mapping[str, float], path: str) -> float | None:
    if not scheme.steps:
        return None
    if not peaks.get(path):
        raise SpecError(f"{scheme.name} needs the largest input of {path}; report this as a bug of spec-export")
    return peaks[path] / scheme.steps


def put_group(
    weights: Weights, scheme: Scheme, out: Writer, path: str, names: tuple[str, ...], step: float | None = None
) -> tuple[Linear, ...]:
    """Store projections of one input, merged where their packed forms allow. `path`: the module's and a group name."""
    module = path.rpartition(".")[0]
    paths = [f"{module}.{name}" for name in names]
    parts = [scheme.pack(weights, f"{p}.weight") for p in paths]
    biases = [weights.dense(f"{p}.bias") if f"{p}.bias" in weights.names() else None for p in paths]
    whole = merged(parts) if len(parts) > 1 else None
    if whole is None or len({b is None for b in biases}) > 1:
        return tuple(
            Linear(name, put_matrix(part, out, p), None if bias is None else out.small(f"{p}.bias", bias), step)
            for name, p, part, bias in zip(names, paths, parts, biases, strict=True)
        )
    present = [b for b in biases if b is not None]
    bias = out.small(f"{path}.bias", np.concatenate(present)) if present else None
    return (Linear(f"{path.rpartition('.')[2]}_proj", put_matrix(whole, out, path), bias, step),)


def modules(config: ModelConfig) -> dict[str, tuple[str, ...]]:
    """Projections that read the same input, by the path of their group."""
    groups: dict[str, tuple[str, ...]] = {}
    for i in range(config.layers):
        layer = f"model.layers.{i}"
        groups[f"{layer}.self_attn.qkv"] = ("q_proj", "k_proj", "v_proj")
        groups[f"{layer}.self_attn.o"] = ("o_proj",)
        groups[f"{layer}.mlp.gate_up"] = ("gate_proj", "up_proj")
        groups[f"{layer}.mlp.down"] = ("down_proj",)
    return groups


def shrink(peak: float) -> float:
    """Power of two that brings `peak` down to 128 or less, so that a peak almost twice the measured one still fits.

    255 is the largest number whose square float16 holds, and SmolLM2's residual reaches 24,245 on a text's first token.
    The other rows must not be lost below: theirs have a root mean square of 4 there, 0.016 after the division.
    """
    return 1.0 if peak <= SAFE_PEAK else 2.0 ** math.ceil(math.log2(peak / SAFE_PEAK))


def _norms(config: ModelConfig) -> list[str]:
    per_layer = ("input_layernorm", "post_attention_layernorm")
    return [*(f"model.layers.{i}.{n}" for i in range(config.layers) for n in per_layer), "model.norm"]
