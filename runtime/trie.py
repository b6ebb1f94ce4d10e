"""Several proposals in one tree: candidates that share a prefix share its rows.

Enters: drafts in order of priority, a width, optionally an estimate of each row's chance to be accepted.
Leaves: one `Draft` of point masses. `q` is dropped: after merging, which siblings stand beside a token depends on
more than the law it was drawn from, and the ratio rule would no longer give the target's law.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from spec_edge.models.contract import SpecError
from spec_edge.runtime.draft import EMPTY, ROOT, Draft

Scores = Sequence[float]
"""Per row of a draft: the estimated probability that the whole path down to it is accepted."""


@dataclass
class _Node:
    """A token below its prefix. `score`: the best of the drafts that hold it; `order`: first come first."""

    token: int
    parent: _Node | None
    order: int
    score: float = 0.0
    children: dict[int, _Node] = field(default_factory=dict)
    row: int = ROOT


def merge(drafts: Sequence[Draft], width: int, scores: Sequence[Scores] | None = None) -> Draft:
    """One tree of at most width - 1 rows in topological order; the same arguments give the same tree.

    scores   None: the first draft's rows come first, each draft's in its own order. Otherwise one list per draft:
             the rows with the highest scores come first, ties in that same order; a row counts no more than its parent
    Rows with candidate=False (one draft at most may have them, else SpecError) stay rows of their own in that draft's
    shape, behind the candidates, and have their room first. A row whose parent finds no room is left out.
    """
    windows = [d for d in drafts if not all(d.candidate)]
    if len(windows) > 1:
        raise SpecError(f"{len(windows)} drafts hold rows that are no candidates; merge one of them at most")
    if scores is not None and [len(s) for s in scores] != [len(d) for d in drafts]:
        raise SpecError("a merge needs one score per row of each draft")
    room = max(width - 1, 0)
    reserved = min(room, sum(not c for d in windows for c in d.candidate))
    root = _Node(-1, None, -1, float("inf"))
    starts = itertools.accumulate((len(d) for d in drafts), initial=0)
    rated: Sequence[Scores] = scores if scores is not None else [(0.0,) * len(d) for d in drafts]
    where = [_grow(root, d, s, start) for d, s, start in zip(drafts, rated, starts, strict=False)]
    chosen = _best_first(root, room - reserved)
    if not chosen and not windows:
        return EMPTY
    tokens, parents = [n.token for n in chosen], [n.parent.row if n.parent else ROOT for n in chosen]
    count = len(tokens)
    for draft, nodes in zip(drafts, where, strict=True):
        _append_window(draft, nodes, reserved + count, tokens, parents)
    return Draft(tuple(tokens), tuple(parents), tuple(i < count for i in range(len(tokens))))


def _grow(root: _Node, draft: Draft, scores: Scores, start: int) -> dict[int, _Node]:
    """Add the draft's candidates below `root`; the node of each row. Rows behind a non-candidate can never count."""
    nodes: dict[int, _Node] = {ROOT: root}
    for row, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        if not draft.candidate[row] or parent not in nodes:
            continue
        above = nodes[parent]
        node = above.children.get(token)
        if node is None:
            node = above.children[token] = _Node(token, above, start + row)
        node.score = max(node.score, min(scores[row], above.score))
        nodes[row] = node
    return nodes


def _best_first(root: _Node, room: int) -> list[_Node]:
    """The best `room` nodes below `root`, parents before children; gives each its row."""
    chosen: list[_Node] = []
    heap = [(-n.score, n.order, n) for n in root.children.values()]
    heapq.heapify(heap)
    while heap and len(chosen) < room:
        node = heapq.heappop(heap)[2]
        node.row = len(chosen)
        chosen.append(node)
        for child in node.children.values():
            heapq.heappush(heap, (-child.score, child.order, child))
    return chosen


def _append_window(draft: Draft, nodes: dict[int, _Node], end: int, tokens: list[int], parents: list[int]) -> None:
    """The draft's non-candidate rows, up to `end` rows in all, below rows that are there."""
    rows = {ROOT: ROOT} | {i: n.row for i, n in nodes.items() if n.row != ROOT}
    for i, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        if draft.candidate[i] or parent not in rows or len(tokens) >= end:
            continue
        rows[i] = len(tokens)
        tokens.append(token)
        parents.append(rows[parent])
