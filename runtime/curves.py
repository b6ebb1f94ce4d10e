"""Cost curves of a loaded model's networks: measured once per machine, then read from the user's cache.

Enters: where each network is, its session. Leaves: `CostCurve`s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from spec_edge.runtime.bundle import Bundle
from spec_edge.runtime.costs import WIDTHS, CostCurve, cost_key, load_costs, measured, save_costs
from spec_edge.runtime.placement import Place
from spec_edge.runtime.protocols import Session

DRAFT_WIDTHS = (1, 2)
"""At which a draft model's runs are timed: it runs a row or two at a time."""


class Curves:
    """places, threads: of each network, by its name. forget: called before a session is emptied to measure it."""

    def __init__(self, places: Mapping[str, Place], threads: Mapping[str, int], forget: Callable[[], object]) -> None:
        self._places, self._threads, self._forget = places, threads, forget
        self._known: dict[str, CostCurve] = {}

    def of(self, name: str, bundle: Bundle, session: Session, widths: Sequence[int] = WIDTHS) -> CostCurve:
        """t(width) of a network; measuring it, the first time on a machine, empties its session."""
        place = self._places[name]
        key = cost_key(bundle.digest, place.on.name, place.found, self._threads[name], widths)
        if key not in self._known:
            self._known[key] = load_costs(key) or self._measured(key, session, widths)
        return self._known[key]

    def _measured(self, key: str, session: Session, widths: Sequence[int]) -> CostCurve:
        self._forget()
        curve = measured(session, widths)
        save_costs(key, curve)
        return curve
