"""portable: plain opset-17 operators; cos, sin and masks are inputs, and only the S new K/V rows come out.

Operators: Add Concat Div MatMul Mul Neg Pow ReduceMean Reshape Softmax Split Sqrt Transpose, and in any-width graphs
Shape of the two masks, once (where Split divides past from new).

Heads are split and joined, never transposed: Reshape + Transpose of [1, S, KVH, D] aborts Meteor Lake's compiler. The
G = heads / kv_heads query heads of a K/V head lie one after the other along the rows, so that K and V are not expanded:

    q [S, H D] -> Split H -> Concat rows [H S, D] -> Reshape [1, KVH, G S, D] -> rotate -> q
    q K_new^T + bias, q K_past^T + bias -> Concat -> Softmax -> Split -> with V_new, with V_past -> Add [1, KVH, G S, D]
      -> Reshape [H S, D] -> Split H -> Concat columns [S, H D]

New columns come before past ones: the other way round, Lunar and Panther Lake's compiler fails at S = 1 (it takes the
past half for a whole attention and finds P + 1 columns against P keys).

Cosine, sine and masks are tiled G times once per graph; the tiled cosine and sine of q carry the 1 / sqrt(D).
"""

from __future__ import annotations

from collections.abc import Sequence

from spec_edge.models.contract import Dim, TensorSpec
from spec_edge.models.lowerings.lowering import Build, Lowering
from spec_edge.models.stored import Norm

LEAST_EPS = {"float32": 0.0, "float16": 6e-8}
"""Smallest positive number of each dtype that an addition sees: a row of zeros must not divide by zero."""


def _slots(build: Build) -> Dim:
    return "P" if build.form.past is None else build.form.past


def _cache(build: Build, prefix: str, rows: Dim) -> tuple[TensorSpec, ...]:
    shape = (1, build.config.kv_heads, rows, build.config.head_dim)
    layers = range(build.config.layers)
    return tuple(build.tensor(f"{prefix}_{kind}.{i}", *shape) for i in layers for kind in ("key", "value"))


def inputs(build: Build) -> tuple[TensorSpec, ...]:
    """cos and sin of the rows' positions (both halves), the two finite masks, the cache of each layer."""
    s, p = build.width, _slots(build)
    rotary = (build.tensor(name, 1, 1, s, build.config.head_dim) for name in ("cos", "sin"))
    return (
        *rotary,
        build.tensor("bias_past", 1, 1, s, p),
        build.tensor("bias_new", 1, 1, s, s),
        *_cache(build, "past", p),
    )


def outputs(build: Build) -> tuple[TensorSpec, ...]:
    """The S new rows of each layer: keys rotated."""
    return _cache(build, "new", build.width)


def norm(build: Build, x: str, weight: Norm, path: str) -> str:
    """x / sqrt(mean(x^2) + eps) * gamma, in the pattern that OpenVINO and ONNX Runtime fuse.

    Half precision reads x / shrink, whose norm is the same: it cannot hold the squares of a large residual.
    """
    graph, dtype = build.site.graph, build.site.dtype
    factor = weight.shrink if dtype == "float16" else 1.0
    if factor != 1.0:
        x = graph.op("Mul", (x, graph.constant(1 / factor, dtype)), f"{path}/shrink/Mul")
    eps = graph.constant(max(build.config.norm_eps / factor**2, LEAST_EPS[dtype]), dtype)
    square = graph.op("Pow", (x, graph.constant(2, dtype)), f"{path}/Pow")
    mean = graph.op("ReduceMean", (square,), f"{path}/ReduceMean", {"axes": [-1], "keepdims": 1})
    biased = graph.op("Add", (mean, eps), f"{path}/Add")
    root = graph.op("Sqrt", (biased,), f"{path}/Sqrt")
    unit = graph.op("Div", (x, root), f"{path}/Div")
    return graph.op("Mul", (unit, graph.stored(weight.gamma[dtype])), f"{path}/Mul")


def add_norm(build: Build, x: str, y: str, weight: Norm, path: str) -> tuple[str, str]:
    """The residual sum and its norm."""
    total = build.site.graph.op("Add", (x, y), f"{path}/residual/Add")
    return total, norm(build, total, weight, path)


def attend(build: Build, projections: tuple[str, ...], layer: int) -> str:
    """Attention over the P past and the S new keys, under their two masks."""
    graph, path = build.site.graph, f"/layers.{layer}/attn"
    q_heads, k_heads, v_heads = _heads(build, projections, path)
    q = _rotate(build, _stack(build, q_heads, f"{path}/q"), _query_tables(build), f"{path}/q/rope")
    k = _rotate(build, _stack(build, k_heads, f"{path}/k"), ("cos", _signed_sin(build)), f"{path}/k/rope")
    v = _stack(build, v_heads, f"{path}/v")
    graph.rename({k: f"new_key.{layer}", v: f"new_value.{layer}"})
    context = _weighted(build, q, (k, f"past_key.{layer}"), (v, f"past_value.{layer}"), path)
    rows = graph.op("Reshape", (context, build.site.ints(-1, build.config.head_dim)), f"{path}/context/Reshape")
    return graph.concat(graph.split(rows, build.config.heads, 0, f"{path}/context/Split"), -1, f"{path}/context/Concat")


def _weighted(build: Build, q: str, keys: tuple[str, str], values: tuple[str, str], path: str) -> str:
    """softmax(q keys^T + masks) values, new and past apart: [1, KVH, G S, D]. keys and values: (new, past)."""
    graph = build.site.graph
    scores = [_scores(build, q, k, mask, path) for k, mask in zip(keys, ("bias_new", "bias_past"), strict=True)]
    weights = graph.op("Softmax", (graph.concat(scores, -1, f"{path}/scores/Concat"),), f"{path}/Softmax", {"axis": -1})
    pieces = (f"{path}/weights/new", f"{path}/weights/past")
    graph.ops("Split", (weights, _new_and_past(build)), f"{path}/weights/Split", pieces, {"axis": -1})
    new = graph.op("MatMul", (pieces[0], values[0]), f"{path}/context_new/MatMul")
    past = graph.op("MatMul", (pieces[1], values[1]), f"{path}/context_past/MatMul")
    return graph.op("Add", (new, past), f"{path}/context/Add")


def _heads(build: Build, projections: tuple[str, ...], path: str) -> tuple[Sequence[str], Sequence[str], Sequence[str]]:
    """The [S, D] pieces of q, k and v."""
    graph, h, kvh = build.site.graph, build.config.heads, build.config.kv_heads
    if len(projections) == 3:
        q, k, v = projections
        return (
            graph.split(q, h, -1, f"{path}/q/Split"),
            graph.split(k, kvh, -1, f"{path}/k/Split"),
            graph.split(v, kvh, -1, f"{path}/v/Split"),
        )
    pieces = graph.split(projections[0], h + 2 * kvh, -1, f"{path}/qkv/Split")
    return pieces[:h], pieces[h : h + kvh], pieces[h + kvh :]


def _stack(build: Build, pieces: Sequence[str], path: str) -> str:
    """Pieces [S, D] of n heads -> [1, KVH, n / KVH * S, D]."""
    graph, config = build.site.graph, build.config
    rows = graph.concat(pieces, 0, f"{path}/Concat")
    return graph.op("Reshape", (rows, build.site.ints(1, config.kv_heads, -1, config.head_dim)), f"{path}/Reshape")


def _rotate(build: Build, x: str, tables: tuple[str, str], path: str) -> str:
    """x cos + swap(x) sin, where sin carries the minus of the first half."""
    graph = build.site.graph
    low, high = graph.split(x, 2, -1, f"{path}/Split")
    swapped = graph.concat((high, low), -1, f"{path}/Concat")
    straight = graph.op("Mul", (x, tables[0]), f"{path}/cos/Mul")
    crossed = graph.op("Mul", (swapped, tables[1]), f"{path}/sin/Mul")
    return graph.op("Add", (straight, crossed), f"{path}/Add")


def _signed_sin(build: Build) -> str:
    """sin with its first half negated: [1, 1, S, D]."""
    graph = build.site.graph

    def make() -> str:
        low, high = graph.split("sin", 2, -1, "/rope/Split")
        return graph.concat((graph.op("Neg", (low,), "/rope/Neg"), high), -1, "/rope/Concat")

    return graph.once(("signed sin",), make)


def _query_tables(build: Build) -> tuple[str, str]:
    """cos and signed sin for the stacked query rows, times 1 / sqrt(D): [1, 1, G S, D]."""
    graph = build.site.graph
    scale = graph.constant(build.config.head_dim**-0.5, build.site.dtype)

    def scaled(table: str, path: str) -> str:
        return graph.once(("query", table), lambda: graph.op("Mul", (_tiled(build, table, path), scale), f"{path}/Mul"))

    return scaled("cos", "/rope/query_cos"), scaled(_signed_sin(build), "/rope/query_sin")


def _tiled(build: Build, x: str, path: str) -> str:
    """x once for each of the G query heads of a K/V head, along the rows."""
    copies = build.config.heads // build.config.kv_heads
    return build.site.graph.once(("tiled", x), lambda: build.site.graph.concat([x] * copies, 2, f"{path}/Concat"))


def _scores(build: Build, q: str, keys: str, mask: str, path: str) -> str:
    """q keys^T + mask: [1, KVH, G S, columns]."""
    graph = build.site.graph
    path = f"{path}/{mask.replace('bias', 'scores')}"
    transposed = graph.op("Transpose", (keys,), f"{path}/Transpose", {"perm": [0, 1, 3, 2]})
    scores = graph.op("MatMul", (q, transposed), f"{path}/MatMul")
    return graph.op("Add", (scores, _tiled(build, mask, f"/mask/{mask}")), f"{path}/Add")


def _new_and_past(build: Build) -> str:
    """int64 [S, P]: how Softmax's columns divide."""
    past, width = build.form.past, build.form.width
    if past is not None and width is not None:
        return build.site.ints(width, past)
    graph = build.site.graph

    def make() -> str:
        sizes = [graph.op("Shape", (x,), f"/mask/{x}/Shape", {"start": 3}) for x in ("bias_new", "bias_past")]
        return graph.concat(sizes, 0, "/mask/columns/Concat")

    return graph.once(("columns",), make)


LOWERING = Lowering(inputs, outputs, norm, add_norm, attend)
