"""Medusa heads in the bundle: their matrices in the weights file, and the graph.

Enters: the layout of a checkpoint that fits its target (`Heads`). Leaves: `StoredHeads`, and one graph, role "heads":

    hidden [1, 1, H] -> first layers of all heads as one matmul -> N rows -> lm_head -> top k
      -> top_ids int32 [1, N, k] (the target's ids, best first), top_logprobs float32 [1, N, k]

Top k and log-probabilities are computed inside, so that nothing of the vocabulary's size leaves the graph. Heads that
share an lm_head, the target's or one of their own, go through it as one matmul of N rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
import onnx
from numpy.typing import NDArray

from spec_edge.models.blocks import Site, matmul
from spec_edge.models.checkpoint import ModelConfig, Weights
from spec_edge.models.contract import TensorSpec
from spec_edge.models.drafter import DrafterFiles, DrafterGraph, FileWeights, Room, Shapes, borrowed_head, pack_own
from spec_edge.models.graph import Graph
from spec_edge.models.medusa_heads import Layout
from spec_edge.models.store import Region
from spec_edge.models.stored import (
    ByDtype,
    Matrix,
    Stored,
    Table,
    Writer,
    merged,
    put_matrix,
    put_table,
)

F32 = NDArray[np.float32]
NAME = "medusa"
ROLE = "heads"
TOP = 10
"""Candidates that each head gives: what every published tree needs."""


@dataclass(frozen=True)
class Heads:
    """Heads that fit their target. vocab: ids that they tell apart."""

    files: DrafterFiles
    shapes: Shapes
    layout: Layout
    target: ModelConfig
    vocab: int

    @property
    def count(self) -> int:
        return len(self.layout.heads)

    @property
    def top(self) -> int:
        """Candidates of each head."""
        return min(TOP, self.vocab)

    def reduced_ids(self) -> NDArray[np.int64] | None:
        """The target's id of each id of a reduced vocabulary."""
        name = self.layout.token_map
        return None if name is None else self.files.tensors[name].integers().ravel()


@dataclass(frozen=True)
class Layer:
    """One hidden layer of all heads: the first is merged, [N * M, H]; later ones are one matrix [M, M] a head."""

    matrices: tuple[Matrix, ...]
    biases: tuple[ByDtype | None, ...]


@dataclass(frozen=True)
class StoredHeads:
    """The heads in the weights file. outputs: one shared matrix, one a head, or () for the target's."""

    layers: tuple[Layer, ...]
    outputs: tuple[Table, ...]
    output_biases: tuple[ByDtype | None, ...]
    token_map: Region | None


# Storing


def store_heads(drafter: Heads, out: Writer, precision: str) -> StoredHeads:
    weights, heads = FileWeights(drafter.files.tensors), drafter.layout.heads
    layers = tuple(_put_layer(drafter, weights, out, precision, at) for at in range(len(heads[0].blocks)))
    names = {head.output: head.output_bias for head in heads if head.output is not None}
    outputs, biases = [], []
    for name, bias in names.items():
        table = reduced(drafter, weights, name)
        outputs.append(put_table(pack_own(table, name, precision), out, f"{NAME}.{name}", False))
        biases.append(None if bias is None else out.small(f"{NAME}.{bias}", table.dense(bias)))
    ids = drafter.reduced_ids()
    token_map = None if ids is None else out.store.add(f"{NAME}.token_map", ids.astype(np.int32))
    return StoredHeads(layers, tuple(outputs), tuple(biases), token_map)


def _put_layer(drafter: Heads, weights: Weights, out: Writer, precision: str, at: int) -> Layer:
    blocks = [head.blocks[at] for head in drafter.layout.heads]
    parts = [pack_own(weights, block.weight, precision) for block in blocks]
    biases = [None if block.bias is None else weights.dense(block.bias) for block in blocks]
    whole = merged(parts) if at == 0 else None
    if whole is None:
        keys = [f"{NAME}.layers.{at}.{i}" for i in range(len(parts))]
        matrices = tuple(put_matrix(part, out, key) for part, key in zip(parts, keys, strict=True))
        put = [None if b is None else out.small(f"{k}.bias", b) for k, b in zip(keys, biases, strict=True)]
        return Layer(matrices, tuple(put))
    rows = whole.shape[0] // len(parts)
    bias = None
    if any(b is not None for b in biases):
        bias = np.concatenate([np.zeros(rows, np.float32) if b is None else b for b in biases])
    key = f"{NAME}.layers.{at}"
    return Layer((put_matrix(whole, out, key),), (None if bias is None else out.small(f"{key}.bias", bias),))


@dataclass(frozen=True)
class _Rows:
    """Weights of which one matrix has only the rows of a reduced vocabulary."""

    inner: Weights
    matrix: str
    rows: NDArray[np.int64]

    def names(self) -> frozenset[str]:
        return self.inner.names()

    def shape(self, name: str) -> tuple[int, ...]:
        shape = self.inner.shape(name)
        return (len(self.rows), *shape[1:]) if name == self.matrix else shape

    def dense(self, name: str) -> F32:
        whole = self.inner.dense(name)
        return whole[self.rows] if name == self.matrix else whole

    def blocks(self, name: str) -> None:
        del name


def reduced(drafter: Heads, weights: Weights, output: str) -> Weights:
    """An output matrix of the whole vocabulary keeps the rows of the map."""
    ids = drafter.reduced_ids()
    if ids is None or drafter.shapes[output][0] == drafter.vocab:
        return weights
    return _Rows(weights, output, ids)


# Graphs


def graphs(drafter: Heads, own: StoredHeads, target: Stored, room: Room) -> Sequence[DrafterGraph]:
    """One for any-width providers and one for static ones, where they differ."""
    wanted = [(room.profile.lowering, room.step)] if room.profile.symbolic else []
    if (room.profile.static, room.activation) not in wanted:
        wanted.append((room.profile.static, room.activation))
    return [_graph(drafter, own, target, lowering, dtype) for lowering, dtype in wanted]


def _graph(drafter: Heads, own: StoredHeads, target: Stored, lowering: str, dtype: str) -> DrafterGraph:
    name = f"{NAME}-{ROLE}-{lowering}"
    site = Site(Graph(target.weights_file, target.opset), dtype, target.accuracy_level)
    top, n = drafter.top, drafter.count
    inputs = (TensorSpec("hidden", dtype, (1, 1, drafter.target.hidden_size)),)
    outputs = (TensorSpec("top_ids", "int32", (1, n, top)), TensorSpec("top_logprobs", "float32", (1, n, top)))
    states = _states(site, drafter, own)
    ids, values = _best(site, own, _logits(site, drafter, own, target, states), top)
    for value, output in ((ids, "top_ids"), (values, "top_logprobs")):
        site.graph.rename({site.graph.op("Unsqueeze", (value, site.ints(0)), f"/{output}/Unsqueeze"): output})
    borrows = () if own.outputs else (borrowed_head(drafter.target),)
    model: onnx.ModelProto = site.graph.model(name, inputs, outputs)
    return DrafterGraph(name, ROLE, lowering, 1, None, inputs, outputs, borrows, model)


def _states(site: Site, drafter: Heads, own: StoredHeads) -> list[str]:
    """What each head gives to its output matrix, [N, M]: one value, or one [1, M] a head after a second layer."""
    graph, n = site.graph, drafter.count
    x = graph.op("Squeeze", ("hidden", site.ints(0)), "/hidden/Squeeze")
    rows: list[str] = []
    for at, layer in enumerate(own.layers):
        path = f"/layers.{at}"
        if at == 0 and len(layer.matrices) == 1:
            y = _biased(site, matmul(site, layer.matrices[0], x, path), layer.biases[0], path)
            y = graph.op("Reshape", (y, site.ints(n, -1)), f"{path}/heads/Reshape")
            rows = [_activated(site, drafter, y, x, path)]
            continue
        before = (
            rows if len(rows) == n else list(graph.split(rows[0], n, 0, f"{path}/heads/Split")) if rows else [x] * n
        )
        rows = []
        for i, (matrix, bias) in enumerate(zip(layer.matrices, layer.biases, strict=True)):
            head = f"{path}/heads.{i}"
            y = _biased(site, matmul(site, matrix, before[i], head), bias, head)
            rows.append(_activated(site, drafter, y, before[i], head))
    return rows


def _biased(site: Site, y: str, bias: ByDtype | None, path: str) -> str:
    return y if bias is None else site.graph.op("Add", (y, site.graph.stored(bias[site.dtype])), f"{path}/bias/Add")


def _activated(site: Site, drafter: Heads, y: str, x: str, path: str) -> str:
    """x + SiLU(y), x [1, H] or [N, H]; of MLP heads GELU(y), the exact one."""
    graph = site.graph
    if drafter.layout.residual:
        sigmoid = graph.op("Sigmoid", (y,), f"{path}/act/Sigmoid")
        return graph.op("Add", (x, graph.op("Mul", (y, sigmoid), f"{path}/act/Mul")), f"{path}/residual/Add")
    scaled = graph.op("Mul", (y, graph.constant(1 / sqrt(2), site.dtype)), f"{path}/act/scale/Mul")
    erf = graph.op(
        "Add", (graph.op("Erf", (scaled,), f"{path}/act/Erf"), graph.constant(1, site.dtype)), f"{path}/act/Add"
    )
    half = graph.op("Mul", (y, graph.constant(0.5, site.dtype)), f"{path}/act/half/Mul")
    return graph.op("Mul", (half, erf), f"{path}/act/Mul")


def _logits(site: Site, drafter: Heads, own: StoredHeads, target: Stored, states: list[str]) -> str:
    """[N, ids]."""
    graph, n = site.graph, drafter.count
    if len(own.outputs) != n or n == 1:
        matrix: Matrix = own.outputs[0] if own.outputs else target.head
        logits = matmul(site, matrix, graph.concat(states, 0, "/heads/Concat"), "/lm_head")
        logits = _biased(site, logits, own.output_biases[0] if own.outputs else None, "/lm_head")
        if own.token_map is None or own.outputs:
            return logits
        return graph.op("Gather", (logits, graph.stored(own.token_map)), "/token_map/logits/Gather", {"axis": 1})
    rows = states if len(states) == n else graph.split(states[0], n, 0, "/heads/Split")
    parts = [
        _biased(site, matmul(site, own.outputs[i], rows[i], f"/lm_heads.{i}"), own.output_biases[i], f"/lm_heads.{i}")
        for i in range(n)
    ]
    return graph.concat(parts, 0, "/lm_heads/Concat")


def _best(site: Site, own: StoredHeads, logits: str, top: int) -> tuple[str, str]:
    """The top ids, int32 [N, top], and their log-probabilities, float32 [N, top]; sums are float32."""
    graph = site.graph
    wide = (
        logits
        if site.dtype == "float32"
        else graph.op("Cast", (logits,), "/logits/Cast", {"to": onnx.TensorProto.FLOAT})
    )
    values, places = graph.ops("TopK", (wide, site.ints(top)), "/TopK", ("/TopK/values", "/TopK/places"), {"axis": 1})
    most = graph.op("Gather", (values, site.ints(0)), "/most/Gather", {"axis": 1})
    shifted = graph.op("Exp", (graph.op("Sub", (wide, most), "/law/Sub"),), "/law/Exp")
    total = graph.op("ReduceSum", (shifted, site.ints(1)), "/law/ReduceSum", {"keepdims": 1})
    below = graph.op("Sub", (values, most), "/logprobs/shift/Sub")
    logprobs = graph.op("Sub", (below, graph.op("Log", (total,), "/law/Log")), "/logprobs/Sub")
    ids = graph.op("Cast", (places,), "/ids/Cast", {"to": onnx.TensorProto.INT32})
    if own.token_map is not None:
        ids = graph.op("Gather", (graph.stored(own.token_map), ids), "/token_map/Gather", {"axis": 0})
    return ids, logprobs
