"""Several drafters as one: `a+b`.

Enters: drafters in order of priority. Leaves: a drafter that merges their proposals into one tree ("merge") or takes
the first proposal ("cascade"). Every member observes every step, whoever proposed; what it is shown is the draft that
was run, which may hold rows of others and lack some of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Protocol, runtime_checkable

from spec_edge.models.contract import BadUsage
from spec_edge.models.plugins import find
from spec_edge.runtime.costs import CostCurve
from spec_edge.runtime.draft import EMPTY, ROOT, UNREAD, Context, Draft, Output, Verdict
from spec_edge.runtime.drafters.options import MODES, DrafterOptions
from spec_edge.runtime.networks import NETWORK
from spec_edge.runtime.paced import paced, seconds
from spec_edge.runtime.protocols import Drafter
from spec_edge.runtime.prune import prune
from spec_edge.runtime.survivor import Survivor
from spec_edge.runtime.trie import Scores, merge_scored
from spec_edge.runtime.worth import worth

DRAFTERS = "spec_edge.runtime.drafters"
RATE = 0.6
"""Chance of each next row of a proposal that comes without estimates."""

PACED_WIDTH = 17
"""Width that members are offered where costs cut the draft afterwards: more rows are hardly ever worth it."""


@runtime_checkable
class Scored(Protocol):
    """A drafter that also says how probable each row is (see `trie.Scores`)."""

    def propose_scored(self, context: Context, width: int) -> tuple[Draft, Scores]: ...


def scored(drafter: Drafter, context: Context, width: int) -> tuple[Draft, Scores]:
    """A proposal with its own estimates, or with RATE to the power of each row's depth."""
    if isinstance(drafter, Scored):
        return drafter.propose_scored(context, width)
    draft = drafter.propose(context, width)
    return draft, [RATE ** int(depth) for depth in draft.depths[1:]]


def merged(drafters: Sequence[Drafter], context: Context, width: int, cost: CostCurve | None = None) -> Draft:
    """Everybody proposes; the most probable rows that fit and, with a cost curve, are worth their cost."""
    pairs = _proposals(drafters, context, width, cost)
    drafts = [p[0] for p in pairs]
    draft, chances = pairs[0] if len(pairs) == 1 else merge_scored(drafts, width, [p[1] for p in pairs])
    if cost is not None and all(draft.candidate):
        spent = sum(one.spent(own) for d, own in zip(drafters, drafts, strict=True) if (one := paced(d)) is not None)
        draft = prune(draft, worth(chances, cost, spent)[0], len(draft), max(draft.tokens, default=0) + 1)
    kept = set(_paths(draft))
    named = [d.name for d, own in zip(drafters, drafts, strict=True) if not kept.isdisjoint(_paths(own))]
    return replace(draft, sources=tuple(named))


def _proposals(
    drafters: Sequence[Drafter], context: Context, width: int, cost: CostCurve | None
) -> list[tuple[Draft, Scores]]:
    """In the drafters' order. With a cost curve those that take time are asked last, and only where they promise more
    than what is there already."""
    found: dict[int, tuple[Draft, Scores]] = {}
    gain = 1.0
    for i in sorted(range(len(drafters)), key=lambda i: seconds(drafters[i]) or 0.0):
        one = paced(drafters[i])
        if cost is None or one is None or one.promises(cost, width - 1) > gain:
            found[i] = scored(drafters[i], context, width)
        else:
            found[i] = EMPTY, []
        if cost is not None:
            spent = 0.0 if one is None else one.spent(found[i][0])
            gain = max(gain, worth(sorted(found[i][1], reverse=True), cost, spent)[1])
    return [found[i] for i in range(len(drafters))]


def _paths(draft: Draft) -> list[tuple[int, ...]]:
    """Tokens from the text down to each row."""
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        paths.append((*(paths[parent] if parent != ROOT else ()), token))
    return paths


def cascade(drafters: Sequence[Drafter], context: Context, width: int, cost: CostCurve | None = None) -> Draft:  # noqa: ARG001
    """The first proposal that holds a candidate; without one, the last that holds anything."""
    found = EMPTY
    for drafter in drafters:
        draft = drafter.propose(context, width)
        draft = replace(draft, sources=(drafter.name,)) if len(draft) else draft
        if any(draft.candidate):
            return draft
        found = draft if len(draft) else found
    return found


Mode = Callable[[Sequence[Drafter], Context, int, CostCurve | None], Draft]
MODE: Mapping[str, Mode] = {"merge": merged, "cascade": cascade}


class Hybrid:
    """members: every one. enabled: indices of those that propose; change it with `enable` between two generations.

    cost  t(width): weighs a merged draft's rows where a member is one that takes time
    """

    def __init__(self, members: Sequence[Drafter], mode: str, cost: CostCurve | None = None) -> None:
        self.members = tuple(members)
        self.mode = mode
        self._given = self._cost = cost
        self.enabled = frozenset(range(len(self.members)))

    @property
    def name(self) -> str:
        return "+".join(m.name for m in self.members)

    @property
    def wants(self) -> frozenset[str]:
        return frozenset().union(*(m.wants for m in self.members))

    @property
    def seconds(self) -> float | None:
        """As `seconds` of the members that propose; None too in a cascade, which weighs nothing, and where one of them
        needs a width that others choose."""
        if self.mode != "merge" or any(getattr(self.members[i], "steady", False) for i in self.enabled):
            return None
        return max((s for i in self.enabled if (s := seconds(self.members[i])) is not None), default=None)

    def enable(self, name: str, on: bool) -> None:
        """Let the members of this name propose, or not. BadUsage: there is none."""
        which = {i for i, m in enumerate(self.members) if m.name == name}
        if not which:
            raise BadUsage(f"'{name}' is no member of {self.name}")
        self.enabled = self.enabled | which if on else self.enabled - which

    def start(self, prompt: Sequence[int], read: Output = UNREAD) -> None:
        self._cost = None if self._given is None else self._given.over(len(prompt))
        for member in self.members:
            member.start(prompt, read)

    def propose(self, context: Context, width: int) -> Draft:
        active = [m for i, m in enumerate(self.members) if i in self.enabled]
        cost = self._cost if self.seconds is not None else None
        width = width if cost is None else min(width, PACED_WIDTH)
        return MODE[self.mode](active, context, width, cost) if active else EMPTY

    def observe(self, verdict: Verdict, draft: Draft, output: Output) -> None:
        for member in self.members:
            member.observe(verdict, draft, output)


def compose(drafters: Sequence[Drafter], mode: str, cost: CostCurve | None = None) -> Hybrid:
    """One drafter of several. BadUsage: an unknown mode, fewer than two, or one of them twice."""
    names = [d.name for d in drafters]
    if mode not in MODE:
        raise BadUsage(f"a hybrid is one of {', '.join(MODES)}, not '{mode}'")
    if len(names) < 2 or len(set(names)) < len(names):
        raise BadUsage(f"a hybrid needs two different methods, not {'+'.join(names) or 'none'}")
    return Hybrid(drafters, mode, cost)


def quiet(line: str) -> None:
    """Nobody listens."""


def create(method: str, options: DrafterOptions, say: Callable[[str], None] = quiet) -> Drafter:
    """The drafter of a method's name, `a` or `a+b`. BadUsage: an unknown name, or `off` names no member.

    say: takes one line where a network fails; the drafter that wants it then drafts no more.
    """
    drafters = [_member(find(DRAFTERS, "create", name.strip(), "method"), options, say) for name in method.split("+")]
    if len(drafters) == 1 and not options.off:
        return drafters[0]
    hybrid = compose(drafters, options.hybrid, options.cost)
    for name in options.off:
        hybrid.enable(name, False)
    return hybrid


def _member(module: ModuleType, options: DrafterOptions, say: Callable[[str], None]) -> Drafter:
    drafter: Drafter = module.create(options)
    if not {NETWORK, "draft"} & set(getattr(module, "READS", ())):
        return drafter
    return Survivor(drafter, partial(scored, drafter), say)
