"""Suffix decoding: a tree of what followed the text's last tokens, in the text so far and in a pool of earlier ones.

Enters: every token so far. Leaves: a tree, grown from its most probable row on, in the width. A row's probability is
the product along its path of estimates that blend the counts of several lengths of context, the longest first.
Sources: Oliaro et al. 2024, SuffixDecoding (arXiv 2411.04975), for trees by frequency; the blend is that of prediction
by partial matching (Cleary and Witten 1984).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from spec_edge.runtime.draft import ROOT, UNREAD, Context, Draft, Output, Verdict
from spec_edge.runtime.drafters.options import DrafterOptions
from spec_edge.runtime.suffix_automaton import SuffixAutomaton
from spec_edge.runtime.trie import Scores

READS = ("draft_tokens",)
"""What this method reads that not every one does: see `drafters/options.py`."""

FLOOR = 0.05
"""Rows less probable than this are not drafted."""

ORDERS = 4
"""Lengths of context that an estimate blends."""

DOUBT = 1.0
NOVELTY = 0.25
"""Trust in a context of m tokens, seen n times with d different followers: m / (m + DOUBT) * n / (n + NOVELTY d)."""

ENOUGH = 0.05
"""Probability left over for shorter contexts below which they are not asked."""

Place = tuple[int, int]
"""(state, matched length) in an automaton."""


class Source:
    """An automaton, and where the text's end stands in it. `follow`: the text is not part of it (a pool)."""

    def __init__(self, automaton: SuffixAutomaton, follow: bool) -> None:
        self.automaton = automaton
        self._follow = follow
        self._place: Place = (0, 0)

    def add(self, token: int) -> None:
        """One more token of the text."""
        if self._follow:
            self._place = self.automaton.step(*self._place, token)
        else:
            self.automaton.add(token)

    def place(self) -> Place:
        return self._place if self._follow else self.automaton.context()


def estimate(sources: Sequence[Source], places: Sequence[Place]) -> dict[int, float]:
    """Token -> probability that it comes next; what is missing to 1 is for tokens that never followed."""
    contexts: list[tuple[int, int, list[tuple[int, int]]]] = []
    for i, (source, (state, matched)) in enumerate(zip(sources, places, strict=True)):
        automaton, orders = source.automaton, 0
        while matched > 0 and orders < ORDERS:
            if followers := automaton.followers(state):
                contexts.append((-matched, i, followers))
                orders += 1
            state = automaton.link[state]
            matched = automaton.length[state]
    contexts.sort(key=lambda c: c[:2])
    out: dict[int, float] = {}
    left = 1.0
    for m, _, followers in contexts:
        n = sum(c for _, c in followers)
        trust = left * -m / (DOUBT - m) * n / (n + NOVELTY * len(followers))
        for token, count in followers:
            out[token] = out.get(token, 0.0) + trust * count / n
        left -= trust
        if left < ENOUGH:
            break
    return out


def grow(sources: Sequence[Source], rows: int, floor: float = FLOOR) -> tuple[Draft, Scores]:
    """A tree of at most `rows` tokens, the most probable ones, and each row's probability."""
    tokens: list[int] = []
    parents: list[int] = []
    scores: list[float] = []
    # (-probability, order of discovery, token, parent row, places before the token)
    heap: list[tuple[float, int, int, int, list[Place]]] = []
    found = 0

    def look(row: int, reach: float, places: list[Place]) -> None:
        nonlocal found
        for token, p in estimate(sources, places).items():
            if reach * p >= floor:
                heapq.heappush(heap, (-reach * p, found, token, row, places))
                found += 1

    if rows > 0:
        look(ROOT, 1.0, [s.place() for s in sources])
    while heap and len(tokens) < rows:
        score, _, token, parent, places = heapq.heappop(heap)
        tokens.append(token)
        parents.append(parent)
        scores.append(-score)
        if len(tokens) < rows:
            after = [s.automaton.step(*place, token) for s, place in zip(sources, places, strict=True)]
            look(len(tokens) - 1, -score, after)
    return Draft(tuple(tokens), tuple(parents), (True,) * len(tokens)), scores


class Suffix:
    """A tree of at most `draft_tokens` rows, or of the whole width."""

    name = "suffix"
    wants: frozenset[str] = frozenset()

    def __init__(self, options: DrafterOptions) -> None:
        self._options = options
        self.start(())

    def start(self, prompt: Sequence[int], read: Output = UNREAD) -> None:  # noqa: ARG002
        """A new text."""
        self._sources = [Source(SuffixAutomaton(), follow=False)]
        if self._options.pool is not None:
            self._sources.append(Source(self._options.pool.automaton, follow=True))
        self._known = 0
        self._take_in(prompt)

    def propose(self, context: Context, width: int) -> Draft:
        return self.propose_scored(context, width)[0]

    def propose_scored(self, context: Context, width: int) -> tuple[Draft, Scores]:
        """The tree, and each row's probability."""
        self._take_in(context.ids)
        return grow(self._sources, min(width - 1, self._options.draft_tokens or width))

    def observe(self, verdict: Verdict, draft: Draft, output: Output) -> None:
        """Nothing to learn: the text itself is the memory."""

    def _take_in(self, ids: Sequence[int]) -> None:
        for i in range(self._known, len(ids)):
            for source in self._sources:
                source.add(ids[i])
        self._known = max(self._known, len(ids))


def create(options: DrafterOptions) -> Suffix:
    """The drafter of this file."""
    return Suffix(options)
