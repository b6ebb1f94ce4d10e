"""Which session runs a bundle on a provider.

Enters: a bundle, a provider and its opener. Leaves: the target's session, or a drafter's network.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from spec_edge.models.plugins import find
from spec_edge.runtime.bundle import Bundle
from spec_edge.runtime.networks import Network
from spec_edge.runtime.protocols import Session
from spec_edge.runtime.providers.opening import on_cpu
from spec_edge.runtime.providers.provider import Opener, Provider, provider
from spec_edge.runtime.sessions.ort import OrtSession
from spec_edge.runtime.sessions.portable import PortableSession
from spec_edge.runtime.sessions.static import StaticSession


class PlacedSession(Session, Protocol):
    """A session whose nodes are somewhere."""

    @property
    def assignment(self) -> Mapping[str, int]:
        """Nodes per provider, over the graphs opened so far."""
        ...


def open_session(bundle: Bundle, on: Provider, opener: Opener) -> PlacedSession:
    """The target: one any-width graph where the provider takes it, else graphs of fixed widths."""
    wide = [g.lowering for g in bundle.graphs("target", "step")]
    if on.fused and "fused" in wide:
        return OrtSession(bundle, opener)
    if on.symbolic and "portable" in wide:
        return PortableSession(bundle, opener)
    return StaticSession(bundle, opener)


def open_on_cpu(bundle: Bundle, threads: int | None = None) -> PlacedSession:
    """The target on the reference provider."""
    return open_session(bundle, provider("cpu"), on_cpu(bundle, threads))


def open_network(name: str, bundle: Bundle, on: Provider, opener: Opener) -> Network:
    """A drafter inside the bundle, by its method's name."""
    module = find("spec_edge.runtime.sessions", "open_network", name, "network")
    network: Network = module.open_network(bundle, on, opener)
    return network
