"""portable: plain opset-17 operators; cos, sin and masks are inputs, and only the S new K/V rows come out.

Operators: Add Concat Div MatMul Mul Pow ReduceMean Reshape Softmax Split Sqrt Squeeze Transpose Unsqueeze, and Flatten
of the mask in any-width graphs.

Heads are split and joined, never transposed: Reshape + Transpose of [1, S, KVH, D] aborts Meteor Lake's compiler. The
G = heads / kv_heads query heads of a K/V head lie side by side in q's columns, so that its rows are (token, head):

    q [S, H D] -> Split KVH -> Reshape [S G, D] each -> Concat rows with k's, v's apart
    q, k: x cos + (x R) sin, where R [D, D] swaps the halves and negates one: a product, since copies cost more there
    q [K_new, 0, K_past]^T + bias -> Softmax -> times [V_new, 0, V_past] -> [1, KVH, S G, D]
      -> Reshape [KVH S, G D] -> Split KVH -> Concat columns [S, H D]

New rows are filled up with zeros, which the mask hides, to a multiple of 16: Intel's NPUs compute in columns of 16 and
copy what is not (docs/npu-estimates.md). They come before past ones: the other way round, Lunar and Panther Lake's
compiler fails at S = 1 (it takes the past half for a whole attention and finds P + 1 columns against P keys).

Mask, cosine and sine are spread over rows once per graph; those of q carry the 1 / sqrt(D).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spec_edge.models.contract import Dim, TensorSpec
from spec_edge.models.lowerings.lowering import Build, Lowering
from spec_edge.models.stored import Norm

LEAST_EPS = {"float32": 0.0, "float16": 6e-8}
"""Smallest positive number of each dtype that an addition sees: a row of zeros must not divide by zero."""


COLUMNS = 16
"""Keys that Intel's NPUs compute at a time."""

MOST_BY_HEAD = 8
"""Widest run whose softmax is taken of each K/V head's rows apart. Above it Meteor Lake's compiler leaves that to half
of its cores; below, one tensor for all heads costs a copy each way."""

MASKED = -1e4
"""What hides a column; finite, and inside float16's range."""


def _slots(build: Build) -> Dim:
    return "P" if build.form.past is None else build.form.past


def _cache(build: Build, prefix: str, rows: Dim) -> tuple[TensorSpec, ...]:
    shape = (1, build.config.kv_heads, rows, build.config.head_dim)
    return tuple(build.tensor(f"{prefix}_{kind}.{i}", *shape) for i in build.layers for kind in ("key", "value"))


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
    mean = graph.mean(square, f"{path}/ReduceMean")
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
    qk, v = _stacked(build, projections, path)
    q, k = _query_and_keys(build, _rotated(build, qk, path), path)
    q, k, v = (_by_head(build, x) for x in (q, k, v))
    graph.rename({k: f"new_key.{layer}", v: f"new_value.{layer}"})
    keys = _columns(build, k, f"past_key.{layer}", f"{path}/keys")
    transposed = graph.op("Transpose", (keys,), f"{path}/keys/Transpose", {"perm": [0, 1, 3, 2]})
    scores = graph.op("MatMul", (q, transposed), f"{path}/scores/MatMul")
    weights = _weights(build, scores, path)
    values = _columns(build, v, f"past_value.{layer}", f"{path}/values")
    context = graph.op("MatMul", (weights, values), f"{path}/context/MatMul")
    return _joined(build, context, path)


def _weights(build: Build, scores: str, path: str) -> str:
    """softmax(scores + mask), over the rows of all K/V heads as one tensor where they are many."""
    graph, kvh, flat = build.site.graph, build.config.kv_heads, _is_flat(build)
    columns = _count(build)
    if flat:
        scores = graph.op("Reshape", (scores, build.site.ints(1, 1, -1, columns)), f"{path}/scores/Reshape")
    masked = graph.op("Add", (scores, _mask(build, kvh if flat else 1)), f"{path}/scores/Add")
    weights = graph.op("Softmax", (masked,), f"{path}/Softmax", {"axis": -1})
    if not flat:
        return weights
    return graph.op("Reshape", (weights, build.site.ints(1, kvh, -1, columns)), f"{path}/weights/Reshape")


def _query_and_keys(build: Build, rows: str, path: str) -> tuple[str, str]:
    """q's rows and k's. Where S is not known, counted in heads."""
    graph, config, width = build.site.graph, build.config, build.form.width
    q, k = f"{path}/q", f"{path}/k"
    if width is None:
        heads = build.site.ints(config.heads + config.kv_heads, -1, config.head_dim)
        rows = graph.op("Reshape", (rows, heads), f"{path}/rope/Reshape")
    sizes = build.site.ints(config.heads * (width or 1), config.kv_heads * (width or 1))
    graph.ops("Split", (rows, sizes), f"{path}/rope/Split", (q, k), {"axis": 0})
    return q, k


def _by_head(build: Build, x: str) -> str:
    """Rows of K/V heads one after another -> [1, KVH, rows, D]."""
    shape = build.site.ints(1, build.config.kv_heads, -1, build.config.head_dim)
    return build.site.graph.op("Reshape", (x, shape), f"{x}/Reshape")


def _stacked(build: Build, projections: tuple[str, ...], path: str) -> tuple[str, str]:
    """(q and k [(H + KVH) S, D], v [KVH S, D]): rows by K/V head, then token, then q's head."""
    graph, config = build.site.graph, build.config
    rows = build.site.ints(-1, config.head_dim)
    if build.form.width == 1:  # heads lie in this order already
        parts = [graph.op("Reshape", (x, rows), f"{x}/heads") for x in projections]
        if len(parts) == 1:
            qk, v = f"{path}/q_k", f"{path}/v"
            sizes = build.site.ints(config.heads + config.kv_heads, config.kv_heads)
            graph.ops("Split", (parts[0], sizes), f"{path}/heads/Split", (qk, v), {"axis": 0})
            return qk, v
        return graph.concat(parts[:2], 0, f"{path}/q_k"), parts[2]
    queries, keys, values = _pieces(build, projections, path)
    stacked = [graph.op("Reshape", (x, rows), f"{x}/rows") for x in queries]
    return graph.concat((*stacked, *keys), 0, f"{path}/q_k"), graph.concat(values, 0, f"{path}/v")


def _pieces(build: Build, projections: tuple[str, ...], path: str) -> tuple[Sequence[str], ...]:
    """What belongs to each K/V head: pieces [S, G D] of q, [S, D] of k and of v."""
    graph, kvh, d = build.site.graph, build.config.kv_heads, build.config.head_dim
    if len(projections) == 3:
        kinds = zip("qkv", projections, strict=True)
        return tuple(graph.split(x, kvh, -1, f"{path}/{kind}/Split") for kind, x in kinds)
    names = [f"{path}/{kind}/{i}" for kind in "qkv" for i in range(kvh)]
    sizes = build.site.ints(*[build.config.heads // kvh * d] * kvh, *[d] * (2 * kvh))
    graph.ops("Split", (projections[0], sizes), f"{path}/qkv/Split", names, {"axis": -1})
    return names[:kvh], names[kvh : 2 * kvh], names[2 * kvh :]


def _joined(build: Build, context: str, path: str) -> str:
    """[1, KVH, S G, D] -> [S, H D]."""
    graph, kvh = build.site.graph, build.config.kv_heads
    columns = build.config.heads // kvh * build.config.head_dim
    if build.form.width == 1:
        return graph.op("Reshape", (context, build.site.ints(1, kvh * columns)), f"{path}/context/Reshape")
    rows = graph.op("Reshape", (context, build.site.ints(-1, columns)), f"{path}/context/Reshape")
    return graph.concat(graph.split(rows, kvh, 0, f"{path}/context/Split"), -1, f"{path}/context/Concat")


def _rotated(build: Build, x: str, path: str) -> str:
    """x cos + (x R) sin for the rows of q and k."""
    graph = build.site.graph
    half = np.eye(build.config.head_dim // 2)
    swap = graph.constant(np.block([[0 * half, half], [-half, 0 * half]]), build.site.dtype)
    swapped = graph.op("MatMul", (x, swap), f"{path}/rope/swap/MatMul")
    straight = graph.op("Mul", (x, _table(build, "cos")), f"{path}/rope/cos/Mul")
    crossed = graph.op("Mul", (swapped, _table(build, "sin")), f"{path}/rope/sin/Mul")
    return graph.op("Add", (straight, crossed), f"{path}/rope/Add")


def _table(build: Build, name: str) -> str:
    """cos or sin for the rows of q and k, q's times 1 / sqrt(D): [(H + KVH) S, D]."""
    graph, config, path = build.site.graph, build.config, f"/rope/{name}"

    def make() -> str:
        scale = graph.constant(config.head_dim**-0.5, build.site.dtype)
        rows = graph.op("Reshape", (name, build.site.ints(-1, config.head_dim)), f"{path}/Reshape")
        scaled = graph.op("Mul", (rows, scale), f"{path}/Mul")
        queries = _spread(build, scaled, config.head_dim, f"{path}/spread")
        return graph.concat([queries] * config.kv_heads + [rows] * config.kv_heads, 0, f"{path}/Concat")

    return graph.once(("table", name), make)


def _spread(build: Build, x: str, columns: Dim, path: str) -> str:
    """Rows [S, columns], each once for each of the G query heads of a K/V head: [S G, columns]."""
    graph, copies = build.site.graph, build.config.heads // build.config.kv_heads
    if copies == 1:
        return x
    column = graph.op("Unsqueeze", (x, build.site.ints(1)), f"{path}/Unsqueeze")
    copied = graph.concat([column] * copies, 1, f"{path}/Concat")
    if isinstance(columns, int):
        return graph.op("Reshape", (copied, build.site.ints(-1, columns)), f"{path}/Reshape")
    return graph.op("Flatten", (copied,), f"{path}/Flatten", {"axis": 2})


def _known(build: Build) -> bool:
    """Whether both S and P are."""
    return build.form.width is not None and build.form.past is not None


def _filled(build: Build) -> int:
    """Rows of zeros beside the S new ones; none where S or P is not known."""
    return -(build.form.width or 0) % COLUMNS if _known(build) else 0


def _count(build: Build) -> int:
    """Columns of the scores where S and P are known, else 0."""
    return (build.form.width or 0) + _filled(build) + (build.form.past or 0) if _known(build) else 0


def _is_flat(build: Build) -> bool:
    return _known(build) and (build.form.width or 0) > MOST_BY_HEAD and build.config.kv_heads > 1


def _mask(build: Build, copies: int) -> str:
    """Both masks for the rows of `copies` K/V heads: [1, 1, copies S G, columns]."""
    graph, form, filled = build.site.graph, build.form, _filled(build)

    def make() -> str:
        parts = [graph.op("Squeeze", (x, build.site.ints(0, 1)), f"/mask/{x}") for x in ("bias_new", "bias_past")]
        if filled:
            hidden = np.full((form.width or 0, filled), MASKED)
            parts.insert(1, graph.constant(hidden, build.site.dtype))
        rows = _spread(build, graph.concat(parts, -1, "/mask/Concat"), _count(build) or "C", "/mask/spread")
        whole = graph.concat([rows] * copies, 0, "/mask/heads/Concat")
        return graph.op("Unsqueeze", (whole, build.site.ints(0, 1)), "/mask/Unsqueeze")

    return graph.once(("mask",), make)


def _columns(build: Build, new: str, past: str, path: str) -> str:
    """New rows, zeros, past rows: [1, KVH, S + filled + P, D]."""
    graph, filled = build.site.graph, _filled(build)
    zeros = np.zeros((1, build.config.kv_heads, filled, build.config.head_dim))
    between = (graph.constant(zeros, build.site.dtype),) if filled else ()
    return graph.concat((new, *between, past), 2, f"{path}/Concat")


LOWERING = Lowering(inputs, outputs, norm, add_norm, attend)
