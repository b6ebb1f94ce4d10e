"""Drafters with weights inside a bundle: paths enter, opened drafters, their records, graphs and checks leave.

attach -> taps of the target's graphs -> store beside the target's weights -> write graphs -> check them
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from spec_edge.export.drafter_files import open_files
from spec_edge.export.rules import Place
from spec_edge.export.suited import suited
from spec_edge.export.written import file_fact
from spec_edge.models.checkpoint import ModelConfig, Weights
from spec_edge.models.contract import BadUsage, DrafterFact, GraphSpec, Source, SpecError
from spec_edge.models.drafter import (
    AsStored,
    DrafterFiles,
    DrafterGraph,
    DrafterKind,
    Feeds,
    MakeGraphs,
    OpenDrafter,
    Room,
    kind_of,
    kinds,
)
from spec_edge.models.schemes.scheme import scheme
from spec_edge.models.store import WeightStore
from spec_edge.models.stored import Stored, Writer
from spec_edge.runtime.bundle import Bundle
from spec_edge.runtime.providers.opening import on_cpu, run_once
from spec_edge.targets.target import Target

EXACT = 1e-3
"""Largest share by which an fp32 graph may differ from numpy."""
ACCURACY = "medusa_head_accuracy"
"""Key of a drafter's config.json: for each head, how often the target's token is its best, its second best ..."""
ROUNDED = 0.1
"""The same for other precisions, whose matmuls round activations too: past it something is wrong, not inexact."""


@dataclass(frozen=True)
class Attached:
    """A checkpoint that fits the target."""

    kind: DrafterKind
    files: DrafterFiles
    drafter: OpenDrafter


@dataclass(frozen=True)
class Placed:
    """A drafter whose weights are stored: its record, and what makes its graphs."""

    attached: Attached
    fact: DrafterFact
    make: MakeGraphs


def methods() -> tuple[str, ...]:
    """Names of the methods that bring weights: each is an option of spec-export."""
    return tuple(dict.fromkeys(kind.method for kind in kinds()))


def attach(
    paths: Mapping[str, Path], target: ModelConfig, stack: ExitStack, weights: bool = True
) -> tuple[Attached, ...]:
    """The checkpoint of each method, checked against the target. weights: False takes a config.json alone."""
    return tuple(_attach(method, path, target, stack, weights) for method, path in paths.items())


def _attach(method: str, path: Path, target: ModelConfig, stack: ExitStack, weights: bool) -> Attached:
    files = open_files(path, stack, weights)
    kind = kind_of(files)
    if kind is None:
        raise SpecError(f"{path} is no drafter that is known; spec-export inspect '{path}' says what it is")
    if kind.method != method:
        raise BadUsage(f"{path} holds {kind.name} weights, not {method}: give it with --{kind.method}")
    return Attached(kind, files, kind.open(files, target))


def taps(attached: Sequence[Attached]) -> tuple[int, ...]:
    """Layers that the target's graphs must give. SpecError: two drafters read different ones."""
    read = dict.fromkeys(a.drafter.taps for a in attached if a.drafter.taps)
    if len(read) > 1:
        layers = " and ".join(str(list(t)) for t in read)
        raise SpecError(f"drafters that read different layers do not fit into one bundle: {layers}; export them apart")
    return next(iter(read), ())


def place(
    attached: Sequence[Attached], store: WeightStore, dtypes: tuple[str, ...], room: Room, target: Weights, folder: Path
) -> tuple[Placed, ...]:
    """Store every drafter's tensors behind the target's, and its vocabulary as a file."""
    return tuple(_place(a, Writer(store, dtypes), room, target, folder) for a in attached)


def _place(attached: Attached, out: Writer, room: Room, target: Weights, folder: Path) -> Placed:
    kind, drafter = attached.kind, attached.drafter
    before = out.store.fact().bytes
    make = drafter.store(out, room, target)
    ids = drafter.vocabulary
    vocabulary = None
    if ids is not None:
        vocabulary = file_fact(folder, f"{kind.method}-vocabulary.bin", ids.astype("<i4").tobytes())
    fact = DrafterFact(
        name=kind.method,
        kind=kind.name,
        reads=drafter.reads,
        bytes=out.store.fact().bytes - before,
        source=attached.files.source or Source("none", attached.files.name, 0, ""),
        heads=drafter.heads,
        accuracy=accuracy(attached.files, drafter.heads),
        cache=drafter.cache,
        vocabulary=vocabulary,
    )
    return Placed(attached, fact, make)


def accuracy(files: DrafterFiles, heads: int) -> tuple[tuple[float, ...], ...]:
    """[head][rank], as measured by whoever trained the heads (config.json); () where nobody did."""
    found = files.config.get(ACCURACY)
    if found is None:
        return ()
    rows = found if isinstance(found, list) else []
    rates = [rate for row in rows if isinstance(row, list) for rate in row]
    if len(rows) != heads or not all(isinstance(row, list) and row for row in rows):
        raise SpecError(
            f"{files.name}: config.json: '{ACCURACY}' must be a list of rates for each of the {heads} heads"
        )
    if not all(type(rate) in (int, float) and 0 <= rate <= 1 for rate in rates):
        raise SpecError(f"{files.name}: config.json: '{ACCURACY}' must hold rates between 0 and 1")
    return tuple(tuple(float(rate) for rate in row) for row in rows)


def write_graphs(
    placed: Sequence[Placed], stored: Stored, room: Room, target: Target, folder: Path
) -> tuple[GraphSpec, ...]:
    """Every graph of every drafter, as files beside the weights."""
    return tuple(
        graph.spec(p.fact.name, file_fact(folder, f"{graph.name}.onnx", graph_file(p.fact.name, graph, room, target)))
        for p in placed
        for graph in p.make(stored, room)
    )


def graph_file(network: str, graph: DrafterGraph, room: Room, target: Target) -> bytes:
    """SpecError: it breaks a rule of the target."""
    place = Place(graph.name, network, graph.role, graph.width, graph.past)
    return suited(graph.model, place, target, room.precision)


def check_drafters(placed: Sequence[Placed], bundle: Bundle, target: Weights) -> None:
    """Each drafter's graphs against its numpy forward on a few rows; SpecError past the bound."""
    precision = bundle.manifest.precision
    as_stored = AsStored(target, scheme(precision).pack)
    for p in placed:
        for graph in (g for g in bundle.manifest.graphs if g.network == p.fact.name):
            error = p.attached.drafter.check(graph, _runner(bundle, graph), as_stored, precision)
            if error is not None and not error <= (EXACT if precision == "fp32" else ROUNDED):
                raise SpecError(f"graph {graph.name} differs from numpy by a share of {error:.2g}; nothing was written")


def _runner(bundle: Bundle, graph: GraphSpec) -> Any:
    opened = on_cpu(bundle)(graph)

    def run(feeds: Feeds) -> dict[str, NDArray[Any]]:
        return run_once(opened, graph, dict(feeds))

    return run
