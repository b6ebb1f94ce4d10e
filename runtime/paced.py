"""Drafters whose drafts take time, and what they are asked before they draft.

Enters: a drafter. Leaves: whether costs end its drafts, what a draft promises, what it has taken.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from spec_edge.runtime.costs import CostCurve
from spec_edge.runtime.draft import Draft
from spec_edge.runtime.protocols import Drafter


@runtime_checkable
class Paced(Protocol):
    """A drafter whose drafts take time. seconds: of one of its runs, where costs end its drafts; None: they do not."""

    @property
    def seconds(self) -> float | None: ...

    def promises(self, cost: CostCurve, most: int) -> float:
        """Gain over plain decoding of a draft of at most so many rows, before there is one."""
        ...

    def spent(self, draft: Draft) -> float:
        """Seconds that drafting took."""
        ...


def paced(drafter: Drafter) -> Paced | None:
    """The drafter, where costs end its drafts, so that no policy has to."""
    return drafter if isinstance(drafter, Paced) and drafter.seconds is not None else None


def seconds(drafter: Drafter) -> float | None:
    """Of a run of a drafter, where costs end its drafts."""
    found: float | None = getattr(drafter, "seconds", None)
    return found
