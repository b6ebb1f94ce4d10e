"""`spec-edge doctor`: what this machine has, what each target's bundle would run on here, and what is missing.

Enters: nothing, or a bundle's folder. Leaves: a `Report`. Providers are asked in a child process: one that crashes or
hangs is a line of the report, and the others are asked by a new child.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from spec_edge.models.contract import SpecError
from spec_edge.runtime import hardware
from spec_edge.runtime.asking import ASKED, COMMAND, TIMEOUT_S, Provider, asked, installed
from spec_edge.runtime.bench.machine import physical_cores, processor
from spec_edge.runtime.bundle import Bundle, open_bundle
from spec_edge.runtime.compiled_store import Entry, clear, entries, store_folder
from spec_edge.runtime.known_bad import known_bad
from spec_edge.runtime.onnx_nodes import nodes_of, operations
from spec_edge.runtime.providers import provider as providers
from spec_edge.runtime.providers.opening import unsuited
from spec_edge.runtime.remembered import folder_of, forget_all
from spec_edge.runtime.smoke import SMOKE
from spec_edge.targets.target import Target, recorded, targets

NOTHING: Mapping[str, str] = {}


@dataclass(frozen=True)
class Runs:
    """What a target's bundle would run on here. here: "" for nothing. before: reasons of those before it, by name."""

    target: str
    chain: tuple[str, ...]
    here: str
    before: dict[str, str]
    refuses: str = ""


@dataclass(frozen=True)
class Graph:
    """A graph of a bundle. operations: estimated, of one run (of one row where it is any-width). compiled: bytes of
    its compiled forms by provider."""

    name: str
    nodes: int
    operations: int
    compiled: dict[str, int]


@dataclass(frozen=True)
class BundleFacts:
    """A bundle and its chain. compiled_bytes: of all its compiled graphs, each with the weights inside."""

    folder: str
    model: str
    precision: str
    runs: Runs
    graphs: tuple[Graph, ...]
    compiled_bytes: int


@dataclass(frozen=True)
class Report:
    """All of it, in the order in which it is shown. tried_graphs: opened by a child for providers that keep nothing."""

    version: str
    system: str
    python: str
    processor: str
    cores: int
    packages: dict[str, str]
    warnings: tuple[str, ...]
    hardware: tuple[hardware.Device, ...]
    providers: tuple[Provider, ...]
    targets: tuple[Runs, ...]
    compiled_graphs: int
    compiled_bytes: int
    compiled_folder: str
    tried_graphs: int
    bundle: BundleFacts | None


def examine(folder: Path | None = None, command: Sequence[str] = COMMAND, timeout_s: float = TIMEOUT_S) -> Report:
    """folder: of a bundle. SpecError: it is none, or damaged."""
    bundle = None if folder is None else open_bundle(folder)
    packages = installed()
    own = packages.pop("spec-edge", "")
    found = asked(command, timeout_s)
    every = entries()
    kept = [entry for entry in every if _keeps(entry.made.provider)]
    return Report(
        version=own,
        system=f"{platform.system()} {platform.release()}, {platform.machine()}",
        python=platform.python_version(),
        processor=processor(),
        cores=physical_cores(),
        packages=packages,
        warnings=tuple(known_bad(packages)),
        hardware=hardware.devices(),
        providers=tuple(found.values()),
        targets=tuple(runs(profile, found) for profile in targets()),
        compiled_graphs=len(kept),
        compiled_bytes=sum(entry.bytes for entry in kept),
        compiled_folder=str(store_folder()),
        tried_graphs=len(every) - len(kept),
        bundle=None if bundle is None else _bundle(bundle, found, kept),
    )


def _keeps(name: str) -> bool:
    """Whether what is kept for a provider is a compiled graph."""
    try:
        return providers.provider(name).keeps
    except SpecError:  # a provider that this version does not know
        return True


def forget() -> tuple[int, int]:
    """How many compiled graphs (with compilers that failed), and looks at devices, there were: none is kept."""
    forget_all(folder_of(ASKED))
    return clear(), forget_all(folder_of(SMOKE))


def runs(profile: Target, found: Mapping[str, Provider], unsuited: Mapping[str, str] = NOTHING) -> Runs:
    """The first provider of the target's chain that is ready, and why those before it are not. unsuited: why some are
    not for a bundle."""
    before: dict[str, str] = {}
    chain = tuple(provider.name for provider in profile.providers)
    for name in chain:
        state = found.get(name)
        if state is not None and state.state == "ready" and not unsuited.get(name):
            return Runs(profile.name, chain, name, before)
        before[name] = "it is unknown here" if state is None else state.reason or unsuited.get(name, "")
    return Runs(profile.name, chain, "", before, profile.refuses)


def _bundle(bundle: Bundle, found: Mapping[str, Provider], kept: Sequence[Entry]) -> BundleFacts:
    facts = bundle.manifest
    by_graph: dict[str, dict[str, int]] = {}
    for entry in kept:
        if entry.made.weights_sha256 == facts.weights.sha256:
            sizes = by_graph.setdefault(entry.made.graph_sha256, {})
            sizes[entry.made.provider] = sizes.get(entry.made.provider, 0) + entry.bytes
    graphs = []
    for graph in facts.graphs:
        nodes = nodes_of(bundle.path(graph.file).read_bytes())
        cost = sum(operations(graph, nodes).values())
        graphs.append(Graph(graph.name, len(nodes.nodes), cost, by_graph.get(graph.file.sha256, {})))
    total = sum(size for graph in graphs for size in graph.compiled.values())
    profile = recorded(facts.target)
    chain = [providers.provider(p.name) for p in profile.providers]
    runs_here = runs(profile, found, {on.name: unsuited(bundle, on, "target") for on in chain})
    return BundleFacts(str(bundle.folder), facts.model.name, facts.precision, runs_here, tuple(graphs), total)
