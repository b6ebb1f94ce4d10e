"""Trees that an EAGLE drafter grows, level by level.

Enters: what the drafter says after the text, a way to read drafted tokens, and a shape. Leaves: nodes, those of a level
behind those of the level above, and which of them are the draft.

Dynamic (EAGLE-2, Li et al. 2024, arXiv 2406.16858): each level reads the `branches` tokens of it with the most
probable paths and takes `branches` children of each; at the end the best `total` of all nodes stay. A path is never
likelier than its beginning, so what stays is a tree. A token that is not among the best `total` so far never will be,
nor will its descendants: it is left out at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from spec_edge.runtime.draft import ROOT
from spec_edge.runtime.drafted import Node, best_nodes, path_to
from spec_edge.runtime.eagle_rows import Level, Rows
from spec_edge.runtime.trees import Ranks

Children = Callable[[Level, int, Sequence[int], int], Sequence[tuple[int, float]]]
"""(level, row of it, drafted tokens down to that row, how many) -> the likeliest next tokens and log-probabilities."""


@dataclass
class _Tree:
    """Nodes so far. place: drafted row of each node that was read. parts: level and row that each came from."""

    rows: Rows
    children: Children
    nodes: list[Node] = field(default_factory=list)
    place: dict[int, int] = field(default_factory=dict)
    parts: list[tuple[Level, int]] = field(default_factory=list)
    read: int = 0

    def grow(self, parent: int, level: Level, row: int, ranks: Sequence[int], floor: float = -math.inf) -> list[int]:
        """Children of these ranks below a node, which `row` of `level` is of, unless their paths are below `floor`;
        where those that there are lie now."""
        found = self.children(level, row, path_to(self.nodes, parent), max(ranks) + 1)
        reach = 0.0 if parent == ROOT else self.nodes[parent].reach
        start = len(self.nodes)
        below = [found[rank] for rank in ranks if rank < len(found) and reach + found[rank][1] >= floor]
        self.nodes += [Node(token, parent, reach + score) for token, score in below]
        self.parts += [(level, row)] * len(below)
        return list(range(start, len(self.nodes)))

    def expand(self, chosen: Sequence[int]) -> Level:
        """Read these nodes."""
        hidden = np.stack([self.parts[i][0].hidden[self.parts[i][1]] for i in chosen])
        parents = [ROOT if self.nodes[i].parent == ROOT else self.place[self.nodes[i].parent] for i in chosen]
        level = self.rows.expand([self.nodes[i].token for i in chosen], hidden, parents)
        self.place |= {i: self.read + at for at, i in enumerate(chosen)}
        self.read += len(chosen)
        return level


def dynamic(
    rows: Rows, first: Level, children: Children, depth: int, branches: int, total: int
) -> tuple[list[Node], list[int]]:
    """(nodes, those of the draft in their order). depth: levels of the tree."""
    tree = _Tree(rows, children)
    frontier = tree.grow(ROOT, first, 0, range(branches))
    for _ in range(depth - 1):
        reached = sorted((node.reach for node in tree.nodes), reverse=True)
        floor = reached[total - 1] if len(reached) >= total else -math.inf
        chosen = [i for i in frontier if tree.nodes[i].reach >= floor][: rows.room]
        if not chosen:
            break
        level = tree.expand(chosen)
        below = [new for row, i in enumerate(chosen) for new in tree.grow(i, level, row, range(branches), floor)]
        frontier = sorted(below, key=lambda i: (-tree.nodes[i].reach, i))[:branches]
    return tree.nodes, sorted(best_nodes(tree.nodes, total))


def static(rows: Rows, first: Level, children: Children, paths: Sequence[Ranks]) -> tuple[list[Node], list[int]]:
    """The same for a tree of given ranks. paths: shallow ones first, each behind its beginning."""
    tree = _Tree(rows, children)
    ranks: dict[Ranks, list[int]] = {}
    for path in paths:
        ranks.setdefault(path[:-1], []).append(path[-1])
    where: dict[Ranks, int] = {(): ROOT}
    level = first
    inner: list[Ranks] = [()] if paths else []
    while inner:
        grown: list[Ranks] = []
        for row, path in enumerate(inner):
            places = tree.grow(where[path], level, row, ranks[path])
            new = [(*path, rank) for rank, _ in zip(ranks[path], places, strict=False)]
            where |= dict(zip(new, places, strict=True))
            grown += new
        inner = [path for path in grown if path in ranks][: rows.room]
        if inner:
            level = tree.expand([where[path] for path in inner])
    return tree.nodes, list(range(len(tree.nodes)))
