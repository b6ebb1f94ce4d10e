"""The graphs of an EAGLE drafter. Roles, each for one text; K: `Eagle.top`, H: the drafter's own hidden size:

    any width, for ONNX Runtime's CPU, so that one session holds the weights once:
    "step"     input_ids [1, S], features [1, S, H], rows [R], cache -> the answer of those R rows
    "fuse"     EAGLE-3: taps [1, S, T * H_target] -> features [1, S, H]

    fixed width, for NPUs; what enters `features` is the target's output itself, fused inside:
    "prefill"  S = chunk, filled from the right; the answer of the last row
    "catchup"  S = widest verify run, filled from the right; the answer of the last row
    "expand"   features [1, S, H] are the drafter's own; the answer of all S rows

The answer of R rows: top_ids [1, R, K] (ids of the target), top_logprobs [1, R, K], hidden [1, R, H] (what is fed
back); any-width graphs add logits [1, R, drafted ids] for chains that are drawn.

Row t pairs the embedding of token t + 1 with the feature of row t. Rows of a tree lie in the cache behind the
committed ones: each is shown its ancestors by the mask, and stands at the position of its depth.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import helper

from spec_edge.models.blocks import Site, embed, matmul, project, swiglu
from spec_edge.models.contract import TensorSpec
from spec_edge.models.drafter import DrafterGraph, Room, borrowed_head
from spec_edge.models.eagle_network import METHOD, SCRATCH, Eagle, StoredEagle
from spec_edge.models.forms import Form, buckets, rounded
from spec_edge.models.graph import Graph
from spec_edge.models.lowerings.lowering import Build, Lowering, lowering
from spec_edge.models.stored import EMBEDDING, Stored

EXPAND = (1, 10)
"""Rows of the static "expand" graphs: a chain's step, and a level of EAGLE-2's tree."""


@dataclass(frozen=True)
class Made:
    """One graph being built, and what it is for. `stored` of `build` holds the drafter's tensors and the borrowed."""

    net: Eagle
    own: StoredEagle
    build: Build
    how: Lowering
    role: str

    @property
    def fuses(self) -> bool:
        """Whether the target's output enters."""
        return self.role in ("prefill", "catchup")


def positions(context: int) -> int:
    """Rows of the cos and sin tables: every position of the text and of drafted rows behind it."""
    return rounded(context) + SCRATCH


def graphs(net: Eagle, own: StoredEagle, target: Stored, room: Room) -> list[DrafterGraph]:
    """Every graph of a bundle."""
    stored = own.beside(target)
    found = []
    if room.profile.symbolic:
        form = Form("step", room.profile.lowering, None, None, positions(room.context), room.step)
        found.append(step(net, own, stored, form, "step"))
        if net.kind == "eagle3":
            found.append(fuse(net, own, stored, form))
    return found + [step(net, own, stored, form, role) for role, form in _static(room)]


def _static(room: Room) -> Iterator[tuple[str, Form]]:
    roles = [("prefill", room.profile.prefill), ("catchup", max(room.widths)), *(("expand", s) for s in EXPAND)]
    for past in buckets(room.profile, room.context):
        for role, width in roles:
            yield role, Form("verify", room.profile.static, width, past, positions(room.context), room.activation)


def step(net: Eagle, own: StoredEagle, stored: Stored, form: Form, role: str) -> DrafterGraph:
    """The graph of one of the roles that reads the cache."""
    site = Site(Graph(stored.weights_file, stored.opset), form.activation, stored.accuracy_level)
    made = Made(net, own, Build(site, net.config, stored, form), lowering(form.lowering), role)
    _answer(made, *_layers(made, *_inputs(made)))
    borrowed = [] if net.own_embedding else [EMBEDDING]
    if not net.own_head and borrowed_head(net.target) not in borrowed:
        borrowed.append(borrowed_head(net.target))
    return _graph(made, _step_inputs(made), _step_outputs(made), tuple(borrowed))


def fuse(net: Eagle, own: StoredEagle, stored: Stored, form: Form) -> DrafterGraph:
    """The graph of role "fuse", of any width."""
    site = Site(Graph(stored.weights_file, stored.opset), form.activation, stored.accuracy_level)
    made = Made(net, own, Build(site, net.config, stored, form), lowering(form.lowering), "fuse")
    _give(made, _fused(made, _rows_of(made, "taps")), "features")
    build = made.build
    inputs = (build.tensor("taps", 1, build.width, net.read_size),)
    return _graph(made, inputs, (build.tensor("features", 1, build.width, net.config.hidden_size),), ())


def _graph(
    made: Made, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], borrows: tuple[str, ...]
) -> DrafterGraph:
    form = made.build.form
    sizes = [f"{k}{n}" for k, n in (("s", form.width), ("p", form.past)) if n is not None]
    name = "-".join([METHOD, made.role, form.lowering, *sizes])
    model = made.build.site.graph.model(name, inputs, outputs)
    return DrafterGraph(
        name, made.role, form.lowering, form.width, form.past, tuple(inputs), tuple(outputs), borrows, model
    )


def _step_inputs(made: Made) -> tuple[TensorSpec, ...]:
    build = made.build
    size = made.net.read_size if made.fuses else made.net.config.hidden_size
    rows = (TensorSpec("rows", "int32", ("R",)),) if made.role == "step" else ()
    features = build.tensor("features", 1, build.width, size)
    return (TensorSpec("input_ids", "int32", (1, build.width)), features, *rows, *made.how.inputs(build))


def _step_outputs(made: Made) -> tuple[TensorSpec, ...]:
    build, net = made.build, made.net
    asked = {"step": "R", "expand": build.width}.get(made.role, 1)
    logits = (build.tensor("logits", 1, asked, net.config.vocab_size),) if made.role == "step" else ()
    return (
        TensorSpec("top_ids", "int32", (1, asked, net.top)),
        build.tensor("top_logprobs", 1, asked, net.top),
        *logits,
        build.tensor("hidden", 1, asked, net.config.hidden_size),
        *made.how.outputs(build),
    )


def _rows_of(made: Made, name: str) -> str:
    """An input [1, S, n] as [S, n]."""
    site = made.build.site
    return site.graph.op("Squeeze", (name, site.ints(0)), f"/{name}/Squeeze")


def _inputs(made: Made) -> tuple[str, str]:
    """Embeddings and features, both [S, H]."""
    build = made.build
    embedded = embed(build.site, build.stored.embedding, _rows_of(made, "input_ids"), "/embed_tokens")
    features = _rows_of(made, "features")
    return embedded, _fused(made, features) if made.fuses and made.net.kind == "eagle3" else features


def _fused(made: Made, taps: str) -> str:
    """EAGLE-3: fc of the tapped layers [S, T * H_target], normed as the options say: [S, H]."""
    net, build, how = made.net, made.build, made.how
    graph, norms = build.site.graph, build.stored.norms
    if net.options.tap_norms:
        pieces = graph.split(taps, len(net.taps), -1, "/taps/Split")
        normed = [how.norm(build, x, norms[f"fc_norm.{i}"], f"/fc_norm.{i}") for i, x in enumerate(pieces)]
        taps = graph.concat(normed, -1, "/fc_norm/Concat")
    if net.options.norm_before_fc:
        taps = how.norm(build, taps, norms["input_norm"], "/input_norm")
    return project(build.site, build.stored.groups["fc"], taps, "")[0]


def _layers(made: Made, embedded: str, features: str) -> tuple[str, str]:
    """(what lm_head reads, what is fed back), both [S, H]."""
    net, build, how = made.net, made.build, made.how
    residual, reads = _entry(made, embedded, features)
    last = net.config.layers - 1
    for i in range(net.config.layers):
        residual, y = _layer(made, i, residual, reads)
        following = f"layers.{i + 1}.input_layernorm" if i < last else "norm"
        path = f"/layers.{i + 1}/input_layernorm" if i < last else "/norm"
        if following in build.stored.norms:
            residual, reads = how.add_norm(build, residual, y, build.stored.norms[following], path)
        else:  # EAGLE-1 has no final norm
            residual = reads = build.site.graph.op("Add", (residual, y), "/residual/Add")
    return reads, reads if net.options.norm_output else residual


def _entry(made: Made, embedded: str, features: str) -> tuple[str, str]:
    """(residual, what the projections of layer 0 read)."""
    build, how, norms = made.build, made.how, made.build.stored.norms
    graph = build.site.graph
    if made.net.kind == "eagle":
        both = graph.concat((embedded, features), -1, "/fc/Concat")
        (x,) = project(build.site, build.stored.groups["fc"], both, "")
        return x, x
    left = how.norm(build, embedded, norms["layers.0.input_layernorm"], "/layers.0/input_layernorm")
    right = how.norm(build, features, norms["layers.0.hidden_norm"], "/layers.0/hidden_norm")
    residual = right if made.net.options.norm_before_residual else features
    return residual, graph.concat((left, right), -1, "/layers.0/Concat")


def _layer(made: Made, i: int, residual: str, reads: str) -> tuple[str, str]:
    """(residual after attention, what the MLP adds to it)."""
    build, how, groups, path = made.build, made.how, made.build.stored.groups, f"/layers.{i}"
    qkv = project(build.site, groups[f"layers.{i}.self_attn.qkv"], reads, f"{path}/attn")
    attention = how.attend(build, qkv, i)
    (y,) = project(build.site, groups[f"layers.{i}.self_attn.o"], attention, f"{path}/attn")
    gamma = build.stored.norms[f"layers.{i}.post_attention_layernorm"]
    residual, normed = how.add_norm(build, residual, y, gamma, f"{path}/post_attention_layernorm")
    gate_up = project(build.site, groups[f"layers.{i}.mlp.gate_up"], normed, f"{path}/mlp")
    inner = swiglu(build.site, gate_up, f"{path}/mlp")
    (y,) = project(build.site, groups[f"layers.{i}.mlp.down"], inner, f"{path}/mlp")
    return residual, y


def _answer(made: Made, normed: str, fed: str) -> None:
    """The outputs besides the cache, of the rows that are asked for."""
    site, graph = made.build.site, made.build.site.graph
    logits = matmul(site, made.build.stored.head, _asked(made, normed), "/lm_head")
    logprobs = graph.op("LogSoftmax", (logits,), "/top/LogSoftmax", {"axis": -1})
    best, places = graph.ops("TopK", (logprobs, site.ints(made.net.top)), "/top/TopK", ("/top/best", "/top/places"))
    if made.own.ids is None:
        ids = graph.op("Cast", (places,), "/top/Cast", {"to": _kind("int32")})
    else:
        ids = graph.op("Gather", (graph.stored(made.own.ids), places), "/top/Gather", {"axis": 0})
    _give(made, ids, "top_ids")
    _give(made, best, "top_logprobs")
    _give(made, _asked(made, fed), "hidden")
    if made.role == "step":
        _give(made, logits, "logits")


def _asked(made: Made, x: str) -> str:
    """All rows of an "expand" graph, those of the input `rows` of a step, the last row of the others."""
    if made.role == "expand":
        return x
    site = made.build.site
    rows = "rows" if made.role == "step" else site.ints((made.build.form.width or 1) - 1)
    return site.graph.once(("asked", x), lambda: site.graph.op("Gather", (x, rows), f"{x}/rows", {"axis": 0}))


def _give(made: Made, x: str, name: str) -> None:
    """x [rows, n] as the output [1, rows, n]."""
    site = made.build.site
    site.graph.rename({site.graph.op("Unsqueeze", (x, site.ints(0)), f"/{name}/Unsqueeze"): name})


def _kind(dtype: str) -> int:
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
