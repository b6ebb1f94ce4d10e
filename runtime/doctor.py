"""`spec-edge doctor`: what this machine has, what each target's bundle would run on here, and what is missing.

Enters: nothing, or a bundle's folder. Leaves: a `Report`. Providers are asked in a child process: one that crashes or
hangs is a line of the report, and the others are asked by a new child.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from spec_edge.runtime import hardware
from spec_edge.runtime.bench.machine import physical_cores, processor
from spec_edge.runtime.bundle import Bundle, open_bundle
from spec_edge.runtime.compiled_store import Entry, clear, entries, store_folder
from spec_edge.runtime.compiling import exit_words
from spec_edge.runtime.doctor_child import MARK
from spec_edge.runtime.known_bad import known_bad
from spec_edge.runtime.onnx_nodes import nodes_of, operations
from spec_edge.runtime.remembered import folder_of, forget_all
from spec_edge.runtime.smoke import SMOKE
from spec_edge.targets.target import Target, target, targets

COMMAND = (sys.executable, "-m", "spec_edge.runtime.doctor_child")
TIMEOUT_S = 30.0
"""For all providers together; one that has not answered by then hangs."""

PACKAGES = ("onnxruntime", "openvino", "windowsml", "voe")
"""Packages of providers, and how the names of others begin."""


@dataclass(frozen=True)
class Provider:
    """state  "ready", "missing", "broken" (it failed when it was asked) or "silent" (it took the child down or hung)
    device  "cpu", "gpu" or "npu"; "" where unknown
    found   the device that it would use; reason: why there is none
    """

    name: str
    state: str
    device: str = ""
    found: str = ""
    driver: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    reason: str = ""
    install: str = ""


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
    """All of it, in the order in which it is shown."""

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
    bundle: BundleFacts | None


def examine(folder: Path | None = None, command: Sequence[str] = COMMAND, timeout_s: float = TIMEOUT_S) -> Report:
    """folder: of a bundle. SpecError: it is none, or damaged."""
    bundle = None if folder is None else open_bundle(folder)
    installed = {(d.metadata["Name"] or "").lower(): d.version for d in distributions()}
    packages = {name: installed[name] for name in sorted(installed) if name.startswith(PACKAGES)}
    found = asked(command, timeout_s)
    kept = entries()
    return Report(
        version=installed.get("spec-edge", ""),
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
        bundle=None if bundle is None else _bundle(bundle, found, kept),
    )


def forget() -> tuple[int, int]:
    """How many compiled graphs (with compilers that failed), and looks at devices, there were: none is kept."""
    return clear(), forget_all(folder_of(SMOKE))


def runs(profile: Target, found: Mapping[str, Provider]) -> Runs:
    """The first provider of the target's chain that is ready, and why those before it are not."""
    before: dict[str, str] = {}
    chain = tuple(provider.name for provider in profile.providers)
    for name in chain:
        state = found.get(name)
        if state is not None and state.state == "ready":
            return Runs(profile.name, chain, name, before)
        before[name] = "it is unknown here" if state is None else state.reason
    return Runs(profile.name, chain, "", before, profile.refuses)


def asked(command: Sequence[str] = COMMAND, timeout_s: float = TIMEOUT_S) -> dict[str, Provider]:
    """Every provider's answer, by name."""
    found: dict[str, Provider] = {}
    left: list[str] = []
    while True:
        lines, how = _child([*command, *left], timeout_s)
        answers, begun = _answers(lines)
        if begun:
            answers[begun] = Provider(begun, "silent", reason=f"it {how} when it was asked")
        found |= answers
        names: list[str] = next((line["names"] for line in lines if "names" in line), [])
        left = [name for name in names if name not in found]
        if not left or not answers:
            return found


def _answers(lines: Sequence[dict[str, Any]]) -> tuple[dict[str, Provider], str]:
    """(answers by name, the one that was asked last and has not answered)."""
    answers: dict[str, Provider] = {}
    begun = ""
    for line in (line for line in lines if "name" in line):
        if line["state"] == "begun":
            begun = line["name"]
        else:
            answers[line["name"]], begun = Provider(**line), ""
    return answers, begun


def _child(command: Sequence[str], timeout_s: float) -> tuple[list[dict[str, Any]], str]:
    """The lines of one child, and how it ended."""
    with tempfile.TemporaryFile() as out:
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.DEVNULL,
                timeout=timeout_s,
                check=False,
                env={**os.environ, "PYTHONUTF8": "1"},
            )
            how = f"crashed ({exit_words(done.returncode)})"
        except subprocess.TimeoutExpired:
            how = f"did not answer within {timeout_s:g} s"
        except OSError as error:
            return [], f"cannot be started ({error})"
        out.seek(0)
        told = (line for line in out.read().decode("utf-8", "replace").splitlines() if line.startswith(MARK))
        return [json.loads(line.removeprefix(MARK)) for line in told], how


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
    runs_here = runs(target(facts.target), found)
    return BundleFacts(str(bundle.folder), facts.model.name, facts.precision, runs_here, tuple(graphs), total)
