"""EAGLE: a small network on the target's own features drafts; EAGLE-1, 2 and 3 differ in the network, not here.

Enters: the target's features of committed rows, told by `start` and `observe`, and every token so far. Leaves: a chain,
greedy or drawn (with the law of each token), a static tree, or EAGLE-2's tree, which a step's own probabilities shape;
where rows are dear, a chain with its tokens' siblings, as far as they are worth their cost.
Trees are point masses, so sampled text keeps the target's law.

Sources: Li et al. 2024 (EAGLE, arXiv 2401.15077; EAGLE-2, arXiv 2406.16858) and 2025 (EAGLE-3, arXiv 2503.01840).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from spec_edge.models.contract import BadUsage
from spec_edge.runtime.costs import CostCurve
from spec_edge.runtime.draft import EMPTY, ROOT, UNREAD, Context, Draft, Output, Verdict
from spec_edge.runtime.drafted import DrawnLaws, Node, as_draft, best_nodes, drawn_chain, greedy_chain
from spec_edge.runtime.drafters.options import DrafterOptions
from spec_edge.runtime.eagle_model import EagleModel
from spec_edge.runtime.eagle_rows import F32, Level, Rows
from spec_edge.runtime.eagle_tree import dynamic, static
from spec_edge.runtime.law import Law, likeliest
from spec_edge.runtime.pace import Confidence, Ledger, Pace, of_head
from spec_edge.runtime.processors import Past
from spec_edge.runtime.providers.provider import ProviderFailed
from spec_edge.runtime.sampling import Sampler
from spec_edge.runtime.trees import by_levels, fitting
from spec_edge.runtime.trie import Scores
from spec_edge.runtime.worth import promise, worth

NAME = "eagle"
READS = ("network", "paths", "tree", "draft_tokens", "draft_confidence", "cost")

NOTHING = (0, -1.0)
"""No token: less likely than any bound."""

NO_LAW = Law(np.zeros(1, np.int64), np.full(1, -1.0))
"""The same as a law."""

ROUNDING = 1e-3
"""What a log-probability may be above 0."""

DRAFT_TOKENS = 4
PACED_TOKENS, SIBLINGS = 5, 4
"""Most levels of a draft that costs end, and tokens of each level."""

CONFIDENCE = 0.3
"""A chain ends where its best token is less likely. That is about what a further token costs on a CPU, in plain steps:
a row of the verify run and one of the drafter. On training prompts (2,047 tokens of a small trained drafter) likelihood
and accuracy agree: 0.27 are right between 0.2 and 0.3, 0.34 between 0.3 and 0.4."""

NARROW = 8
"""Below this width a tree has no room to branch: a chain is drafted."""

BRANCHES = 10
"""Tokens that EAGLE-2 reads in a level, and children of each."""

DEPTHS = {8: 4, 16: 5, 32: 6, 64: 7}
"""Levels of EAGLE-2's tree from each width on."""


class _Chain:
    """The rows of a chain that is being drafted, and its tokens."""

    def __init__(self, rows: Rows, first: Level) -> None:
        self._rows, self._level = rows, first
        self.tokens: list[int] = []

    def extend(self, token: int) -> Level:
        after = len(self.tokens) - 1  # ROOT for the first
        self._level = self._rows.expand([token], self._level.hidden[-1:], [after])
        self.tokens.append(token)
        return self._level


class Eagle:
    """Chains and trees of one drafter."""

    name = NAME

    def __init__(self, model: EagleModel, options: DrafterOptions) -> None:
        self._model, self._options = model, options
        self._sampler, self._drawing = options.sampler, not options.sampler.options.greedy
        self._least = CONFIDENCE if options.confidence is None else options.confidence
        self._given = self._pace = of_head(options, NAME)
        self._ledger = None if self._pace is None else Ledger(self._pace.cost)
        self._spent: float | None = None
        self._own = EMPTY
        self._laws = DrawnLaws(options.draft_tokens or DRAFT_TOKENS, model.tokens)
        # By this law trees are ranked: penalties stay, nothing is cut.
        whole = replace(options.sampler.options, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
        self._ranking = Sampler(whole, tokens=model.tokens)
        self._prompt = 0
        self._text: Sequence[int] = ()
        self.wants = frozenset((model.rows.reads,))

    @property
    def seconds(self) -> float | None:
        """Of each level, where costs end the drafts, so that no policy has to. None: they do not."""
        return None if self._pace is None else self._pace.step

    def promises(self, cost: CostCurve, most: int) -> float:
        """Gain over plain decoding that a draft promises before there is one."""
        return 1.0 if self._pace is None else promise(cost, self._pace.step, self._pace.next, most)

    def spent(self, draft: Draft) -> float:  # noqa: ARG002
        """Seconds that drafting took, whatever was kept of it."""
        return self._spent or 0.0

    def start(self, prompt: Sequence[int], read: Output = UNREAD) -> None:
        self._prompt, self._spent = len(prompt), None
        if self._given is not None and self._ledger is not None:
            self._pace = self._given.over(len(prompt))
            self._ledger.start(self._pace.cost)
        self._model.begin(prompt, self._features(read))

    def observe(self, verdict: Verdict, draft: Draft, output: Output) -> None:
        """Keep the true features of what was accepted, whoever drafted it."""
        features = self._features(output)
        if features is not None:
            self._model.observe(features[list(verdict.rows)], verdict.tokens)
        if self._ledger is not None and self._spent is not None:
            self._ledger.learn(verdict, draft, self._own, self._spent)
            self._spent = None

    def propose(self, context: Context, width: int) -> Draft:
        """A drawn chain's q is a view, valid until the next call."""
        return self.propose_scored(context, width)[0]

    def propose_scored(self, context: Context, width: int) -> tuple[Draft, Scores]:
        """The draft, and the probability that the drafter gives each row's path."""
        pace = self._pace
        if width < 2 or not self._asked(width):
            return EMPTY, []
        if (level := self._model.follow(context.ids)) is None:
            return EMPTY, []
        self._text = context.ids
        try:
            if pace is not None:
                return self._comb(pace, level, width - 1)
            if self._chains(width):
                most = min(self._options.draft_tokens or DRAFT_TOKENS, width - 1, self._model.rows.room + 1)
                return self._drawn(level, most, context) if self._draws(level) else self._greedy(level, most)
            return self._tree(level, width - 1)
        except FloatingPointError as error:
            raise ProviderFailed(f"EAGLE drafter: {error}; it computes garbage, try another precision of it") from None

    def _asked(self, width: int) -> bool:
        """Whether a draft is expected to pay, before there is one."""
        if self._pace is None or self._ledger is None:
            return True
        return self.promises(self._pace.cost, width - 1) > 1 and self._ledger.asks()

    def _comb(self, pace: Pace, level: Level, total: int) -> tuple[Draft, Scores]:
        """A chain, as long as a further run pays; of its tokens and their siblings the rows that are worth running."""
        chain, nodes, parent, reach = _Chain(self._model.rows, level), list[Node](), ROOT, 0.0
        most = min(PACED_TOKENS, self._model.rows.room + 1)
        while found := self._children(level, 0, chain.tokens, SIBLINGS):
            first, (token, likely) = len(nodes), found[0]
            nodes += [Node(other, parent, reach + score) for other, score in found]
            parent, reach, depth = first, reach + likely, len(chain.tokens) + 1
            if depth == most or not pace.goes_on(math.exp(reach), depth + 2):
                break
            level = chain.extend(token)
        best = best_nodes(nodes, total)
        self._spent = (len(chain.tokens) + 1) * pace.step
        rows = worth([math.exp(nodes[i].reach) for i in best], pace.cost, self._spent)[0]
        self._own, scores = as_draft(nodes, sorted(best[:rows]))
        return self._own, scores

    def _features(self, output: Output) -> F32 | None:
        return output.taps if "taps" in self.wants else output.hidden

    def _chains(self, width: int) -> bool:
        """Whether a chain is asked for, or all that there is room for."""
        o = self._options
        if o.tree is not None or o.paths is not None:
            return False
        return width < NARROW or o.draft_tokens is not None or o.confidence is not None

    def _draws(self, level: Level) -> bool:
        """Static graphs give no logits: what they draft is not drawn."""
        return self._drawing and level.logits is not None

    def _greedy(self, level: Level, most: int) -> tuple[Draft, Scores]:
        chain = _Chain(self._model.rows, level)

        def best(level: Level) -> tuple[int, float]:
            found = self._children(level, 0, chain.tokens, 1)
            return (found[0][0], math.exp(found[0][1])) if found else NOTHING

        nodes = greedy_chain(level, chain.extend, best, most, Confidence(self._least))
        return as_draft(nodes, range(len(nodes)))

    def _drawn(self, level: Level, most: int, context: Context) -> tuple[Draft, Scores]:
        chain = _Chain(self._model.rows, level)

        def law(level: Level) -> Law:
            logits = self._model.logits(level, 0)  # None: it moved to static graphs, which give none
            if logits is None or not self._sound(level, 0, chain.tokens):
                return NO_LAW
            return self._sampler.law(logits, self._past(chain.tokens))

        nodes = drawn_chain(level, chain.extend, law, self._laws.keep, context.rng, most, self._least)
        return self._laws.draft(nodes)

    def _tree(self, level: Level, total: int) -> tuple[Draft, Scores]:
        o, rows = self._options, self._model.rows
        paths = o.paths or by_levels(o.tree or ())
        if paths:
            kept = fitting(paths, total, level.ids.shape[1], total)
            nodes, chosen = static(rows, level, self._children, kept)
        else:
            depth = o.draft_tokens or max(d for width, d in DEPTHS.items() if width <= max(total + 1, NARROW))
            nodes, chosen = dynamic(rows, level, self._children, depth, min(BRANCHES, total), total)
        if o.confidence is not None:  # a row is never likelier than the one above it
            chosen = [i for i in chosen if math.exp(nodes[i].reach) >= o.confidence]
        return as_draft(nodes, chosen)

    def _children(self, level: Level, row: int, path: Sequence[int], count: int) -> list[tuple[int, float]]:
        """The likeliest tokens after a row, best first, with their log-probabilities; none that is impossible."""
        if not self._sound(level, row, path):
            return []
        if self._ranking.changes and (logits := self._model.logits(level, row)) is not None:
            return [(t, math.log(p)) for t, p in likeliest(self._ranking.law(logits, self._past(path)), count)]
        pairs = zip(level.ids[row].tolist(), level.logprobs[row].tolist(), strict=True)
        known = [(token, min(score, 0.0)) for token, score in pairs if 0 <= token < self._model.tokens]
        return [(token, score) for token, score in known if score > -math.inf][:count]

    def _sound(self, level: Level, row: int, path: Sequence[int]) -> bool:
        """Whether a row's law is one. FloatingPointError right after the text; further down a head may run away from
        its own features, and is followed no further."""
        best = float(level.logprobs[row, 0])
        sound = math.isfinite(best) and best <= ROUNDING
        if not path and not sound:
            raise FloatingPointError(f"a log-probability is {best}")
        return sound

    def _past(self, path: Sequence[int]) -> Past:
        """What stands before a row; only penalties and bad words ask for it."""
        if not self._sampler.reads_past:
            return Past(np.empty(0, np.int64))
        return Past(np.asarray(self._text, np.int64), self._prompt) + path


def create(options: DrafterOptions) -> Eagle:
    """The drafter of this file. BadUsage without its network."""
    model = options.networks.get(NAME)
    if not isinstance(model, EagleModel):
        raise BadUsage("method 'eagle' needs an EAGLE drafter in the bundle: export the model with --eagle PATH")
    return Eagle(model, options)
