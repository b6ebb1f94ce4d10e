"""Peers as contenders: each in a child process of its own.

Enters: names, the source weights, interpreters. Leaves: opened `Peer`s, whose methods are contenders, and for every
peer or method that is not measured the reason. Nothing that is missing becomes a zero.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from spec_edge.models.contract import BadUsage
from spec_edge.models.plugins import find, known
from spec_edge.runtime.bench.process import WORK_S, Child, NotInstalled
from spec_edge.runtime.bench.runs import Failed, Item, Run
from spec_edge.runtime.bench.weights import Weights

PEERS = "spec_edge.runtime.bench.peers"
MARKER = "METHODS"
VARIABLE = "SPEC_EDGE_PEER_PYTHON_"
DRAFT = "draft"
Say = Callable[[str], object]


@dataclass(frozen=True)
class Wanted:
    """One peer in one form of the weights. precision: one of the adapter's."""

    name: str
    precision: str
    adapter: ModuleType

    @property
    def label(self) -> str:
        """ "llama-cpp", or "onnxruntime-genai:int8" where there are several forms."""
        return self.name if len(self.adapter.PRECISIONS) == 1 else f"{self.name}:{self.precision}"


@dataclass(frozen=True)
class Peer:
    """One of them, open.

    version, settings  what it says of itself, settings by method
    running            its child
    bare               starts another child with the target's model and these methods, no draft model
    """

    wanted: Wanted
    version: str
    methods: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    running: Child | None = None
    bare: Callable[[tuple[str, ...]], Child] | None = None

    @contextmanager
    def alone(self) -> Iterator[Child]:
        """A child that can only give logits, for as long as it is needed. Failed: it does not start."""
        assert self.bare is not None
        child = self.bare(())
        try:
            yield child
        finally:
            child.close()

    @property
    def child(self) -> Child:
        assert self.running is not None
        return self.running


@dataclass(frozen=True)
class PeerContender:
    """A method of a peer."""

    peer: Peer
    method: str

    @property
    def name(self) -> str:
        return f"{self.peer.wanted.label}/{self.method}"

    def generate(self, item: Item) -> Run:
        """Times are taken in the child."""
        answer = self.peer.child.ask("generate", method=self.method, ids=list(item.ids), new_tokens=item.new_tokens)
        arrivals = tuple((float(at), int(count)) for at, count in answer["arrivals"])
        tokens = tuple(int(t) for t in answer["tokens"])
        if not arrivals or sum(n for _, n in arrivals) != len(tokens):
            raise Failed(f"it counted {sum(n for _, n in arrivals)} tokens on their way and returned {len(tokens)}")
        return Run(tokens, arrivals, answer["steps"])


def wanted(names: str) -> list[Wanted]:
    """`none`, `all`, or names such as llama-cpp,onnxruntime-genai:int8. BadUsage lists what there is."""
    if names == "none":
        return []
    listed = known(PEERS, MARKER) if names == "all" else [name.strip() for name in names.split(",")]
    out: dict[tuple[str, str], Wanted] = {}
    for text in listed:
        name, _, precision = text.partition(":")
        adapter = find(PEERS, MARKER, name, "peer")
        if precision and precision not in adapter.PRECISIONS:
            forms = ", ".join(adapter.PRECISIONS)
            raise BadUsage(f"peer '{name}' has no precision '{precision}'. Known: {forms}")
        for form in [precision] if precision else adapter.DEFAULTS:
            plain = name.replace("_", "-")
            out[plain, form] = Wanted(plain, form, adapter)
    return list(out.values())


def interpreters(pairs: Sequence[str]) -> dict[str, str]:
    """Peer -> Python, from NAME=PATH options. BadUsage: an unknown name, or no such file."""
    out = {}
    for pair in pairs:
        name, _, path = pair.partition("=")
        if not path:
            raise BadUsage(f"peer-python must be NAME=PATH such as llama-cpp=venv/bin/python, not '{pair}'")
        find(PEERS, MARKER, name, "peer")
        if not Path(path).is_file():
            raise BadUsage(f"peer-python: there is no file {path}")
        out[name.replace("_", "-")] = path
    return out


def python_for(name: str, given: Mapping[str, str]) -> str:
    """The option's, the environment's, or this one."""
    return given.get(name) or os.environ.get(VARIABLE + name.upper().replace("-", "_")) or sys.executable


def open_peer(
    want: Wanted, python: str, weights: Weights, threads: int | None, say: Say
) -> tuple[Peer, dict[str, str]]:
    """The peer with its model loaded, and why some of its methods are not measured. Failed: it cannot run at all."""
    adapter = Path(str(want.adapter.__file__))
    version = _version(adapter, python, want)
    methods = tuple(m for m in want.adapter.METHODS if m != DRAFT or weights.draft is not None)
    absent = {m: "no draft model was given" for m in want.adapter.METHODS if m not in methods}
    model, draft = (_model(adapter, python, want, weights, version, role, say) for role in ("target", DRAFT))
    if model is None:
        raise Failed("there are no weights")
    say(f"{want.label}: opening")
    job = {"model": str(model), "draft": draft and str(draft), "threads": threads, "precision": want.precision}
    try:
        return _opened(adapter, python, Peer(want, version, methods), job), absent
    except Failed as error:
        rest = tuple(m for m in methods if m != DRAFT)
        if rest == methods:
            raise
        absent |= {DRAFT: error.message}
    say(f"{want.label}: opening without the draft model")
    return _opened(adapter, python, Peer(want, version, rest), job | {"draft": None}), absent


def _opened(adapter: Path, python: str, peer: Peer, job: Mapping[str, Any]) -> Peer:
    child = _child(adapter, python, peer.methods, job)
    try:
        settings = {m: child.ask("settings", method=m)["settings"] for m in peer.methods}
    except BaseException:
        child.close()
        raise
    bare = partial(_child, adapter, python, job={**job, "draft": None})
    return replace(peer, running=child, settings=settings, bare=bare)


def _child(adapter: Path, python: str, methods: tuple[str, ...], job: Mapping[str, Any]) -> Child:
    """One with its models loaded."""
    child = Child(adapter, python)
    try:
        child.ask("open", WORK_S, methods=methods, **job)
    except BaseException:
        child.close()
        raise
    return child


def _version(adapter: Path, python: str, want: Wanted) -> str:
    child = Child(adapter, python)
    try:
        return str(child.ask("version")["version"])
    except NotInstalled as error:
        raise NotInstalled(f"not installed ({error.message}); pip install {want.adapter.PIP}") from None
    finally:
        child.close()


def _model(
    adapter: Path, python: str, want: Wanted, weights: Weights, version: str, role: str, say: Say
) -> Path | None:
    """The weights in the peer's form, converted once per version and kept. None: there is no draft model."""
    source = weights.draft if role == DRAFT else weights.target
    if source is None:
        return None
    path = source.form(want.adapter.NEEDS[want.precision], say)
    if not hasattr(want.adapter, "convert") or want.adapter.NEEDS[want.precision] == "gguf":
        return path
    name = "".join(c if c.isalnum() or c in ".-" else "_" for c in f"{want.name}-{want.precision}-{version}")[:120]
    made = source.cache / name
    if made.is_dir():
        return made
    say(f"{want.label}: converting the {role}'s weights")
    partial = source.cache / f".{name}.partial-{os.getpid()}"
    child = Child(adapter, python)
    try:
        child.ask("convert", WORK_S, source=str(path), folder=str(partial), precision=want.precision)
        partial.replace(made)
    except OSError as error:
        raise Failed(f"cannot write {made}: {error.strerror or error}") from None
    finally:
        child.close()
        shutil.rmtree(partial, ignore_errors=True)
    return made
