"""Medusa: heads on the target's last hidden state each predict one later token; their best ones make a tree.

Enters: the hidden state of the last accepted token, told by `start` and `observe`. Leaves: a static tree (a published
one, one from a file, or the one that fits the width best by the heads' accuracies) or, with `--tree best`, the tree
that the heads themselves think likeliest at this step; of that one the rows that are worth their cost where rows are
dear. Point masses, so sampled text keeps the target's law.
Source: Cai et al. 2024 (arXiv 2401.10774).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from spec_edge.models.contract import BadUsage
from spec_edge.runtime.costs import CostCurve
from spec_edge.runtime.draft import EMPTY, ROOT, UNREAD, Context, Draft, Output, Verdict
from spec_edge.runtime.drafters.options import DrafterOptions
from spec_edge.runtime.pace import Ledger, Pace, of_head
from spec_edge.runtime.sessions.medusa import Candidates, Heads
from spec_edge.runtime.trees import Ranks, by_levels, fitting, grown, parents
from spec_edge.runtime.trie import Scores
from spec_edge.runtime.worth import worth

NAME = "medusa"
READS = ("network", "paths", "tree", "draft_tokens", "draft_confidence", "cost")

ACCURACY = (
    (0.560, 0.672, 0.727, 0.760, 0.780),
    (0.316, 0.424, 0.485, 0.528, 0.563),
    (0.201, 0.288, 0.348, 0.383, 0.417),
    (0.147, 0.225, 0.274, 0.311, 0.340),
    (0.118, 0.187, 0.235, 0.272, 0.300),
)
"""How often the target's token is among a head's best 1 to 5, as published for Vicuna-7B (medusa_acc.csv)."""

MOST_ROWS = 16
"""Of a tree whose rows are dear."""

FURTHER = 0.7
"""Of each rank past the known ones, as a share of the rank before it."""


class Medusa:
    """A tree of at most `draft_tokens` rows, or of the whole width."""

    name = NAME
    wants: frozenset[str] = frozenset(("hidden",))

    def __init__(self, session: Heads, options: DrafterOptions) -> None:
        self._session, self._options = session, options
        self._hidden: NDArray[np.float32] | None = None
        self._found: Candidates | None = None
        self._trees: dict[int, tuple[tuple[Ranks, ...], tuple[int, ...]]] = {}
        self._given = self._pace = of_head(options, NAME)
        self._ledger = None if self._pace is None else Ledger(self._pace.cost)
        self._spent: float | None = None
        self._own = EMPTY

    @property
    def seconds(self) -> float | None:
        """Of a run of the heads, where costs choose the rows, so that no policy has to. None: they do not."""
        return None if self._pace is None else self._pace.step

    def promises(self, cost: CostCurve, most: int) -> float:
        """Gain over plain decoding that a draft promises before there is one."""
        if self._pace is None:
            return 1.0
        levels = min(most, self._session.heads)
        return worth([self._pace.next**depth for depth in range(1, levels + 1)], cost, self._pace.step)[1]

    def spent(self, draft: Draft) -> float:  # noqa: ARG002
        """Seconds that drafting took, whatever was kept of it."""
        return self._spent or 0.0

    def start(self, prompt: Sequence[int], read: Output = UNREAD) -> None:
        """The prompt's last row predicts what follows the first new token."""
        self._found = self._spent = None
        if self._given is not None and self._ledger is not None:
            self._pace = self._given.over(len(prompt))
            self._ledger.start(self._pace.cost)
        self._hidden = None if read.hidden is None else read.hidden[-1].copy()

    def propose(self, context: Context, width: int) -> Draft:
        return self.propose_scored(context, width)[0]

    def propose_scored(self, context: Context, width: int) -> tuple[Draft, Scores]:  # noqa: ARG002
        """The tree, and the probability that the heads give each row's path."""
        nodes = min(width - 1, self._options.draft_tokens or width)
        if self._hidden is None or nodes < 1 or not self._asked(nodes):
            return EMPTY, []
        if self._found is None:
            self._found = self._known(*self._session.run(self._hidden))
        ids, logs = self._found
        paths, above = self._tree(nodes, logs) if self._pace is None else self._worth(self._pace, nodes, logs)
        tokens = [int(ids[len(path) - 1, path[-1]]) for path in paths]
        reach = [0.0] * len(paths)
        for i, (path, parent) in enumerate(zip(paths, above, strict=True)):
            reach[i] = (reach[parent] if parent != ROOT else 0.0) + float(logs[len(path) - 1, path[-1]])
        self._own, scores = _likely(
            Draft(tuple(tokens), above, (True,) * len(tokens)), np.exp(reach), self._options.confidence
        )
        return self._own, scores

    def observe(self, verdict: Verdict, draft: Draft, output: Output) -> None:
        """The row that gave the pending token, whoever drafted."""
        if self._ledger is not None and self._spent is not None:
            self._ledger.learn(verdict, draft, self._own, self._spent)
            self._spent = None
        self._found = None
        self._hidden = None if output.hidden is None else output.hidden[verdict.rows[-1]].copy()

    def _known(self, ids: NDArray[np.int32], logs: NDArray[np.float32]) -> Candidates:
        """Ids that the model has not become one that it has: the text never takes a wrong one."""
        tokens = self._options.sampler.tokens
        wrong = (ids < 0) | (ids >= tokens if tokens is not None else False)
        return (np.where(wrong, 0, ids) if wrong.any() else ids), logs

    def _tree(self, nodes: int, logs: NDArray[np.float32]) -> tuple[tuple[Ranks, ...], tuple[int, ...]]:
        """Paths, shallow ones first, and the row of each one's beginning."""
        levels, ranks = self._session.heads, self._session.top
        if self._options.tree == ():
            paths = fitting(grown(np.exp(logs).tolist(), nodes), levels, ranks, nodes)
            return paths, parents(paths)
        if nodes not in self._trees:
            paths = fitting(self._static(nodes), levels, ranks, nodes)
            self._trees[nodes] = paths, parents(paths)
        return self._trees[nodes]

    def _asked(self, nodes: int) -> bool:
        """Whether a draft is expected to pay, before there is one."""
        if self._pace is None or self._ledger is None:
            return True
        return self.promises(self._pace.cost, nodes) > 1 and self._ledger.asks()

    def _worth(self, pace: Pace, nodes: int, logs: NDArray[np.float32]) -> tuple[tuple[Ranks, ...], tuple[int, ...]]:
        """Of the tree that the heads think likeliest at this step, the rows that are worth running."""
        levels, ranks, self._spent = self._session.heads, self._session.top, pace.step
        best = grown(np.exp(logs).tolist(), min(nodes, MOST_ROWS))
        reach = [math.exp(sum(float(logs[level, rank]) for level, rank in enumerate(path))) for path in best]
        paths = fitting(best[: worth(reach, pace.cost, pace.step)[0]], levels, ranks, nodes)
        return paths, parents(paths)

    def _static(self, nodes: int) -> tuple[Ranks, ...]:
        if self._options.paths is not None:
            return self._options.paths
        if self._options.tree is not None:
            return by_levels(self._options.tree)
        known = self._session.fact.accuracy
        return grown(known or _published(self._session.heads, self._session.top), nodes)


def _published(heads: int, ranks: int) -> list[list[float]]:
    """[head][rank] how often that rank is right; heads past the published ones are as the last."""
    out = []
    for within in (ACCURACY[min(head, len(ACCURACY) - 1)] for head in range(heads)):
        rates = [within[0], *(b - a for a, b in pairwise(within))]
        while len(rates) < ranks:
            rates.append(rates[-1] * FURTHER)
        out.append(rates[:ranks])
    return out


def _likely(draft: Draft, reach: NDArray[np.float64], least: float | None) -> tuple[Draft, Scores]:
    """Without rows less likely than `least`; a row is never likelier than the one above it."""
    if least is None:
        return draft, reach.tolist()
    kept = [i for i in range(len(draft)) if reach[i] >= least]
    place = {row: i for i, row in enumerate(kept)} | {ROOT: ROOT}
    tokens, above = (draft.tokens[i] for i in kept), (place[draft.parents[i]] for i in kept)
    return Draft(tuple(tokens), tuple(above), (True,) * len(kept)), [float(reach[i]) for i in kept]


def create(options: DrafterOptions) -> Medusa:
    """The drafter of this file. BadUsage without heads."""
    session = options.networks.get(NAME)
    if not isinstance(session, Heads):
        raise BadUsage("method 'medusa' needs Medusa heads in the bundle: export the model with --medusa PATH")
    return Medusa(session, options)
