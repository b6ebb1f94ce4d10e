"""Cost curves of a loaded model's networks: measured once per machine, then read from the user's cache.

Enters: where each network is, its session. Leaves: `CostCurve`s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from spec_edge.runtime.bundle import Bundle
from spec_edge.runtime.costs import WIDTHS, CostCurve, cost_key, load_costs, measured, save_costs
from spec_edge.runtime.live_costs import LiveCurve, live
from spec_edge.runtime.networks import Network, Timed
from spec_edge.runtime.placement import Place
from spec_edge.runtime.protocols import Session
from spec_edge.runtime.providers.provider import ProviderFailed

DRAFT_WIDTHS = (1, 2)
"""At which a draft model's runs are timed: it runs a row or two at a time."""


class Curves:
    """places, threads: of each network, by its name; inside: threads of those in the target's bundle. forget: called
    before a session is emptied to measure it."""

    def __init__(
        self, places: Mapping[str, Place], threads: Mapping[str, int], forget: Callable[[], object], inside: int
    ) -> None:
        self._places, self._threads, self._forget, self._inside = places, threads, forget, inside
        self._known: dict[str, CostCurve] = {}
        self._live: dict[str, LiveCurve] = {}

    def of(self, name: str, bundle: Bundle, session: Session, widths: Sequence[int] = WIDTHS) -> CostCurve:
        """t(width) of a network; measuring it, the first time on a machine, empties its session."""
        key = self._key(name, bundle, widths)
        if key not in self._known:
            self._known[key] = load_costs(key) or self._measured(key, session, widths)
        return self._known[key]

    def live(self, name: str, bundle: Bundle, session: Session, widths: Sequence[int] = WIDTHS) -> LiveCurve:
        """The same, as runs of late have corrected it: whoever runs the network tells it."""
        key, curve = self._key(name, bundle, widths), self.of(name, bundle, session, widths)
        return self._live.setdefault(key, live(curve))

    def watching(self, name: str, bundle: Bundle, widths: Sequence[int] = WIDTHS) -> LiveCurve | None:
        """The curve of `live`, where there is one by now."""
        return self._live.get(self._key(name, bundle, widths))

    def _key(self, name: str, bundle: Bundle, widths: Sequence[int]) -> str:
        place = self._places[name]
        return cost_key(bundle.digest, place.on.name, place.found, self._threads[name], widths)

    def runs(self, bundle: Bundle, networks: Mapping[str, Network]) -> dict[str, float]:
        """Seconds of a run of one row of each drafter inside the bundle."""
        found: dict[str, float] = {}
        for name, network in networks.items():
            if isinstance(network, Timed):
                with suppress(ProviderFailed):  # its drafter will meet that too, say so, and let the text go on
                    found[name] = self._run(
                        name, bundle, partial(network.step_seconds, bundle.manifest.model.hidden_size)
                    )
        return found

    def _run(self, name: str, bundle: Bundle, timed: Callable[[], float]) -> float:
        place = self._places[name]
        key = cost_key(bundle.digest, f"{name} on {place.on.name}", place.found, self._inside, (1,))
        if key not in self._known:
            found = load_costs(key)
            if found is None:
                self._forget()
                save_costs(key, found := CostCurve((1,), (timed(),)))
            self._known[key] = found
        return self._known[key].at(1)

    def _measured(self, key: str, session: Session, widths: Sequence[int]) -> CostCurve:
        self._forget()
        curve = measured(session, widths)
        save_costs(key, curve)
        return curve
