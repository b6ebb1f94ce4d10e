"""The blocks that decoders are made of, as free functions that add nodes to a graph.

Enters: a graph, value names and stored weights. Leaves: value names. Activations are [S, features], without the batch
axis: Gemm takes two axes, and adds a quantised matrix's offset term in the same operator. Operators used here: Add Cast
Gather Gemm MatMul Mul ReduceSum Reshape Sigmoid Split Unsqueeze, and for quantised weights DequantizeLinear, or
com.microsoft's MatMulNBits and GatherBlockQuantized.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from onnx import helper

from spec_edge.models.graph import CONTRIB, Graph
from spec_edge.models.store import Region
from spec_edge.models.stored import Blocks, Channels, Dense, DenseRows, Linear, Matrix, Table


@dataclass(frozen=True)
class Site:
    """Where nodes go: the graph, the activation dtype, and MatMulNBits's accuracy_level."""

    graph: Graph
    dtype: str
    accuracy_level: int

    def weight(self, region: Region) -> str:
        """A stored float tensor as an activation-typed value. The cast of a constant is folded when a session loads."""
        name = self.graph.stored(region)
        if region.dtype == self.dtype:
            return name
        return self.graph.once(("cast", name), lambda: self.cast(name, f"/cast/{name}"))

    def cast(self, x: str, name: str) -> str:
        """x in the activation dtype."""
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        return self.graph.op("Cast", (x,), name, {"to": int(kind)})

    def ints(self, *values: int) -> str:
        """An int64 vector constant."""
        return self.graph.constant(values, np.int64)


def matmul(site: Site, matrix: Matrix, x: str, name: str) -> str:
    """x W^T for x [S, K]: [S, N]."""
    match matrix:
        case Dense():
            return site.graph.op("MatMul", (x, site.weight(matrix.weight)), f"{name}/MatMul")
        case DenseRows():
            # Reads [N, K] as it lies, so that a tied table is stored once; a Transpose would copy it at session load.
            return site.graph.op("Gemm", (x, site.weight(matrix.weight)), f"{name}/Gemm", {"transB": 1})
        case Blocks():
            return _blocks_matmul(site, matrix, x, name)
        case Channels(table=True):
            return site.graph.op("Gemm", (x, dequantised(site, matrix)), f"{name}/Gemm", {"transB": 1})
        case Channels():
            return site.graph.op("MatMul", (x, dequantised(site, matrix)), f"{name}/MatMul")


def dequantised(site: Site, matrix: Channels) -> str:
    """The matrix as an activation-typed value, as it lies."""
    q, scale = site.graph.stored(matrix.q), matrix.scale[site.dtype]
    axis = 0 if matrix.table else 1
    attributes = {"axis": axis} if len(scale.shape) == 1 else {"axis": 0, "block_size": matrix.group}
    inputs = (q, site.graph.stored(scale))
    make = partial(site.graph.op, "DequantizeLinear", inputs, f"/dequantised/{q}", attributes)
    return site.graph.once(("dequantised", q), make)


def _blocks_matmul(site: Site, matrix: Blocks, x: str, name: str) -> str:
    n, k = matrix.shape
    attributes = {
        "K": k,
        "N": n,
        "bits": matrix.bits,
        "block_size": matrix.block,
        "accuracy_level": site.accuracy_level,
    }
    inputs = (x, site.graph.stored(matrix.q), site.graph.stored(matrix.scale[site.dtype]))
    y = site.graph.op("MatMulNBits", inputs, f"{name}/MatMulNBits", attributes, CONTRIB)
    if matrix.offset is None:
        return y
    offset = site.graph.stored(matrix.offset[site.dtype])
    return site.graph.op("Gemm", (block_sums(site, matrix, x), offset, y), f"{name}/offset/Gemm")


def block_sums(site: Site, matrix: Blocks, x: str) -> str:
    """[S, K / block]: sums of x over the blocks, computed once per x.

    With w = scale (q - zero) + offset, the offset's part of x W^T is blocksum(x) offset^T.
    """

    k, block = matrix.shape[1], matrix.block

    def make() -> str:
        # A MatMul with a 0/1 matrix is one operator less, but its traffic costs a tenth of a SmolLM2 step.
        shape = site.ints(-1, k // block, block)
        blocks = site.graph.op("Reshape", (x, shape), f"{x}/blocks{block}")
        return site.graph.op("ReduceSum", (blocks, site.ints(-1)), f"{x}/block_sums{block}", {"keepdims": 0})

    return site.graph.once(("block sums", x, block), make)


def linear(site: Site, layer: Linear, x: str, path: str) -> str:
    """x W^T + bias."""
    if layer.step is not None:
        x = rounded(site, x, layer.step)
    y = matmul(site, layer.matrix, x, f"{path}/{layer.name}")
    if layer.bias is None:
        return y
    return site.graph.op("Add", (y, site.graph.stored(layer.bias[site.dtype])), f"{path}/{layer.name}/Add")


def rounded(site: Site, x: str, step: float) -> str:
    """x to the nearest multiple of `step` that int16 holds, once per x. ONNX's own opset 17 knows no int16 here."""
    graph, scale = site.graph, site.graph.constant(step, np.float32)
    zero = graph.constant(0, np.int16)

    def make() -> str:
        q = graph.op("QuantizeLinear", (x, scale, zero), f"{x}/QuantizeLinear", domain=CONTRIB)
        return graph.op("DequantizeLinear", (q, scale, zero), f"{x}/DequantizeLinear", domain=CONTRIB)

    return graph.once(("rounded", x), make)


def project(site: Site, group: tuple[Linear, ...], x: str, path: str) -> tuple[str, ...]:
    """All projections of x in a group: one merged value, or one each."""
    return tuple(linear(site, layer, x, path) for layer in group)


def embed(site: Site, table: Table, ids: str, path: str) -> str:
    """Rows of the table [V, H] for ids [S]: [S, H]."""
    if isinstance(table, Blocks):
        return _blocks_embed(site, table, ids, path)
    if isinstance(table, Channels):
        return _channels_embed(site, table, ids, path)
    rows = site.graph.op("Gather", (site.graph.stored(table.weight), ids), f"{path}/Gather", {"axis": 0})
    return rows if table.weight.dtype == site.dtype else site.cast(rows, f"{path}/Cast")


def _channels_embed(site: Site, table: Channels, ids: str, path: str) -> str:
    """The rows' integers times their scales: dequantising first would do it for every row of the table."""
    steps = site.graph.op("Gather", (site.graph.stored(table.q), ids), f"{path}/Gather", {"axis": 0})
    column = table.scale[site.dtype].viewed((table.q.shape[0], 1))
    scale = site.graph.op("Gather", (site.graph.stored(column), ids), f"{path}/scale/Gather", {"axis": 0})
    return site.graph.op("Mul", (site.cast(steps, f"{path}/Cast"), scale), f"{path}/Mul")


def _blocks_embed(site: Site, table: Blocks, ids: str, path: str) -> str:
    v, k = table.shape
    packed = site.graph.stored(table.q.viewed((v, k * table.bits // 8)))
    attributes = {"bits": table.bits, "block_size": table.block, "gather_axis": 0, "quantize_axis": 1}
    inputs = (packed, ids, site.graph.stored(table.scale[site.dtype]))
    rows = site.graph.op("GatherBlockQuantized", inputs, f"{path}/GatherBlockQuantized", attributes, CONTRIB)
    if table.offset_rows is None:
        return rows
    offset = site.graph.stored(table.offset_rows[site.dtype])
    per_block = site.graph.op("Gather", (offset, ids), f"{path}/offset/Gather", {"axis": 0})
    column = site.graph.op("Unsqueeze", (per_block, site.ints(-1)), f"{path}/offset/Unsqueeze")
    blocks = site.graph.op("Reshape", (rows, site.ints(-1, k // table.block, table.block)), f"{path}/offset/blocks")
    exact = site.graph.op("Add", (blocks, column), f"{path}/offset/Add")
    return site.graph.op("Reshape", (exact, site.ints(-1, k)), f"{path}/offset/Reshape")


def swiglu(site: Site, gate_up: tuple[str, ...], path: str) -> str:
    """silu(gate) * up, of a merged [S, 2I] or of both apart: [S, I]."""
    gate, up = gate_up if len(gate_up) == 2 else site.graph.split(gate_up[0], 2, -1, f"{path}/Split")
    sigmoid = site.graph.op("Sigmoid", (gate,), f"{path}/act/Sigmoid")
    silu = site.graph.op("Mul", (gate, sigmoid), f"{path}/act/Mul")
    return site.graph.op("Mul", (silu, up), f"{path}/Mul")
