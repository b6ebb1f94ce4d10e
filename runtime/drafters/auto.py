"""Another drafter where it pays, plain decoding where it does not.

Enters: every token so far, the drafts of a drafter (by default prompt lookup) and the machine's cost curve t(width).
Leaves: of each draft, or of its chain of first choices, the part that maximises expected tokens per second,
E(d) / t(rows down to depth d) with E(d) = 1 + a1 + a1 a2 + ... + a1..ad, or nothing.

The acceptances a_d are learnt per grade of the draft and depth, from a shadow run: a virtual drafter that always drafts
the whole, whose proposals are compared with what the target then wrote. That costs nothing, goes on while decoding is
plain, and sees the same kind of steps that real drafting would. Only the text and the stored curve decide, never a
clock: the same seed gives the same steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from spec_edge.runtime.costs import UNMEASURED, CostCurve
from spec_edge.runtime.draft import EMPTY, ROOT, UNREAD, Context, Draft, Output, Verdict
from spec_edge.runtime.drafters import prompt_lookup
from spec_edge.runtime.drafters.options import DrafterOptions
from spec_edge.runtime.protocols import Drafter
from spec_edge.runtime.prune import prune

READS = ("cost", "draft_tokens", "max_ngram", "min_ngram")
"""What this method reads that not every one does: see `drafters/options.py`."""

OWN_PACE = True
"""This method chooses the length of its drafts itself: the engine offers it all the room."""

DRAFT_TOKENS = 15
Grade = tuple[tuple[str, ...], int]


@dataclass(frozen=True)
class Belief:
    """margin  gain that a draft must promise over plain decoding: estimates and curves are a few per cent off
    first   acceptance of a first token of grade 0 and of grade 4 or more, before any was seen
    prior   weight of what is believed before, in observations
    decay   what each new observation leaves of the older ones

    By replay on training prompts and seven cost curves (.ci/slow/replay_policy.py): 0.78 of plain decoding's cost on
    average, 0.97 at worst. `first` matters (0.80 with 0.5 for a match of four); the others are flat around these.
    """

    margin: float = 1.03
    first: tuple[float, float] = (0.1, 0.8)
    prior: float = 4.0
    decay: float = 0.98

    def of(self, grade: int) -> float:
        """Acceptance of a first token before any was seen."""
        none, sure = self.first
        return none + (sure - none) * min(grade, 4) / 4


class Acceptance:
    """Running estimate of P(a token at depth d is right | those above it, a draft of this grade)."""

    def __init__(self, depths: int, belief: Belief) -> None:
        self._depths, self._belief = depths, belief
        self._right: dict[Grade, list[float]] = {}
        self._seen: dict[Grade, list[float]] = {}

    def learn(self, grade: Grade, d: int, right: bool) -> None:
        """One comparison at depth d (from 0)."""
        for table, value in ((self._right, float(right)), (self._seen, 1.0)):
            row = table.setdefault(grade, [0.0] * self._depths)
            row[d] = row[d] * self._belief.decay + value

    def rates(self, grade: Grade) -> list[float]:
        """By depth; each leans on the depth above, the first on the grade."""
        rate, prior, none = self._belief.of(grade[1]), self._belief.prior, [0.0] * self._depths
        out = []
        for right, seen in zip(self._right.get(grade, none), self._seen.get(grade, none), strict=True):
            rate = (right + prior * rate) / (seen + prior)
            out.append(rate)
        return out


class Shadow:
    """A virtual drafter: one view of each draft is followed along the text until the text leaves it."""

    def __init__(self, view: Callable[[Draft], Draft], acceptance: Acceptance) -> None:
        self.view, self.acceptance = view, acceptance
        self._draft, self._at, self._known = EMPTY, [ROOT], 0
        self._depth = 0

    def follow(self, ids: Sequence[int], draft: Draft) -> None:
        """Learn from the tokens that are new; where the old draft is decided, begin with this one."""
        while self._known < len(ids) and (below := self._below()):
            at = [i for i in below if self._draft.tokens[i] == ids[self._known]]
            self.acceptance.learn(grade_of(self._draft), self._depth, bool(at))
            self._at, self._known, self._depth = at, self._known + 1, self._depth + 1
        if not self._below():
            self._draft, self._at, self._known, self._depth = self.view(draft), [ROOT], len(ids), 0

    def _below(self) -> list[int]:
        draft = self._draft
        return [i for i, p in enumerate(draft.parents) if p in self._at and draft.candidate[i]]


def grade_of(draft: Draft) -> Grade:
    """Drafts with the same one are learnt together."""
    return draft.sources, draft.grade


def first_choices(draft: Draft) -> Draft:
    """The chain that begins with a tree's first token and goes on with the first child of each."""
    if draft.is_chain:
        return draft
    path, at = [], ROOT
    while (child := next((i for i, p in enumerate(draft.parents) if p == at and draft.candidate[i]), None)) is not None:
        path.append(child)
        at = child
    q = None if draft.q is None else draft.q[path]
    return replace(Draft.chain([draft.tokens[i] for i in path], q), sources=draft.sources, grade=draft.grade)


def best_depth(
    rates: Sequence[float], levels: Sequence[int], cost: CostCurve, width: int, margin: float
) -> tuple[int, float]:
    """(the depth with the most expected tokens per second, that gain over plain); (0, margin) if none beats it."""
    best, gain = 0, margin
    expected = reach = 1.0
    rows = 1
    for depth, (rate, level) in enumerate(zip(rates, levels, strict=False), 1):
        reach *= rate
        expected += reach
        rows += level
        if rows > width:
            break
        if expected * cost.at(1) / cost.at(rows) > gain:
            best, gain = depth, expected * cost.at(1) / cost.at(rows)
    return best, gain


class Auto:
    """Another drafter with a depth chosen at every step. Not for drafters whose drafts carry rows of another use."""

    name = "auto"

    def __init__(self, inner: Drafter, cost: CostCurve, most: int, belief: Belief | None = None) -> None:
        self._inner, self._given, self._most, self._belief = inner, cost, most, belief or Belief()
        self.start(())

    @property
    def wants(self) -> frozenset[str]:
        return self._inner.wants

    def start(self, prompt: Sequence[int], read: Output = UNREAD) -> None:
        """A new text: forget the estimates."""
        self._inner.start(prompt, read)
        self._cost = self._given.over(len(prompt))
        views: list[Callable[[Draft], Draft]] = [first_choices, lambda draft: draft]
        self._shadows = [Shadow(view, Acceptance(self._most, self._belief)) for view in views]

    def propose(self, context: Context, width: int) -> Draft:
        draft = self._inner.propose(context, self._most + 1)
        if len(draft) and not draft.sources:
            draft = replace(draft, sources=(self._inner.name,))
        for shadow in self._shadows:
            shadow.follow(context.ids, draft)
        choices = []
        for shadow in self._shadows[: 1 if draft.is_chain else 2]:
            view = shadow.view(draft)
            rates = shadow.acceptance.rates(grade_of(view))
            depth, gain = best_depth(rates, view.levels, self._cost, width, self._belief.margin)
            choices.append((gain, depth, view))
        _, depth, view = max(choices, key=lambda choice: choice[0])
        return prune(view, len(view), depth, max(view.tokens, default=0) + 1)

    def observe(self, verdict: Verdict, draft: Draft, output: Output) -> None:
        """The next `propose` reads the outcome from the text; the inner drafter may learn more."""
        self._inner.observe(verdict, draft, output)


def create(options: DrafterOptions) -> Auto:
    """Prompt lookup, from one equal token on: the estimates tell which matches pay."""
    most = options.draft_tokens or DRAFT_TOKENS
    inner = prompt_lookup.create(replace(options, draft_tokens=most, min_ngram=options.min_ngram or 1))
    return Auto(inner, options.cost or UNMEASURED, most)
