"""What verify runs take now, where they were measured at another moment.

Enters: a measured curve, and the time of every verify run since. Leaves: that curve, corrected by what runs of these
widths took lately. A machine's memory may be twice as fast an hour later, and plain decoding gains most of that: what
was worth drafting then is a loss now.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median

from spec_edge.runtime.costs import FAR, PAST, CostCurve

KEPT, FEWEST = 12, 6
"""Runs of each width whose times are kept, and as many as must be there before they count."""

APART = 3
"""Runs from one of a width that is kept to the next: a disturbance of some milliseconds is few of them."""

OLD = 96
"""Runs after which one is forgotten: where nothing is drafted any more, a width is then as it was measured, tried
again, and seen."""

EVERY = 8
"""Runs from one look at them to the next."""

TICK = 1e-6
"""Seconds that a run takes at least, whatever a clock says."""

STREAK = 4
"""Single rows before one that counts: plain decoding is what a draft has to beat, and single rows between wider runs
may take twice the time that they take on end."""


class Runs:
    """Times of verify runs, each as a share of what the curve says.

    known  (width, its share of late), ascending; a new one each time that they were looked at
    """

    def __init__(self) -> None:
        self._shares: dict[int, deque[tuple[int, float]]] = {}
        self._count = self._singles = 0
        self.known: tuple[tuple[int, float], ...] = ()

    def saw(self, share: float, width: int) -> None:
        """A run of `width` rows took `share` times the measured time."""
        self._count += 1
        self._singles = self._singles + 1 if width == 1 else 0
        kept = self._shares.setdefault(width, deque(maxlen=KEPT))
        if (width > 1 or self._singles > STREAK) and not (kept and self._count < kept[-1][0] + APART):
            kept.append((self._count, share))
        if self._count % EVERY == 0:
            self._look()

    def factor(self, width: int) -> float:
        """What a run of this width takes now, as a share; in between widths that were seen, linear."""
        below, above = None, None
        for at in self.known:
            if at[0] <= width:
                below = at
            elif above is None:
                above = at
        if below is None or above is None:
            return (below or above or (width, 1.0))[1]
        (w0, f0), (w1, f1) = below, above
        return f0 + (f1 - f0) * (width - w0) / (w1 - w0)

    def _look(self) -> None:
        since = self._count - OLD
        recent = {w: [share for n, share in shares if n > since] for w, shares in sorted(self._shares.items())}
        self.known = tuple((w, median(shares)) for w, shares in recent.items() if len(shares) >= FEWEST)


class _Asked:
    """Times by width, until there are other shares: drafters ask for dozens at every step."""

    def __init__(self) -> None:
        self.known: tuple[tuple[int, float], ...] = ()
        self.times: dict[int, float] = {}


@dataclass(frozen=True)
class LiveCurve(CostCurve):
    """A measured curve whose times are those of the runs of late. Two are equal where both their measurements and
    their runs are the same ones."""

    runs: Runs = field(default_factory=Runs)
    _asked: _Asked = field(default_factory=_Asked, init=False, repr=False, compare=False)

    def at(self, width: int) -> float:
        """No less than a narrower run, whenever each was seen."""
        asked = self._asked
        if asked.known is not self.runs.known:
            asked.known, asked.times = self.runs.known, {}
        if width not in asked.times:
            asked.times[width] = self._at(width)
        return asked.times[width]

    def _at(self, width: int) -> float:
        narrower = (CostCurve.at(self, w) * share for w, share in self.runs.known if w < width)
        return max(CostCurve.at(self, width) * self.runs.factor(width), *narrower, 0.0)

    def saw(self, width: int, length: int, seconds: float) -> None:
        """A verify run of so many rows over a text of this length."""
        measured = CostCurve.at(self, width)
        if self.growth or length <= FAR:  # else it is not known what a long text takes
            self.runs.saw(
                max(seconds, TICK) / max(measured + self.growth * (length - PAST) * width, measured / 2), width
            )


def share(curve: CostCurve | None) -> float:
    """What a single row takes now, as a share of its measured time: a drafter's run is taken to change like it."""
    return curve.runs.factor(1) if isinstance(curve, LiveCurve) else 1.0


def live(curve: CostCurve) -> LiveCurve:
    """It begins as the measured curve."""
    return LiveCurve(curve.widths, curve.seconds, curve.growth)
