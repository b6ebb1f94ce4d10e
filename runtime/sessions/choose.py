"""Which session runs a bundle on a provider.

Enters: a bundle, a provider and its opener. Leaves: the target's session, or a drafter's network.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

from spec_edge.models.contract import GraphSpec, SpecError
from spec_edge.models.plugins import find
from spec_edge.runtime.bundle import Bundle
from spec_edge.runtime.networks import Network
from spec_edge.runtime.protocols import Session
from spec_edge.runtime.providers.opening import on_cpu
from spec_edge.runtime.providers.provider import Opened, Opener, Provider, provider
from spec_edge.runtime.sessions.any_width import WIDEST
from spec_edge.runtime.sessions.chain import Chain
from spec_edge.runtime.sessions.ort import OrtSession
from spec_edge.runtime.sessions.portable import PortableSession
from spec_edge.runtime.sessions.resident import ResidentSession
from spec_edge.runtime.sessions.static import StaticSession


class PlacedSession(Session, Protocol):
    """A session whose nodes are somewhere."""

    @property
    def assignment(self) -> Mapping[str, int]:
        """Nodes per provider, over the graphs opened so far."""
        ...


Kind: TypeAlias = type[OrtSession | PortableSession | ResidentSession | StaticSession]


def _kind(bundle: Bundle, on: Provider) -> Kind:
    """One any-width graph where the provider takes it, else graphs of fixed widths."""
    wide = [g.lowering for g in bundle.graphs("target", "step")]
    if on.fused and "fused" in wide:
        return OrtSession
    if not on.symbolic or "portable" not in wide:
        return StaticSession
    return ResidentSession if on.resident and bundle.graphs("cache", "keep") else PortableSession


def open_session(bundle: Bundle, on: Provider, opener: Opener) -> PlacedSession:
    """The target on a provider."""
    return _kind(bundle, on)(bundle, opener)


def sizes(bundle: Bundle, on: Provider) -> tuple[int, int]:
    """(capacity, widest verify run) of the session that `open_session` would open. SpecError: there is none."""
    kind, context = _kind(bundle, on), bundle.manifest.model.context
    if kind is not StaticSession:
        return context, min(WIDEST, context)
    session = StaticSession(bundle, _unopened)  # it opens a graph when it first runs it
    return session.capacity, session.max_width


def form(bundle: Bundle, on: Provider) -> str:
    """Which of the bundle's graphs that session runs."""
    kind = _kind(bundle, on)
    return (PortableSession if kind is ResidentSession else kind).__name__  # one graph, two places for the cache


def _unopened(graph: GraphSpec) -> Opened:
    raise SpecError(f"{graph.name} is not opened here")


def open_on_cpu(bundle: Bundle, threads: int | None = None) -> PlacedSession:
    """The target on the reference provider."""
    return open_session(bundle, provider("cpu"), on_cpu(bundle, threads))


def open_network(name: str, bundle: Bundle, on: Provider, opener: Opener) -> Network:
    """A drafter inside the bundle, by its method's name."""
    module = find("spec_edge.runtime.sessions", "open_network", name, "network")
    network: Network = module.open_network(bundle, on, opener)
    return network


def network_over(name: str, bundle: Bundle, chain: Chain[Any]) -> Network:
    """One drafter over a chain of those that `open_network` gives."""
    module = find("spec_edge.runtime.sessions", "open_network", name, "network")
    network: Network = module.failover(bundle, chain)
    return network
