"""How many rows a step may draft.

Enters: what recent drafts had accepted, by depth, the length of the text, and a cost curve.
Leaves: the width that the drafter is offered at the next step. Counts decide, never a clock: the same seed gives the
same widths.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from spec_edge.runtime.costs import UNMEASURED, CostCurve
from spec_edge.runtime.draft import ROOT, Draft, Verdict
from spec_edge.runtime.sampling import Sampling

GROWTH = 2e-5
"""What a further row costs beyond a curve that does not know it, per token of context, as a share of a plain step: on
ONNX Runtime's CPU, from 128 to 1,900 tokens t(16) / t(1) grew by a tenth."""


@dataclass(frozen=True)
class Belief:
    """rate   acceptance before any was seen; a high one makes the first drafts long: each step then tells much
    prior  its weight, in steps
    decay  what each step leaves of the older ones, at every depth: what was seen long ago fades
    """

    rate: float = 0.6
    prior: float = 4.0
    decay: float = 0.8


BELIEF = Belief()
"""By replay on training prompts and seven cost curves (.ci/slow/replay_policy.py): 0.79 of plain decoding's cost on
average, 0.96 at worst; rates 0.6 to 0.8, priors 2 to 4 and decays 0.8 to 0.95 are within 0.002 of it."""


NEARLY = 64
"""Tokens of text between two looks at what rows cost over a text of its length."""

UNLIKELY = 1e-3
"""A level that is reached less often is not thought about, nor those below it."""


class Policy(Protocol):
    """Decides the width of each step. The engine calls `start` at each new text, then `rows` and `observe` in turn."""

    def start(self) -> None: ...

    def rows(self, length: int, most: int) -> int:
        """Rows of the next verify run, pending token included: 1..most. `length`: tokens so far."""
        ...

    def observe(self, draft: Draft, verdict: Verdict) -> None: ...


class Fixed:
    """All the room there is: for a width the user gave, and for methods that choose their own."""

    def start(self) -> None:
        """Nothing to forget."""

    def rows(self, length: int, most: int) -> int:  # noqa: ARG002
        return most

    def observe(self, draft: Draft, verdict: Verdict) -> None:
        """Nothing to learn."""


class Adaptive:
    """As many levels as maximise expected tokens per cost, by each depth's recent acceptance: long drafts early,
    shorter ones where acceptance falls or the text is long. Never less than one drafted token: without any, nothing
    would be learnt.
    """

    def __init__(
        self,
        cost: CostCurve | None = None,
        belief: Belief = BELIEF,
        growth: float = GROWTH,
        drafting: float = 0.0,
    ) -> None:
        """drafting: seconds that each level of a draft costs before it is verified."""
        self._cost, self._belief, self._growth = cost or UNMEASURED, belief, growth
        self._drafting = drafting
        self._near: tuple[int, CostCurve] | None = None
        self.start()

    def start(self) -> None:
        """A new text: believe the prior again."""
        self._right: list[float] = []
        self._seen: list[float] = []
        self._rows: list[float] = []

    def rows(self, length: int, most: int) -> int:
        cost, best, speed, width = self._over(length), min(2.0, most), 0.0, 1.0
        expected, reach, rate = 1.0, 1.0, self._belief.rate
        for depth in range(most - 1):
            rate = self._rate(depth, rate)
            reach *= rate
            expected += reach
            width = min(width + self._level(depth), most)
            seconds = self._seconds(cost, math.ceil(width), length) + self._drafting * (depth + 1)
            if (gain := expected / seconds) > speed:
                best, speed = width, gain
            if width >= most or reach < UNLIKELY:
                break
        return math.ceil(best)

    def observe(self, draft: Draft, verdict: Verdict) -> None:
        self._right = [x * self._belief.decay for x in self._right]
        self._seen = [x * self._belief.decay for x in self._seen]
        levels = draft.levels
        self._reserve(len(levels))
        for depth, count in enumerate(levels):
            self._rows[depth] += (count - self._rows[depth]) / 4
        for depth in range(len(verdict.path)):
            self._right[depth] += 1.0
            self._seen[depth] += 1.0
        end = verdict.path[-1] if verdict.path else ROOT
        if any(p == end and c for p, c in zip(draft.parents, draft.candidate, strict=True)):
            self._seen[len(verdict.path)] += 1.0

    def _over(self, length: int) -> CostCurve:
        """The curve over about this length."""
        if self._near is None or self._near[0] != length // NEARLY:
            self._near = length // NEARLY, self._cost.over(length // NEARLY * NEARLY)
        return self._near[1]

    def _rate(self, depth: int, believed: float) -> float:
        """P(a token at this depth is accepted | those above it); leans on the depth above."""
        if depth >= len(self._seen):
            return believed
        prior = self._belief.prior
        return (self._right[depth] + prior * believed) / (self._seen[depth] + prior)

    def _level(self, depth: int) -> float:
        """Rows that drafts have at this depth."""
        return max(1.0, self._rows[min(depth, len(self._rows) - 1)]) if self._rows else 1.0

    def _seconds(self, cost: CostCurve, width: int, length: int) -> float:
        """cost: the curve over this length, where it knows how it grows."""
        growth = 0.0 if self._cost.growth else self._growth
        return cost.at(width) + growth * length * (width - 1) * cost.at(1)

    def _reserve(self, depths: int) -> None:
        missing = depths - len(self._seen)
        self._right += [0.0] * missing
        self._seen += [0.0] * missing
        self._rows += [1.0] * missing


def choose(own_pace: bool, pinned: bool, cost: CostCurve | None, drafting: float = 0.0) -> Policy:
    """The policy of a generation. own_pace: the method weighs its own lengths, or needs a steady width. pinned: the
    user gave a width or a number of drafted tokens. drafting: as of `Adaptive`."""
    return Fixed() if own_pace or pinned else Adaptive(cost, drafting=drafting)


def known_cost(options: Sampling, measured: CostCurve | None) -> CostCurve | None:
    """The curve that may decide widths: under a seed none that was measured, since a seed has to give the same text
    when it is measured again. Greedy text does not depend on widths."""
    return measured if options.greedy or options.seed is None else None
