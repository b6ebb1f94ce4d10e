"""`spec-export compile`: the fixed-width graphs of a bundle through a target's compiler, ahead of time.

Enters: a bundle and a target's name. Leaves: artefacts (OpenVINO blobs, QNN context binaries, EPContext models) in the
cache of compiled graphs, copies of them in a folder if one is named, and a report per graph. Each graph is compiled in
a child process, so that a compiler which hangs or crashes is a line of the report. No device is used: an artefact
shows that the target's compiler takes the graph, not that the device runs it.
"""

from __future__ import annotations

import fnmatch
import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import onnx

from spec_edge.export.rules import Place, breaches
from spec_edge.models.contract import BadUsage, GraphSpec, SpecError
from spec_edge.runtime.bundle import Bundle, open_bundle
from spec_edge.runtime.compiled_store import ENTRY, entry
from spec_edge.runtime.compiling import CompileSettings, Progress, compiled, settings_from
from spec_edge.runtime.providers.provider import Found, Job, Provider, ProviderFailed, provider
from spec_edge.targets.target import Target, target

REPORT = "compiled.json"


@dataclass(frozen=True)
class CompileOptions:
    """What to compile.

    graphs     patterns of graph names (`verify-*`); (): all
    timeout_s  for one graph; None: the setting of the environment
    out        folder for copies of the artefacts; None: they stay in the cache
    here       for the device of this machine, with the options that `spec-edge` uses, so that its cache is filled
    again      compile what is in the cache, and what failed before
    """

    bundle: Path
    target: str
    graphs: tuple[str, ...] = ()
    timeout_s: float | None = None
    out: Path | None = None
    here: bool = False
    again: bool = False


@dataclass(frozen=True)
class CompiledGraph:
    """One graph. on_target: of its `nodes`, those in the artefact; why_not: "" if it was compiled."""

    graph: str
    network: str
    role: str
    width: int
    past: int | None
    compiled: bool
    nodes: int
    on_target: int
    seconds: float
    peak_bytes: int | None
    bytes: int
    why_not: str


@dataclass(frozen=True)
class CompileReport:
    """All graphs. device and versions: as the provider says; bytes: of all artefacts together."""

    bundle: str
    target: str
    provider: str
    device: str
    versions: dict[str, str]
    graphs: tuple[CompiledGraph, ...]
    bytes: int

    @property
    def complete(self) -> bool:
        return all(graph.compiled for graph in self.graphs)


def compile_bundle(
    options: CompileOptions,
    progress: Progress | None = None,
    named: Callable[[str], Provider] = provider,
    settings: CompileSettings | None = None,
) -> CompileReport:
    """Compile the graphs, one after another. ProviderMissing: no compiler is here, and what to install.

    progress: called with a graph's name and the seconds so far. named: gives the provider of a name.
    """
    profile = target(options.target)
    if profile.refuses:
        raise SpecError(f"nothing is compiled for {profile.name}: {profile.refuses}")
    maker, arguments = _compiler(profile, options.here, named)
    bundle = open_bundle(options.bundle)
    _check_out(options.out, bundle)
    graphs = _graphs(bundle, profile, options.graphs)
    found = maker.find(arguments)
    settings = settings or settings_from(os.environ)
    timeout_s = options.timeout_s or settings.timeout_s
    settings = replace(settings, timeout_s=timeout_s, again=options.again, tried=options.here)
    work = _Work(bundle, profile, maker, found, arguments, settings, options.out, progress)
    made = tuple(_graph(work, graph) for graph in graphs)
    total = sum(graph.bytes for graph in made)
    name = str(options.bundle)
    report = CompileReport(name, profile.name, maker.name, found.device, dict(found.versions), made, total)
    if options.out is not None:
        (options.out / REPORT).write_text(json.dumps(asdict(report), indent=1), encoding="utf-8")
    return report


@dataclass(frozen=True)
class _Work:
    bundle: Bundle
    profile: Target
    maker: Provider
    found: Found
    arguments: dict[str, str]
    settings: CompileSettings
    out: Path | None
    progress: Progress | None


def _compiler(profile: Target, here: bool, named: Callable[[str], Provider]) -> tuple[Provider, dict[str, str]]:
    """The provider that compiles for this target, and its options."""
    chain = {found.name: dict(found.options) for found in profile.providers}
    if profile.compiler is not None and not here:
        return named(profile.compiler.provider), chain[profile.compiler.provider] | dict(profile.compiler.arguments)
    for name, options in chain.items():
        if (maker := named(name)).compile is not None and maker.keeps:
            return maker, options
    raise BadUsage(f"no provider of target {profile.name} compiles ahead of time: its graphs are compiled when opened")


def _check_out(out: Path | None, bundle: Bundle) -> None:
    """BadUsage: copies cannot go there, or would make the bundle one that nothing vouches for."""
    if out is None:
        return
    if bundle.folder in (out.resolve(), *out.resolve().parents):
        raise BadUsage(f"--out '{out}' lies in the bundle, which must hold its own files only; name another folder")
    if out.exists() and not out.is_dir():
        raise BadUsage(f"--out '{out}' is a file; name a folder")


def _graphs(bundle: Bundle, profile: Target, patterns: Sequence[str]) -> tuple[GraphSpec, ...]:
    fixed = [g for g in bundle.manifest.graphs if g.width is not None and g.lowering == profile.static]
    chosen = [g for g in fixed if not patterns or any(fnmatch.fnmatchcase(g.name, p) for p in patterns)]
    if not chosen:
        names = ", ".join(g.name for g in fixed) or "none"
        raise BadUsage(f"no fixed-width graph of the bundle is called so; its {profile.static} ones: {names}")
    return tuple(sorted(chosen, key=lambda g: (g.network != "target", g.network, g.past or 0, g.width or 0)))


def _graph(work: _Work, graph: GraphSpec) -> CompiledGraph:
    model = onnx.load(str(work.bundle.path(graph.file)), load_external_data=False)
    place = Place(graph.name, graph.network, graph.role, graph.width, graph.past)
    broken = next(breaches(model, place, work.profile.rules_of(work.bundle.manifest.precision)), None)
    count = len(model.graph.node)
    if broken is not None:
        return _failed(graph, count, f"does not suit target {work.profile.name}: {broken}")
    job = Job(work.bundle.path(graph.file), graph, work.bundle.manifest.weights, options=work.arguments)
    try:
        artefact = compiled(job, work.maker, work.found, work.settings, work.progress)
    except ProviderFailed as error:
        return _failed(graph, count, error.message)
    if artefact is None:
        return _failed(graph, count, f"{work.maker.name} compiles nothing ahead of time")
    left = _left_out(artefact)
    if work.out is not None:
        _copy(artefact.parent, work.out / graph.name)
    known = entry(artefact)
    return replace(
        _failed(graph, count, "" if not left else f"{left} nodes stay outside the compiled graph"),
        compiled=not left,
        on_target=count - left,
        seconds=known.made.seconds if known else 0.0,
        peak_bytes=known.made.peak_bytes if known else None,
        bytes=known.bytes if known else artefact.stat().st_size,
    )


def _failed(graph: GraphSpec, nodes: int, why: str) -> CompiledGraph:
    assert graph.width is not None
    place = (graph.name, graph.network, graph.role, graph.width, graph.past)
    return CompiledGraph(*place, False, nodes, 0, 0.0, None, 0, why)


def _left_out(artefact: Path) -> int:
    """Nodes beside the compiled ones, where the artefact is an ONNX model that holds them (EPContext); else 0."""
    try:
        model = onnx.load(str(artefact), load_external_data=False)
    except Exception:  # a blob of the compiler's own: all or nothing
        return 0
    kinds = [node.op_type for node in model.graph.node]
    return sum(kind != "EPContext" for kind in kinds) if "EPContext" in kinds else 0


def _copy(source: Path, folder: Path) -> None:
    """The artefact's files, without what the cache keeps for itself."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        if file.is_file() and file.name != ENTRY:
            shutil.copyfile(file, folder / file.name)


def report_lines(report: CompileReport) -> list[str]:
    """A line for each graph, then what it comes to."""
    made = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    lines = [f"{report.bundle} for {report.target}: {report.provider}, {report.device}{f' ({made})' if made else ''}"]
    lines += [f"  {graph.graph}: {_words(graph)}" for graph in report.graphs]
    count = sum(graph.compiled for graph in report.graphs)
    lines.append(f"  {count} of {len(report.graphs)} graphs compiled, {report.bytes / 1e6:.0f} MB")
    if count:
        lines.append("  compiled, not run: whether and how fast the device runs them is not shown")
    return lines


def _words(graph: CompiledGraph) -> str:
    if not graph.compiled:
        return f"not compiled: {graph.why_not}"
    peak = "" if graph.peak_bytes is None else f", peak {graph.peak_bytes / 1e6:.0f} MB"
    size = f"{graph.bytes / 1e6:.0f} MB" if graph.bytes >= 1e6 else f"{graph.bytes / 1e3:.0f} kB"
    return f"{graph.on_target} of {graph.nodes} nodes, {graph.seconds:.1f} s{peak}, {size}"
