"""When a drafter that costs something has drafted enough.

Enters: the target's cost curve and the seconds of one run of the drafter. Leaves: whether a token, or a further run, is
expected to give more tokens than plain decoding would make in its time. With estimates that are right this maximises
tokens per second: a part that gives less than the whole's rate lowers it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Protocol

from spec_edge.runtime.costs import CostCurve
from spec_edge.runtime.draft import ROOT, Draft, Verdict
from spec_edge.runtime.drafters.options import DrafterOptions
from spec_edge.runtime.live_costs import LiveCurve

NEXT = 0.85
"""Acceptance of a token that a draft model has not named yet."""

HEADS = 0.5
"""The same of a head that was trained on the target's own features."""

FLAT = 1.5
"""Where 16 rows cost less than this many single ones, rows are cheap: trees may be wide."""

START, HOPED, FADES, SELDOM = 4.0, 1.1, 0.95, 15
"""Plain steps that a ledger begins with, and the tokens that they are taken to have made, each; what a step leaves of
the older ones; steps from one question to the next where asking does not pay."""

MOST = 2.0
"""Times of its expected time that a step counts at most: a disturbance is not the drafter's."""

AHEAD = 4
"""Rows that a step of the cost curve may have."""


class Stop(Protocol):
    """Ends a chain. rows: of the verify run with the token in it, 2 for the first one."""

    def takes(self, reach: float, likely: float, rows: int) -> bool:
        """Whether a token joins: `likely` after its path, `reach` that path's probability."""
        ...

    def goes_on(self, reach: float, rows: int) -> bool:
        """Whether the drafter runs once more, for a token behind a path of this probability."""
        ...


@dataclass(frozen=True)
class Confidence:
    """Ends where the best token is less likely than `least`."""

    least: float

    def takes(self, reach: float, likely: float, rows: int) -> bool:  # noqa: ARG002
        return likely >= self.least

    def goes_on(self, reach: float, rows: int) -> bool:  # noqa: ARG002
        return True


def of_head(options: DrafterOptions, name: str) -> Pace | None:
    """What ends a head's drafts: costs, where they are known and rows dear, for greedy text. None: the user says how
    to draft, or rows are cheap."""
    o, step = options, options.network_seconds.get(name)
    said = not (o.draft_tokens is None and o.confidence is None and o.tree is None and o.paths is None)
    if said or not o.sampler.options.greedy or step is None or o.cost is None:
        return None
    return Pace(o.cost, step, 0.0, next=HEADS) if o.cost.at(16) > FLAT * o.cost.at(1) else None


class Ledger:
    """Whether asking a head has paid in this text: tokens of the steps for which it was asked, against the plain steps
    that their time would have made. Where it has not, it is asked now and then. Time is that of the clock where the
    curve follows it, with all that a step takes besides its runs, else what the curve says."""

    def __init__(self, cost: CostCurve, clock: Callable[[], float] = perf_counter) -> None:
        self._cost, self._clock, self._begun = cost, clock, 0.0
        self.start()

    def start(self, cost: CostCurve | None = None) -> None:
        """A new text. cost: the curve over it."""
        self._cost = cost or self._cost
        self._made, self._plain, self._passed = START * HOPED, START, 0

    def asks(self) -> bool:
        """Called once a step that could ask."""
        if self._made >= self._plain or self._passed == SELDOM:
            self._passed, self._begun = 0, self._clock()
            return True
        self._passed += 1
        return False

    def learn(self, verdict: Verdict, ran: Draft, own: Draft, spent: float) -> None:
        """A step for which it was asked. ran: the draft that was verified, which may hold others' rows and lack some of
        `own`, the head's. It counts what the head's rows made and took, as if it had drafted alone. spent: seconds of
        drafting."""
        rows = 1 + min(len(own), len(ran))
        expected, whole = self._cost.at(rows) + spent, self._cost.at(1 + len(ran)) + spent
        late = min((self._clock() - self._begun) / whole, MOST) if isinstance(self._cost, LiveCurve) else 1.0
        made, plain = 1 + _followed(own, verdict.tokens[:-1]), expected * late / self._cost.at(1)
        self._made, self._plain = self._made * FADES + made, self._plain * FADES + plain


def _followed(draft: Draft, tokens: Sequence[int]) -> int:
    """How many of these tokens a draft holds as a path from its root."""
    at, count = {ROOT}, 0
    for token in tokens:
        at = {i for i, p in enumerate(draft.parents) if p in at and draft.tokens[i] == token}
        if not at:
            break
        count += 1
    return count


@dataclass(frozen=True)
class Pace:
    """cost    of a verify run
    step    seconds of a run of the drafter
    least   as `Confidence`
    margin  how much faster than plain decoding a step is anyway: what a part of it must beat
    next    acceptance of a token before it is known

    By replay (.ci/slow/replay_draft.py) of Qwen2.5 Coder 0.5B for 1.5B on 16 training prompts and four cost curves:
    1.00 to 1.07 times as fast as the fixed length that is best there, 1.08 to 1.14 times as always four. Margins of
    1 to 1.2 and `next` of 0.8 to 0.9 are within 0.02 of it.
    """

    cost: CostCurve
    step: float
    least: float
    margin: float = 1.2
    next: float = NEXT

    def over(self, length: int) -> Pace:
        """The same over a text of this length."""
        return replace(self, cost=self.cost.over(length))

    def takes(self, reach: float, likely: float, rows: int) -> bool:
        return likely >= self.least and self._pays(reach * likely, rows, 0)

    def goes_on(self, reach: float, rows: int) -> bool:
        return self._pays(reach * self.next, rows, 1)

    def _pays(self, reach: float, rows: int, runs: int) -> bool:
        """Whether a token, alone or with some behind it, gives what it takes: costs rise in steps, so that the first
        row of a tile may only pay with others."""
        expected = 0.0
        for more in range(AHEAD):
            expected += reach
            seconds = self.cost.at(rows + more) - self.cost.at(rows - 1) + (runs + more) * self.step
            if expected * self.cost.at(1) >= self.margin * seconds:
                return True
            reach *= self.next
        return False
