"""Prompt lookup where it pays, plain decoding where it does not.

Enters: every token so far and the machine's cost curve t(width). Leaves: the chain whose length maximises
expected tokens per second, E(k) / t(k + 1) with E(k) = 1 + a1 + a1 a2 + ..., or nothing.

The acceptances a_j are learnt per length of the match and position in the draft, from a shadow run: a virtual
drafter that always drafts the full length, whose proposals are compared with what the target then wrote. That
costs nothing, goes on while decoding is plain, and sees the same kind of steps that real drafting would.
Only the text and the stored curve decide, never a clock: the same seed gives the same steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from spec_edge.runtime.costs import UNMEASURED, CostCurve
from spec_edge.runtime.draft import EMPTY, Context, Draft, Output, Verdict
from spec_edge.runtime.drafters.options import DrafterOptions
from spec_edge.runtime.drafters.prompt_lookup import NgramIndex, continuation

READS = ("cost",)
"""Options of `create` that take time to find out and are worth it here."""

DRAFT_TOKENS = 15
MARGIN = 1.03
"""Gain that a draft must promise over plain decoding: estimates and curves are a few per cent off."""
PRIOR = 4.0
"""Weight of what is believed before, in observations. The belief itself errs on the plain side: learning is free."""
DECAY = 0.98
"""Each new observation leaves this much of the older ones: a memory of about 50."""


class Acceptance:
    """Running estimate of P(position j is right | those before it are, match of length n)."""

    def __init__(self, longest: int, positions: int) -> None:
        self._longest = longest
        self._right = [[0.0] * positions for _ in range(longest + 1)]
        self._seen = [[0.0] * positions for _ in range(longest + 1)]

    def learn(self, n: int, j: int, right: bool) -> None:
        """One comparison at position j (from 0) of a draft that followed a match of length n."""
        self._seen[n][j] = self._seen[n][j] * DECAY + 1.0
        self._right[n][j] = self._right[n][j] * DECAY + right

    def rates(self, n: int) -> list[float]:
        """By position; each leans on the position before it, the first on the length of the match."""
        believed = (0.1 + 0.9 * n / self._longest) / 2
        out = []
        for right, seen in zip(self._right[n], self._seen[n], strict=True):
            believed = (right + PRIOR * believed) / (seen + PRIOR)
            out.append(believed)
        return out


def best_length(rates: Sequence[float], cost: CostCurve, most: int) -> int:
    """The k <= most with the most expected tokens per second, 0 if none beats plain decoding by the margin."""
    best, speed = 0, MARGIN / cost.at(1)
    expected, reach = 1.0, 1.0
    for k, rate in enumerate(rates[:most], 1):
        reach *= rate
        expected += reach
        if expected / cost.at(k + 1) > speed:
            best, speed = k, expected / cost.at(k + 1)
    return best


class Auto:
    """Prompt lookup with a length chosen at every step."""

    name = "auto"
    wants: frozenset[str] = frozenset()

    def __init__(self, options: DrafterOptions) -> None:
        self._options = options
        self._most = options.draft_tokens or DRAFT_TOKENS
        self._cost = options.cost or UNMEASURED
        self.start(())

    def start(self, prompt: Sequence[int]) -> None:
        """A new text: index the prompt, forget the estimates."""
        self._index = NgramIndex(self._options.min_ngram or 1, self._options.max_ngram)
        self._index.update(prompt)
        self._acceptance = Acceptance(self._options.max_ngram, self._most)
        self._shadow: list[int] = []
        self._matched = 0
        self._checked = 0
        self._begun = 0

    def propose(self, context: Context, width: int) -> Draft:
        ids = context.ids
        self._index.update(ids)
        matched, start = self._index.find(ids)
        self._learn(ids, matched, start)
        most = min(self._most, width - 1)
        if not matched or most < 1:
            return EMPTY
        k = best_length(self._acceptance.rates(matched), self._cost, most)
        return Draft.chain(continuation(ids, start, k)) if k else EMPTY

    def observe(self, verdict: Verdict, draft: Draft, output: Output) -> None:
        """Nothing: the next `propose` reads the outcome from the text."""

    def _learn(self, ids: Sequence[int], matched: int, start: int) -> None:
        """Compare the shadow draft with the text; once it is decided, begin the next one here."""
        while self._checked < len(self._shadow) and self._begun + self._checked < len(ids):
            right = self._shadow[self._checked] == ids[self._begun + self._checked]
            self._acceptance.learn(self._matched, self._checked, right)
            self._checked = self._checked + 1 if right else len(self._shadow)
        if self._checked == len(self._shadow):
            self._matched, self._checked, self._begun = matched, 0, len(ids)
            self._shadow = continuation(ids, start, self._most) if matched else []


def create(options: DrafterOptions) -> Auto:
    """The drafter of this file."""
    return Auto(options)
