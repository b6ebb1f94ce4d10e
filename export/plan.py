"""`spec-export build --dry-run`: what an export would make, from configurations alone.

Enters: the options of a build. Leaves: every graph with its shapes, the sizes of the files, and what the networks take
in memory. No weights are loaded, and none need to be there: a config.json of the model and of each drafter is enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import groupby

from spec_edge.export.build import context_of
from spec_edge.export.candidate import WEIGHTS, rope_facts
from spec_edge.export.drafters import Attached, attach, graph_file, taps
from spec_edge.export.keeping import keep_file
from spec_edge.export.memory import Memory, cache_bytes, drafter_cache, megabytes, memory_lines, side_by_side
from spec_edge.export.options import AUTO, BuildOptions
from spec_edge.export.parts import parts_needed, parts_of
from spec_edge.export.rules import Place
from spec_edge.export.shipped import shipped_for
from spec_edge.export.suited import suited
from spec_edge.models.checkpoint import ModelConfig
from spec_edge.models.contract import SpecError, TensorSpec
from spec_edge.models.decoder import build
from spec_edge.models.drafter import DrafterGraph, Room
from spec_edge.models.fetch import resolve
from spec_edge.models.forms import Form, forms
from spec_edge.models.keep_graph import NAME, NETWORK
from spec_edge.models.open import open_config
from spec_edge.models.planned import PlannedStore, plannable, planned_model, planned_weights
from spec_edge.models.stored import Stored, Writer
from spec_edge.targets.target import Target


@dataclass(frozen=True)
class PlannedFile:
    """A file of the bundle. bytes: exact for weights, within a few per cent for graphs; shapes: inputs -> outputs."""

    file: str
    network: str
    bytes: int
    shapes: str


@dataclass(frozen=True)
class PlannedDrafter:
    """tensors: its own ones as the file will hold them, by name; borrows: the target's that it uses."""

    name: str
    kind: str
    reads: str
    taps: tuple[int, ...]
    tensors: dict[str, tuple[int, ...]]
    borrows: tuple[str, ...]


@dataclass(frozen=True)
class Planned:
    """What a build with these options would make, text files and the check's reference left out."""

    model: str
    target: str
    precision: str
    context: int
    hidden_size: int
    layers: int
    vocab_size: int
    bytes: int
    files: tuple[PlannedFile, ...]
    drafters: tuple[PlannedDrafter, ...]
    memory: tuple[Memory, ...]


def plan_bundle(options: BuildOptions) -> Planned:
    """The plan. SpecError: a configuration that an export would refuse too."""
    name, config = open_config(resolve(options.model))
    precision = _precision(options)
    room = Room(options.target, precision, context_of(options, config), options.widths)
    with ExitStack() as stack:
        paths = options.with_shipped(shipped_for(options.model))
        attached = attach(paths, config, stack, weights=False)
        files, graphs, sizes, whole = _network(config, room, attached, options.target, parts_of(options, config))
    drafters = [
        PlannedDrafter(
            a.kind.method,
            a.kind.name,
            a.drafter.reads,
            a.drafter.taps,
            dict(a.drafter.tensors),
            tuple(sorted({b for graph in graphs[a.kind.method] for b in graph.borrows})),
        )
        for a in attached
    ]
    rows = [
        (a.kind.method, a.kind.name, size, drafter_cache(a.drafter.cache, room.context))
        for a, size in zip(attached, sizes, strict=True)
    ]
    if options.draft is not None:
        rows.append(_draft(options, room))
    memory = side_by_side((name, whole - sum(sizes), _cache(config, room.context)), rows)
    return Planned(
        model=name,
        target=options.target.name,
        precision=precision,
        context=room.context,
        hidden_size=config.hidden_size,
        layers=config.layers,
        vocab_size=config.vocab_size,
        bytes=sum(file.bytes for file in files),
        files=files,
        drafters=tuple(drafters),
        memory=memory,
    )


def _precision(options: BuildOptions) -> str:
    """`auto` tries the target's precisions in order: the first one whose sizes follow from shapes."""
    if options.precision != AUTO:
        return options.precision
    return next(name for name in options.target.precisions if name in plannable())


def _network(
    config: ModelConfig, room: Room, attached: Sequence[Attached], target: Target, parts: int | None
) -> tuple[tuple[PlannedFile, ...], dict[str, list[DrafterGraph]], list[int], int]:
    """Files, graphs of each drafter, bytes of each, bytes of the weights file."""
    wanted = forms(room.profile, room.precision, room.context, room.widths, taps(attached))
    stored, whole = _stored(config, room, wanted)
    parts = parts or parts_needed(config, whole, target.most_weights)
    wanted = forms(room.profile, room.precision, room.context, room.widths, taps(attached), parts)
    files = [_form_file(config, stored, form, room, target) for form in wanted]
    if kept := keep_file(config, target, room.precision):
        files.append(PlannedFile(f"{NAME}.onnx", NETWORK, len(kept[0]), _shapes(*kept[1:])))
    graphs: dict[str, list[DrafterGraph]] = {}
    sizes = []
    for a in attached:
        store = PlannedStore(WEIGHTS)
        make = a.drafter.planned().store(Writer(store, _dtypes(wanted)), room, planned_weights(config))
        graphs[a.kind.method] = list(make(stored, room))
        files += [_graph_file(a.kind.method, graph, room, target) for graph in graphs[a.kind.method]]
        sizes.append(store.size)
    whole += sum(sizes)
    weights = PlannedFile(WEIGHTS, "", whole, "all networks")
    return (weights, *files), graphs, sizes, whole


def _stored(config: ModelConfig, room: Room, wanted: Sequence[Form]) -> tuple[Stored, int]:
    table = max(form.context for form in wanted)
    return planned_model(config, rope_facts(config), room.precision, WEIGHTS, table, _dtypes(wanted))


def _dtypes(wanted: Sequence[Form]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(form.activation for form in wanted))


def _form_file(config: ModelConfig, stored: Stored, form: Form, room: Room, target: Target) -> PlannedFile:
    model, signature = build(config, stored, form)
    size = len(suited(model, Place(form.name, "target", form.role, form.width, form.past), target, room.precision))
    return PlannedFile(f"{form.name}.onnx", "target", size, _shapes(signature.inputs, signature.outputs))


def _graph_file(network: str, graph: DrafterGraph, room: Room, target: Target) -> PlannedFile:
    size = len(graph_file(network, graph, room, target))
    return PlannedFile(f"{graph.name}.onnx", network, size, _shapes(graph.inputs, graph.outputs))


def _shapes(inputs: Iterable[TensorSpec], outputs: Iterable[TensorSpec]) -> str:
    return f"{_side(inputs)} -> {_side(outputs)}"


def _side(tensors: Iterable[TensorSpec]) -> str:
    """`logits[1,8,32000]`; the cache tensors of all layers as one: `past_*[1,32,512,128] x 64`."""

    def stem(tensor: TensorSpec) -> str:
        name, dot, _ = tensor.name.partition(".")
        return f"{name.partition('_')[0]}_*" if dot else name

    parts = []
    for name, group in groupby(tensors, key=stem):
        same = list(group)
        shape = ",".join(str(d) for d in same[0].shape)
        parts.append(f"{name}[{shape}]" + (f" x {len(same)}" if len(same) > 1 else ""))
    return " ".join(parts)


def _cache(config: ModelConfig, context: int) -> int:
    return cache_bytes(config.layers, config.kv_heads, config.head_dim, context)


def _draft(options: BuildOptions, room: Room) -> tuple[str, str, int, int]:
    """The draft model as a row of the memory table."""
    assert options.draft is not None
    name, config = open_config(resolve(options.draft))
    own = replace(room, context=min(room.context, config.context))
    wanted = forms(own.profile, own.precision, own.context, own.widths)
    return "draft", name, _stored(config, own, wanted)[1], _cache(config, own.context)


def plan_lines(plan: Planned) -> list[str]:
    """The plan for people."""
    lines = [
        f"{plan.model}: a plan, nothing is written",
        f"  {plan.layers} layers, hidden size {plan.hidden_size}, vocabulary {plan.vocab_size}",
        f"  precision {plan.precision}, target {plan.target}, context {plan.context}, {len(plan.files) - 1} graphs, "
        f"{megabytes(plan.bytes)}",
    ]
    width = max(len(file.file) for file in plan.files)
    lines += [f"  {file.file:<{width}} {megabytes(file.bytes):>10}  {file.shapes}" for file in plan.files]
    for drafter in plan.drafters:
        taps = f" of layers {', '.join(map(str, drafter.taps))}" if drafter.taps else ""
        borrowed = f", borrows {', '.join(drafter.borrows)}" if drafter.borrows else ""
        lines.append(f"  {drafter.name} ({drafter.kind}) reads {drafter.reads}{taps}{borrowed}; its own tensors:")
        width = max(len(name) for name in drafter.tensors)
        lines += [f"    {name:<{width}} {list(shape)}" for name, shape in drafter.tensors.items()]
    return lines + memory_lines(plan.memory)


def check_plannable(options: BuildOptions) -> None:
    """SpecError: a precision that no plan knows."""
    if options.precision not in (AUTO, *plannable()):
        raise SpecError(
            f"--dry-run knows auto, {', '.join(plannable())}; with {options.precision} the sizes are the file's own"
        )
