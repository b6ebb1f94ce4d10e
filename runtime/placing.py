"""Which provider runs which network of a bundle.

Enters: a bundle, and what was asked for: a provider by name or the chain of the bundle's target, and whether anything
else may stand in. Leaves: sessions that go on where a provider fails, what opened where, and one line for each step
down the chain. A provider is looked for, its graphs are compiled in a child process, opened and looked at
(`smoke.check`) before it is used; what fails in any of these is skipped, with the reason.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from spec_edge.models.contract import GraphSpec, SpecError
from spec_edge.runtime import smoke
from spec_edge.runtime.asking import ask_first
from spec_edge.runtime.bundle import Bundle
from spec_edge.runtime.compiling import compiled, settings_from
from spec_edge.runtime.fallback import fallback
from spec_edge.runtime.networks import Network
from spec_edge.runtime.placement import Place
from spec_edge.runtime.protocols import Session
from spec_edge.runtime.providers import provider as providers
from spec_edge.runtime.providers.checks import guarded
from spec_edge.runtime.providers.opening import job, unsuited
from spec_edge.runtime.providers.provider import Found, Job, Opened, Opener, Provider, ProviderFailed
from spec_edge.runtime.sessions import choose
from spec_edge.runtime.sessions.chain import Candidate, Chain, Closable, Say
from spec_edge.runtime.sessions.failover import FailoverSession
from spec_edge.targets.target import recorded as target

AUTO, TARGET, DRAFT = "auto", "target", "draft"
REFERENCE = "cpu"
"""The provider that made the bundle's own figures: it is not looked at again."""

QUIET = {"session.force_spinning_stop": "1"}
"""ONNX Runtime's entry for it."""

SLOW_S = 2.0
"""A compiler that takes longer is announced."""

T = TypeVar("T", bound=Closable)


@dataclass(frozen=True)
class Wish:
    """provider  a name, or `auto` for the chain of the bundle's target
    strict    nothing stands in for the first of the chain
    threads   of CPU providers; None: one per physical core
    """

    provider: str = AUTO
    strict: bool = False
    threads: int | None = None


@dataclass(frozen=True)
class Step:
    """One provider of a chain, by name, and the bundle that it runs."""

    name: str
    bundle: Bundle
    options: Mapping[str, str] = field(default_factory=dict)


def steps(bundle: Bundle, wish: Wish) -> tuple[Step, ...]:
    """The chain: what was asked for, then the rest of the target's; only the first where nothing may stand in.

    SpecError: the target refuses language models, or is unknown.

    The providers of a fallback bundle run that instead: it was exported for them. What they replace comes last.
    """
    profile = target(bundle.manifest.target)
    if not profile.providers:
        raise SpecError(f"this bundle's target runs nothing: {profile.refuses}")
    own = [Step(p.name, bundle, dict(p.options)) for p in profile.providers]
    beside = fallback(bundle)
    others = () if beside is None else target(beside.manifest.target).providers
    given = {p.name for p in others}
    chain = [step for step in own if step.name not in given]
    chain += [Step(p.name, beside, dict(p.options)) for p in others if beside is not None]
    chain += [step for step in own if step.name in given]
    if wish.provider != AUTO:
        wanted = providers.provider(wish.provider).name
        first = [step for step in own if step.name == wanted] or [Step(wanted, bundle)]
        chain = [*first, *(step for step in chain if step != first[0])]
    return tuple(chain[:1] if wish.strict else chain)


class Placer:
    """Opens networks. places: where each one that was opened runs now, by its name; several placers may share it."""

    def __init__(self, wish: Wish, say: Say, places: dict[str, Place]) -> None:
        """BadUsage: there is no provider of this name."""
        if wish.provider != AUTO:
            providers.provider(wish.provider)
        self._wish, self.places = wish, places
        self._say: Say = lambda line: say(line.removeprefix("note: "))

    def session(self, bundle: Bundle, network: str = TARGET) -> Session:
        """A target, or a draft model. NoProviderLeft: no provider of the chain runs it."""
        own = steps(bundle, replace(self._wish, strict=False))
        chain = self._suited(own if network == TARGET else [self._beside(step) for step in own], TARGET)
        ways = [self._candidate(step, network, _session) for step in chain]
        if _reference_only(chain):
            return ways[0].open()
        made = Chain(ways, self._say, "" if network == TARGET else f"{network} model")
        left = chain[-len(made.left) :]  # what was skipped limits nothing
        sizes = [size for step in left if (size := _sizes(step)) is not None]
        return FailoverSession(made, min(c for c, _ in sizes), min(w for _, w in sizes))

    def network(self, name: str, bundle: Bundle) -> Network:
        """A drafter inside the bundle, by its method's name."""

        def opened(step: Step, place: Place, opener: Opener) -> Network:
            return choose.open_network(name, step.bundle, place.on, opener)

        every = steps(bundle, replace(self._wish, strict=False))
        own = [self._beside(step) for step in every if step.bundle is bundle]
        chain = self._suited(own, name)
        ways = [self._candidate(step, name, opened) for step in chain]
        if _reference_only(chain):
            return ways[0].open()
        return choose.network_over(name, bundle, Chain(ways, self._say, name))

    def _beside(self, step: Step) -> Step:
        """A step of what drafts. ONNX Runtime's threads spin on after a run, on cores that another backend wants."""
        target = self.places.get(TARGET)
        if step.name != REFERENCE or target is None or target.on.name == REFERENCE or target.on.device != REFERENCE:
            return step
        return replace(step, options=dict(step.options) | QUIET)

    def _suited(self, chain: Sequence[Step], network: str) -> list[Step]:
        """Without the providers that this network's graphs are not for, unless one was asked for; then the first, where
        nothing may stand in."""
        asked = self._wish.provider
        kept = [s for s in chain if s.name == asked or not unsuited(s.bundle, providers.provider(s.name), network)]
        return (kept or list(chain))[: 1 if self._wish.strict else None]

    def _candidate(self, step: Step, network: str, make: Callable[[Step, Place, Opener], T]) -> Candidate[T]:
        def open_() -> T:
            on = providers.provider(step.name)
            if on.device != REFERENCE:
                ask_first(step.name)
            found = guarded(f"{step.name} cannot be asked what it finds", lambda: on.find(step.options))
            place = self.places[network] = Place(on, found, step.options)
            return make(step, place, self._opener(step, place))

        facts = step.bundle.manifest
        return Candidate(step.name, open_, _form(step), facts.weights.sha256, _meant(step))

    def _opener(self, step: Step, place: Place) -> Opener:
        def open_graph(graph: GraphSpec) -> Opened:
            asked = job(step.bundle, graph, self._wish.threads, step.options)
            opened = open_compiled(place.on, asked, place.found, self._say)
            place.add(graph, asked.model, opened)
            return opened

        return open_graph


def _reference_only(chain: Sequence[Step]) -> bool:
    """Nothing to fall back to, and nothing to look at: what a bundle for the CPU is."""
    return [step.name for step in chain] == [REFERENCE]


def _session(step: Step, place: Place, opener: Opener) -> Session:
    """The session, looked at first where it is not the reference's."""
    session = choose.open_session(step.bundle, place.on, opener)
    if step.name != REFERENCE:
        try:
            smoke.check(step.bundle, session, place.on, place.found, step.options)
        except BaseException:
            session.close()
            raise
    return session


def open_compiled(on: Provider, asked: Job, found: Found, say: Say) -> Opened:
    """The graph from its compiled form. One that the device no longer takes is compiled again, once.

    What runs on a CPU compiles in a second or two, and nothing is kept of it.
    """
    if on.device == REFERENCE:
        return on.open(asked)
    progress = _announcing(on, say)
    artefact = compiled(asked, on, found, progress=progress, say=say)
    if artefact is None or not on.keeps:
        return on.open(asked)
    try:
        return on.open(replace(asked, artefact=artefact))
    except ProviderFailed as error:
        say(f"{on.name} does not take the compiled {asked.graph.name} ({error.message}); it is compiled again")
    again = compiled(asked, on, found, settings_from(os.environ, again=True), progress, say)
    return on.open(replace(asked, artefact=again))


def _announcing(on: Provider, say: Say) -> Callable[[str, float], None]:
    """Says once that a graph takes its time."""
    said: set[str] = set()

    def progress(graph: str, seconds: float) -> None:
        if seconds >= SLOW_S and graph not in said:
            said.add(graph)
            say(f"{on.name} compiles {graph}, once for this driver; that may take minutes")

    return progress


def _form(step: Step) -> str:
    """What identifies the graphs that this provider would run; "" where nobody knows it."""
    try:
        return choose.form(step.bundle, providers.provider(step.name))
    except SpecError:
        return ""


def _meant(step: Step) -> bool:
    """Whether the bundle was made for this provider: the first, or one of several CPU ones that run the same graphs."""
    chain = [provider.name for provider in target(step.bundle.manifest.target).providers]
    before = [providers.provider(name) for name in itertools.takewhile(lambda name: name != step.name, chain)]
    on = providers.provider(step.name)
    alike = all((other.device, other.fused) == (REFERENCE, on.fused) for other in before)
    return not before or (alike and on.device == REFERENCE)


def _sizes(step: Step) -> tuple[int, int] | None:
    """(capacity, widest verify run) of this provider's session; None: it has none."""
    try:
        return choose.sizes(step.bundle, providers.provider(step.name))
    except SpecError:
        return None
