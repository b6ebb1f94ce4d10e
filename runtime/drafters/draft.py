"""A small model of the same vocabulary drafts, one token after the other.

Enters: every token so far and a `DraftModel`. Leaves: a chain, greedy or drawn (with the law of each token), or a tree
of the likeliest continuations. The draft model's laws go through the same transforms as the target's, on each path.

Sources: Leviathan et al. 2023 (arXiv 2211.17192) and Chen et al. 2023 (arXiv 2302.01318) for chains; best-first trees
by the product of the draft's own probabilities as in EAGLE-2 (Li et al. 2024, arXiv 2406.16858).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from spec_edge.models.contract import BadUsage
from spec_edge.runtime.costs import CostCurve
from spec_edge.runtime.draft import EMPTY, ROOT, UNREAD, Context, Draft, Output, Verdict
from spec_edge.runtime.draft_model import DraftModel, Logits
from spec_edge.runtime.drafted import DrawnLaws, Node, as_draft, best_nodes, drawn_chain, greedy_chain, log, path_to
from spec_edge.runtime.drafters.options import DrafterOptions
from spec_edge.runtime.law import Law, likeliest
from spec_edge.runtime.pace import NEXT, Confidence, Pace, Stop
from spec_edge.runtime.processors import Past
from spec_edge.runtime.providers.provider import ProviderFailed
from spec_edge.runtime.sampling import Sampler
from spec_edge.runtime.trie import Scores
from spec_edge.runtime.worth import promise

READS = ("draft", "draft_tokens", "draft_confidence", "tree", "cost")
"""What this method reads that not every one does: see `drafters/options.py`."""

DRAFT_TOKENS = 4
PACED_TOKENS = 7
"""Most drafted tokens: where nothing says what they cost, and where their costs are known and end the chain."""

CONFIDENCE = 0.4
"""Drafting stops where the draft model's best token is less likely than this. On 345 tokens of training prompts
(Qwen2.5 Coder 0.5B for 1.5B) the best token was the target's in 41 % of the cases below, in 88 % above."""

BRANCHES = 4
"""Children of a node, and nodes expanded in a level, of a best-first tree."""


class DraftDrafter:
    """Chains, or trees where `options.tree` says so."""

    name = "draft"
    wants: frozenset[str] = frozenset()

    def __init__(self, model: DraftModel, options: DrafterOptions) -> None:
        self._model, self._options = model, options
        self._sampler, self._drawing = options.sampler, not options.sampler.options.greedy
        self._least = CONFIDENCE if options.confidence is None else options.confidence
        self._given, most = self._pace(options)
        self._stop = self._given
        self._most = options.draft_tokens or len(options.tree or ()) or most
        # By this law greedy continuations are ranked: penalties stay, nothing is cut.
        whole = replace(options.sampler.options, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
        self._ranking = self._sampler if self._drawing else Sampler(whole)
        self._prompt = 0
        self._laws = DrawnLaws(self._most, model.tokens)
        self._scratch: NDArray[np.float32] = np.empty(0, np.float32)

    @property
    def seconds(self) -> float | None:
        """Of each drafted token, where costs end the chains, so that no policy has to. None: they do not."""
        return self._stop.step if isinstance(self._stop, Pace) else None

    def promises(self, cost: CostCurve, most: int) -> float:
        """Gain over plain decoding that a chain promises before there is one."""
        return 1.0 if self.seconds is None else promise(cost, self.seconds, NEXT, most)

    def spent(self, draft: Draft) -> float:
        """Seconds that drafting took."""
        return len(draft.levels) * (self.seconds or 0.0)

    def start(self, prompt: Sequence[int], read: Output = UNREAD) -> None:  # noqa: ARG002
        """Read the prompt, apart from what it shares with the last text."""
        self._prompt = len(prompt)
        self._stop = self._given.over(len(prompt)) if isinstance(self._given, Pace) else self._given
        self._model.begin()
        self._model.follow(prompt)

    def propose(self, context: Context, width: int) -> Draft:
        """A chain's q is a view, valid until the next call."""
        return self.propose_scored(context, width)[0]

    def propose_scored(self, context: Context, width: int) -> tuple[Draft, Scores]:
        """The draft, and the probability that the draft model gives each row's path."""
        if width < 2 or (logits := self._model.follow(context.ids)) is None:
            return EMPTY, []
        # The last drafted token is not run, so it needs no row.
        most = min(self._most, width - 1, self._model.session.capacity - len(context.ids) + 1)
        try:
            if self._options.tree is not None:
                return self._tree(context.ids[-1], logits, most, width - 1)
            return self._drawn(logits, most, context) if self._drawing else self._greedy(logits, most)
        except FloatingPointError as error:
            raise ProviderFailed(f"draft model: {error}; it computes garbage, try another precision of it") from None

    def observe(self, verdict: Verdict, draft: Draft, output: Output) -> None:
        """Nothing: the next `propose` reads the outcome from the text."""

    def _pace(self, options: DrafterOptions) -> tuple[Stop, int]:
        """What ends a greedy chain and its longest: by costs, unless they are unknown or the user says how to draft."""
        said = options.draft_tokens is not None or options.confidence is not None or options.tree is not None
        if said or self._drawing or options.cost is None or options.draft_seconds is None:
            return Confidence(self._least), DRAFT_TOKENS
        return Pace(options.cost, options.draft_seconds, self._least), PACED_TOKENS

    def _greedy(self, logits: Logits, most: int) -> tuple[Draft, Scores]:
        def best(logits: Logits) -> tuple[int, float]:
            token = self._sampler.best(logits, self._past)
            return token, self._likelihood(logits, token)

        nodes = greedy_chain(logits, self._model.extend, best, most, self._stop)
        return as_draft(nodes, range(len(nodes)))

    def _drawn(self, logits: Logits, most: int, context: Context) -> tuple[Draft, Scores]:
        def law(logits: Logits) -> Law:
            return self._sampler.law(logits, self._past)

        kept = self._laws.keep
        return self._laws.draft(drawn_chain(logits, self._model.extend, law, kept, context.rng, most, self._least))

    @property
    def _past(self) -> Past:
        return Past(self._model.text, self._prompt)

    def _likelihood(self, logits: Logits, token: int) -> float:
        """Probability of the best token before any transform, in float32: it only decides whether to go on."""
        if self._scratch.size != logits.size:
            self._scratch = np.empty(logits.size, np.float32)
        weights = np.exp(np.subtract(logits, logits[token], out=self._scratch), out=self._scratch)
        return 1.0 / float(weights.sum())

    def _tree(self, pending: int, logits: Logits, depth: int, most: int) -> tuple[Draft, Scores]:
        """Level by level; the run of a level holds the nodes expanded so far, which are few."""
        wanted, at_once = (self._options.tree, most) if self._options.tree else ((BRANCHES,) * depth, BRANCHES)
        room = min(self._model.session.max_width - 1, self._model.session.capacity - len(self._model.text))
        text = Past(self._model.text.copy(), self._prompt)
        nodes = [Node(t, ROOT, log(p)) for t, p in self._top(logits, text, wanted[0])]
        spread: list[int] = []
        for branches in wanted[1:depth]:
            frontier = [i for i in best_nodes(nodes, most) if i not in spread][:at_once]
            frontier = frontier[: room - len(spread)]
            if not frontier:
                break
            spread += frontier
            rows = self._model.grown(pending, as_draft(nodes, spread)[0])[-len(frontier) :]
            for logits, i in zip(rows, frontier, strict=True):
                after = self._top(logits, text + path_to(nodes, i), branches)
                nodes += [Node(t, i, log(p) + nodes[i].reach) for t, p in after]
        return as_draft(nodes, sorted(best_nodes(nodes, most)))

    def _top(self, logits: Logits, past: Past, count: int) -> list[tuple[int, float]]:
        return likeliest(self._ranking.law(logits, past), count)


def create(options: DrafterOptions) -> DraftDrafter:
    """The drafter of this file. BadUsage without a draft model."""
    if options.draft is None:
        raise BadUsage("method 'draft' needs a second bundle: name it with --draft, or export the model with --draft")
    return DraftDrafter(options.draft, options)
