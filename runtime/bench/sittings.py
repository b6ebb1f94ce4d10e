"""Sittings: peers that fit into memory together are measured beside our own methods, then the next ones.

Enters: settings, our contenders, items. Leaves: the runs of every sitting, the peers (closed), the memory they took.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from time import sleep
from typing import Any

from spec_edge.models.contract import SpecError
from spec_edge.runtime.api import LLM
from spec_edge.runtime.bench import order, own, peer
from spec_edge.runtime.bench.memory import usage
from spec_edge.runtime.bench.order import Measured
from spec_edge.runtime.bench.peer import Peer, PeerContender, Wanted
from spec_edge.runtime.bench.probe import Probe
from spec_edge.runtime.bench.process import NotInstalled
from spec_edge.runtime.bench.runs import Contender, Failed, Item
from spec_edge.runtime.bench.settings import Settings
from spec_edge.runtime.bench.show import Progress
from spec_edge.runtime.bench.weights import Weights, source
from spec_edge.runtime.bundle import open_bundle
from spec_edge.runtime.companion import recorded
from spec_edge.runtime.resolve import bundle_folder

SETTLE_S = 0.05
State = dict[str, Any]


@dataclass
class Sat:
    """What the sittings gave. states: what each contender is, or why it is absent. memory: by a peer's label. speed: of
    the machine's memory meanwhile."""

    states: State
    measured: Measured = field(default_factory=lambda: Measured([], [], {}))
    peers: list[Peer] = field(default_factory=list)
    memory: State = field(default_factory=dict)
    held: int = 0
    speed: dict[str, float] | None = None


def sit(
    settings: Settings,
    weights: Weights | None,
    ours: Sequence[own.EngineContender],
    items: Sequence[Item],
    progress: Progress,
    between: Callable[[Sat], object],
) -> Sat:
    """All of them: one where every peer may be open at once. Nobody who fails stops the others. between: gets what
    there is after each sitting that others follow."""
    wanted = peer.wanted(settings.peers)
    sat = Sat({one.name: {"kind": "own"} for one in ours})
    groups = _groups(wanted, settings.peers_at_once)
    with closing(Probe(settings.thread_count)) as probe:
        for number, group in enumerate(groups, 1):
            with opened(settings, group, weights, sat.states, progress) as peers:
                if peers or (number == len(groups) and not sat.held):
                    everybody: list[Contender] = [*ours, *(PeerContender(p, m) for p in peers for m in p.methods)]
                    _one(settings, everybody, items, sat, progress, probe)
                    _tell(sat, peers)
            if sat.held and number < len(groups):
                between(sat)
    for name, why in sat.measured.failures.items():
        sat.states[name] |= {"absent": why, "status": "failed"}
    return sat


def _groups(wanted: Sequence[Wanted], most: int | None) -> list[Sequence[Wanted]]:
    step = most or max(1, len(wanted))
    return [wanted[at : at + step] for at in range(0, len(wanted), step)] or [()]


def _one(
    settings: Settings,
    contenders: Sequence[Contender],
    items: Sequence[Item],
    sat: Sat,
    progress: Progress,
    probe: Probe,
) -> None:
    progress.stage("measuring", order.runs_in_all(len(contenders), len(items), settings.repeat))
    first = settings.repeat * sat.held
    found = order.measure(contenders, items, settings.repeat, lambda: _settle(progress), first, probe.ask)
    sat.speed = probe.told()
    sat.measured = sat.measured.and_then(found)
    sat.held += 1


@contextmanager
def opened(
    settings: Settings, group: Sequence[Wanted], weights: Weights | None, states: State, progress: Progress
) -> Iterator[list[Peer]]:
    """Every peer of a group that can be opened; the others go into `states` with the reason. Closes them all."""
    given, peers = peer.interpreters(settings.peer_python), list[Peer]()
    try:
        for want in group:
            assert weights is not None
            progress.stage(f"{want.label}: looking", None)
            python = peer.python_for(want.name, given)
            found = _open(want, python, weights, settings.thread_count, states, progress)
            peers += [found] if found else []
        yield peers
    finally:
        for one in peers:
            one.child.close()


def _open(
    want: peer.Wanted, python: str, weights: Weights, threads: int, states: State, progress: Progress
) -> Peer | None:
    try:
        found, absent = peer.open_peer(want, python, weights, threads, lambda text: progress.stage(text, None))
    except Failed as error:
        status = "not installed" if isinstance(error, NotInstalled) else "failed"
        states[want.label] = {"kind": "peer", "absent": error.message, "status": status}
        return None
    for method, why in absent.items():
        states[f"{want.label}/{method}"] = {"kind": "peer", "absent": why}
    return found


def peers_weights(settings: Settings, llm: LLM) -> Weights | None:
    """What peers get. None: there are no peers. SpecError: it is not what the bundle was made from."""
    if settings.weights is None or not peer.wanted(settings.peers):
        return None
    target = source(settings.weights, llm.bundle.manifest, "weights")
    if settings.draft_weights is None:
        return Weights(target, None)
    named = settings.draft and open_bundle(bundle_folder(settings.draft))
    bundle = named or recorded(llm.bundle)
    if bundle is None:
        raise SpecError("draft-weights were given, but this bundle has no draft model; name one with --draft")
    return Weights(target, source(settings.draft_weights, bundle.manifest, "draft-weights"))


def _settle(progress: Progress) -> None:
    """After each run: threads that wait for more work by spinning give up in the meantime."""
    progress.tick()
    sleep(SETTLE_S)


def _tell(sat: Sat, peers: Sequence[Peer]) -> None:
    """What the peers of the last sitting are, and the memory that they hold."""
    sat.peers += peers
    for one in peers:
        sat.memory[one.wanted.label] = vars(usage(one.child.pid))
        for method in one.methods:
            told = {"kind": "peer", "version": one.version, "settings": one.settings[method], "sitting": sat.held}
            sat.states[f"{one.wanted.label}/{method}"] = told | {"precision": one.wanted.precision}
