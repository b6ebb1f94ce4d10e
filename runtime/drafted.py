"""Drafted tokens as they are collected, and the draft that they become.

Enters: tokens with the probability of each path, or a network's state and what can be asked of it. Leaves: chains,
or the best part of a tree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from spec_edge.runtime.draft import EMPTY, ROOT, Draft
from spec_edge.runtime.law import Law, draw, probability
from spec_edge.runtime.pace import Stop
from spec_edge.runtime.trie import Scores

State = TypeVar("State")
"""What a drafter's network says after a token."""


@dataclass(frozen=True)
class Node:
    """A drafted token, the node it follows (-1: the text), and the log-probability of its whole path."""

    token: int
    parent: int
    reach: float


def greedy_chain(
    state: State,
    extend: Callable[[int], State],
    best: Callable[[State], tuple[int, float]],
    most: int,
    stop: Stop,
) -> list[Node]:
    """The best token after each, until `stop` says so or `most` are there. best: (token, probability).

    The last token is not given to `extend`: it needs no row.
    """
    nodes: list[Node] = []
    reach = 0.0
    while True:
        token, likely = best(state)
        if not stop.takes(math.exp(reach), likely, len(nodes) + 2):
            return nodes
        reach += log(likely)
        nodes.append(Node(token, len(nodes) - 1, reach))
        if len(nodes) == most or not stop.goes_on(math.exp(reach), len(nodes) + 2):
            return nodes
        state = extend(token)


def drawn_chain(
    state: State,
    extend: Callable[[int], State],
    law_of: Callable[[State], Law],
    keep: Callable[[int, Law], None],
    rng: np.random.Generator,
    most: int,
    least: float,
) -> list[Node]:
    """A token drawn from the law after each; `keep(row, law)` notes the laws.

    Whether to stop is decided before a token is drawn: a token dropped for what it is would bend its law.
    """
    nodes: list[Node] = []
    reach = 0.0
    while True:
        law = law_of(state)
        if law.p.max() < least:
            return nodes
        token = draw(law, rng)
        reach += log(probability(law, token))
        keep(len(nodes), law)
        nodes.append(Node(token, len(nodes) - 1, reach))
        if len(nodes) == most:
            return nodes
        state = extend(token)


def log(p: float) -> float:
    """Of a probability, which may be 0: sums of logarithms tell deep paths apart where products are all 0."""
    return math.log(p) if p > 0 else -math.inf


class DrawnLaws:
    """Rows of a draft's q. The buffer stays: fresh pages cost more than the numbers."""

    def __init__(self, most: int, tokens: int) -> None:
        self._most, self._tokens = most, tokens
        self._q: NDArray[np.float64] = np.empty((0, 0))

    def keep(self, row: int, law: Law) -> None:
        """Row of q: the law in full."""
        if not self._q.size:
            self._q = np.empty((self._most, self._tokens))
        self._q[row] = 0
        self._q[row, law.ids] = law.p

    def draft(self, nodes: Sequence[Node]) -> tuple[Draft, Scores]:
        """The chain with its q, a view that is valid until the next draft."""
        draft, scores = as_draft(nodes, range(len(nodes)))
        return (replace(draft, q=self._q[: len(nodes)]) if nodes else EMPTY), scores


def best_nodes(nodes: Sequence[Node], most: int) -> list[int]:
    """The most likely nodes, ancestors before descendants: a path is never likelier than its beginning."""
    return sorted(range(len(nodes)), key=lambda i: (-nodes[i].reach, i))[:most]


def path_to(nodes: Sequence[Node], node: int) -> list[int]:
    """Tokens from the text down to a node."""
    tokens: list[int] = []
    while node != ROOT:
        tokens.append(nodes[node].token)
        node = nodes[node].parent
    return tokens[::-1]


def as_draft(nodes: Sequence[Node], chosen: Sequence[int]) -> tuple[Draft, Scores]:
    """These nodes as a point-mass draft with their scores; each one's parent is among them and before it."""
    place = {node: at for at, node in enumerate(chosen)} | {ROOT: ROOT}
    tokens, parents = (nodes[i].token for i in chosen), (place[nodes[i].parent] for i in chosen)
    return Draft(tuple(tokens), tuple(parents), (True,) * len(chosen)), [math.exp(nodes[i].reach) for i in chosen]
