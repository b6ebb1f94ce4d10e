"""Whether the parts of a manifest agree: its facts with the tensors that it states for its graphs.

Enters: a `Manifest` whose values make sense on their own (manifest_values.py). Leaves: nothing, or a SpecError. That
the graphs have the stated tensors is checked where each is opened (sessions/opening.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from spec_edge.models.contract import (
    CacheFacts,
    Dim,
    DrafterFact,
    GraphSpec,
    Manifest,
    ModelFacts,
    TensorSpec,
    layers_of,
    taps_of,
)
from spec_edge.runtime.manifest_values import fail

READS = {"medusa": "hidden", "eagle": "hidden", "eagle3": "taps"}
"""Kind of a drafter -> the target's output that it starts from."""

BORROWED = ("model.embed_tokens", "lm_head")
"""Target tensors that a drafter may use."""

FUSE, UNFUSED = "fuse", ("prefill", "catchup")
"""Roles of EAGLE that read the target's output itself; the others read the drafter's own features."""

ANSWER, LOGITS = ("top_ids", "top_logprobs", "hidden"), {"step": ("logits",)}
"""Outputs of EAGLE's graphs, and those of some roles."""

STATIC = ("input_ids", "cos", "sin", "bias_past", "bias_new")
"""Inputs of a graph of fixed width and past, besides the cache."""

_PAST = re.compile(r"past_(?:key|value)\.\d+")
Tensors = Mapping[str, tuple[Dim, ...]]


def agree(manifest: Manifest) -> None:
    """Refuse a manifest whose facts are not those of its graphs."""
    for i, graph in enumerate(manifest.graphs):
        if strangers := [name for name in graph.borrows if name not in BORROWED or graph.network == "target"]:
            fail(f"graphs[{i}].borrows", f"names {ascii(strangers[0])[:60]}, which no graph of this network borrows")
    for i, graph in enumerate(manifest.graphs):
        _sizes(graph, f"graphs[{i}]")
    for graph in _of(manifest, "target"):
        _cache(graph, manifest.model, "model")
        _features(graph, manifest.model)
    _whole(_of(manifest, "target"))
    for graph in _of(manifest, "cache"):
        _cache(graph, manifest.model, "model")
        _keeps(graph)
    for i, drafter in enumerate(manifest.drafters):
        where = f"drafters[{i}]"
        _reads(drafter, manifest, where)
        CHECKS[drafter.name](drafter, manifest, where)


def _cache(graph: GraphSpec, facts: ModelFacts | CacheFacts, where: str) -> None:
    """One key and one value of [1, kv_heads, past, head_dim] a layer."""
    past = {name: shape for name, shape in _shapes(graph.inputs).items() if _PAST.fullmatch(name)}
    own = layers_of(facts.layers, graph.part, graph.parts)
    if not own or past.keys() != {f"past_{kind}.{i}" for i in own for kind in ("key", "value")}:
        fail(f"{where}.layers", f"{facts.layers} are not the {len(past) // 2} of graph {graph.name}")
    for shape in past.values():
        found = dict(zip(("kv_heads", "head_dim"), shape[1::2], strict=False)) if len(shape) == 4 else {}
        for name in ("kv_heads", "head_dim"):
            if found.get(name) != getattr(facts, name):
                fail(f"{where}.{name}", f"{getattr(facts, name)} is not the {found.get(name)} of graph {graph.name}")


def _sizes(graph: GraphSpec, where: str) -> None:
    """Width and past are those of the tensors; a graph that has both has no size that is left open."""
    if graph.width is None or graph.past is None:
        return
    inputs, enters = _shapes(graph.inputs), f"residual.{graph.part}" if graph.part else STATIC[0]
    if lacking := [name for name in (enters, *STATIC[1:]) if name not in inputs]:
        fail(where, f"needs the input '{lacking[0]}' of graph {graph.name}")
    for tensor in (*graph.inputs, *graph.outputs):
        if any(isinstance(size, str) for size in tensor.shape):
            fail(where, f"has a width and a past, and '{tensor.name}' of graph {graph.name} has a size left open")
    if inputs["bias_past"] != (1, 1, graph.width, graph.past):
        fail(where, f"width {graph.width} and past {graph.past} are not those of graph {graph.name}")
    read = inputs[enters][:2] if graph.part else inputs[enters]  # the third of a residual is the model's
    if read != (1, graph.width) or inputs["bias_new"] != (1, 1, graph.width, graph.width):
        fail(f"{where}.width", f"{graph.width} is not that of graph {graph.name}")
    if any(shape[2:3] != (graph.past,) for name, shape in inputs.items() if _PAST.fullmatch(name)):
        fail(f"{where}.past", f"{graph.past} is not that of graph {graph.name}")


def _features(graph: GraphSpec, model: ModelFacts) -> None:
    outputs = _shapes(graph.outputs)
    taps = len(taps_of(model.taps, model.layers, graph.part, graph.parts)) * model.hidden_size
    found = outputs.get("taps")
    if (found is None) != (not taps) or (found is not None and (len(found) != 3 or found[-1] != taps)):
        fail("model.taps", f"{list(model.taps)} do not fit the output 'taps' of graph {graph.name}")
    for boundary, tensors in ((graph.part, _shapes(graph.inputs)), (graph.part + 1, outputs)):
        found = tensors.get(f"residual.{boundary}", ())
        if 0 < boundary < graph.parts and found != (1, graph.width, model.hidden_size):
            fail("model.hidden_size", f"{model.hidden_size} is not what goes in and out of graph {graph.name}")
    if graph.part + 1 < graph.parts:
        return
    if _last(outputs, "logits") != model.vocab_size:
        fail("model.vocab_size", f"{model.vocab_size} is not the {_last(outputs, 'logits')} of graph {graph.name}")
    if _last(outputs, "hidden") not in (None, model.hidden_size):
        fail("model.hidden_size", f"{model.hidden_size} is not the {_last(outputs, 'hidden')} of graph {graph.name}")


def _keeps(graph: GraphSpec) -> None:
    """The graph of models/keep_graph.py, by the names of its tensors."""
    past = [name for name in _shapes(graph.inputs) if _PAST.fullmatch(name)]
    named = {"rows", "at", *past, *(name.replace("past", "new") for name in past)}
    if named != _shapes(graph.inputs).keys() or _shapes(graph.outputs).keys() != {
        name.replace("past", "kept") for name in past
    }:
        fail("graphs", f"hold {graph.name}, whose tensors are not those of a graph that keeps rows")


def _whole(graphs: Iterable[GraphSpec]) -> None:
    """Of a network that is cut up every part is there, once."""
    groups: dict[tuple[object, ...], list[GraphSpec]] = {}
    for graph in graphs:
        groups.setdefault((graph.role, graph.lowering, graph.width, graph.past), []).append(graph)
    for found in groups.values():
        parts = found[0].parts
        if sorted((g.part, g.parts) for g in found) != [(i, parts) for i in range(parts)]:
            fail("graphs", f"hold {len(found)} of the {parts} parts that {found[0].name} is one of")


def _reads(drafter: DrafterFact, manifest: Manifest, where: str) -> None:
    if drafter.reads != READS[drafter.kind]:
        fail(f"{where}.reads", f"{drafter.reads}, but kind {drafter.kind} reads {READS[drafter.kind]}")
    ends = [g for g in _of(manifest, "target") if g.parts == 1 or (drafter.reads == "hidden" and g.part + 1 == g.parts)]
    if lacking := [g for g in ends if _last(_shapes(g.outputs), drafter.reads) is None]:
        fail(f"{where}.reads", f"{drafter.reads}, which graph {lacking[0].name} of the target does not give")


def _medusa(drafter: DrafterFact, manifest: Manifest, where: str) -> None:
    for graph in _of(manifest, drafter.name):
        for name in ("top_ids", "top_logprobs"):
            shape = _shapes(graph.outputs).get(name, ())
            if len(shape) != 3 or shape[1] != drafter.heads:
                fail(f"{where}.heads", f"{drafter.heads} do not fit the output '{name}' of graph {graph.name}")
        _width(graph, "hidden", manifest.model.hidden_size, where)


def _eagle(drafter: DrafterFact, manifest: Manifest, where: str) -> None:
    if drafter.heads != 1:
        fail(f"{where}.heads", f"{drafter.heads} is not 1, which kind {drafter.kind} has")
    graphs, model = _of(manifest, drafter.name), manifest.model
    roles = {graph.role for graph in graphs}
    if (FUSE in roles) != (drafter.kind == "eagle3" and "step" in roles):
        fail(f"{where}.kind", f"{drafter.kind} {'has no' if FUSE in roles else 'needs a'} graph of role '{FUSE}'")
    read = model.hidden_size * (len(model.taps) if drafter.reads == "taps" else 1)
    for graph in graphs:
        if graph.role == FUSE:
            _width(graph, "taps", read, where)
        else:
            _eagle_step(graph, drafter, model, read, where)


def _eagle_step(graph: GraphSpec, drafter: DrafterFact, model: ModelFacts, read: int, where: str) -> None:
    """A graph that reads the cache. read: numbers per row of what the drafter reads of the target."""
    assert drafter.cache is not None  # manifest_values: an EAGLE drafter has one
    _cache(graph, drafter.cache, f"{where}.cache")
    outputs = _shapes(graph.outputs)
    if lacking := [name for name in (*ANSWER, *LOGITS.get(graph.role, ())) if name not in outputs]:
        fail(where, f"needs the output '{lacking[0]}' of graph {graph.name}")
    ids = drafter.vocabulary.bytes // 4 if drafter.vocabulary else model.vocab_size
    if _last(outputs, "logits") not in (None, ids):
        fail(f"{where}.vocabulary", f"of {ids} ids is not the {_last(outputs, 'logits')} of graph {graph.name}")
    own = _last(outputs, "hidden") if drafter.kind == "eagle3" else model.hidden_size
    _width(graph, "features", read if graph.role in UNFUSED else own, where)


CHECKS: Mapping[str, Callable[[DrafterFact, Manifest, str], None]] = {"medusa": _medusa, "eagle": _eagle}
"""By the drafter's name."""


def _width(graph: GraphSpec, name: str, wanted: Dim | None, where: str) -> None:
    """Numbers per row of an input."""
    found = _last(_shapes(graph.inputs), name)
    if found is None or found != wanted:
        fail(where, f"needs {wanted} numbers a row in '{name}' of graph {graph.name}, which takes {found}")


def _of(manifest: Manifest, network: str) -> list[GraphSpec]:
    return [graph for graph in manifest.graphs if graph.network == network]


def _shapes(tensors: Iterable[TensorSpec]) -> Tensors:
    return {tensor.name: tensor.shape for tensor in tensors}


def _last(tensors: Tensors, name: str) -> Dim | None:
    return (tensors.get(name) or (None,))[-1]
