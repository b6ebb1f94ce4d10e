"""Acceptance: which drafted tokens the target itself would have produced.

Enters: a `Draft` and, asked for one visited row at a time, the target's best token or law there.
Leaves: a `Verdict`. Pure functions; the output law is the target's own, whatever the draft.

Sources: Leviathan et al. 2023 (arXiv 2211.17192) for the ratio rule; the point-mass rule is its case
of a proposal drawn with certainty, repeated over siblings as in SpecInfer (arXiv 2305.09781).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from spec_edge.models.contract import SpecError
from spec_edge.runtime.draft import ROOT, Draft, Verdict
from spec_edge.runtime.sampling import Floats, Law, draw, probability, residual, without

Tokens = tuple[int, ...]
Best = Callable[[int, Tokens], int]
"""(verify row, tokens accepted before it) -> the target's best token."""
Laws = Callable[[int, Tokens], Law]
"""(verify row, tokens accepted before it) -> the target's law."""


class Chance(Protocol):
    """The two random decisions. A test enumerates them, so the law of `sampled` is known exactly."""

    def accept(self, probability: float) -> bool: ...

    def pick(self, law: Law) -> int: ...


class Dice:
    """Chance from a generator."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def accept(self, probability: float) -> bool:
        return self._rng.random() < probability

    def pick(self, law: Law) -> int:
        return draw(law, self._rng)


def greedy(draft: Draft, best: Best) -> Verdict:
    """The longest path along which every token is the best one, and the best token after it."""
    at: list[int] = [ROOT]
    tokens: Tokens = ()
    while True:
        tokens = (*tokens, best(at[0] + 1, tokens))
        after = [i for i in _children(draft, at) if draft.tokens[i] == tokens[-1]]
        if not after:
            return Verdict(_path(draft, at[0]), tokens)
        at = after


def sampled(draft: Draft, laws: Laws, chance: Chance) -> Verdict:
    """Tokens with the target's law. A draft with `q` must be a chain (SpecError)."""
    if draft.q is None:
        return _point_mass(draft, laws, chance)
    if not draft.is_chain:
        raise SpecError("a drafted tree with probabilities cannot be verified exactly; leave its q out")
    return _ratio(draft, draft.q, laws, chance)


def _point_mass(draft: Draft, laws: Laws, chance: Chance) -> Verdict:
    """Siblings in order: accept x with probability p(x), else rule it out; at the end draw from what is left."""
    at: list[int] = [ROOT]
    tokens: Tokens = ()
    while True:
        law = laws(at[0] + 1, tokens)
        below = _children(draft, at)
        for token in dict.fromkeys(draft.tokens[i] for i in below):
            p = probability(law, token)
            if chance.accept(p):
                break
            law = without(law, token) if p > 0 else law
        else:
            return Verdict(_path(draft, at[0]), (*tokens, chance.pick(law)))
        at = [i for i in below if draft.tokens[i] == token]
        tokens = (*tokens, token)


def _ratio(draft: Draft, q: Floats, laws: Laws, chance: Chance) -> Verdict:
    """Accept x drawn from q with probability min(1, p/q), else draw from norm(max(0, p - q))."""
    tokens: Tokens = ()
    for row, token in enumerate(draft.tokens):
        if not draft.candidate[row]:
            break
        law, drawn = laws(row, tokens), float(q[row, token])
        if not drawn > 0:
            raise SpecError(f"drafted token {token} has probability {drawn} in its own q; the drafter is wrong")
        if not chance.accept(min(1.0, probability(law, token) / drawn)):
            return Verdict(tuple(range(row)), (*tokens, chance.pick(residual(law, q[row]))))
        tokens = (*tokens, token)
    return Verdict(tuple(range(len(tokens))), (*tokens, chance.pick(laws(len(tokens), tokens))))


def _children(draft: Draft, at: Sequence[int]) -> list[int]:
    """Candidates that follow any node of `at`: copies of one path, so that duplicate siblings lose nothing."""
    return [i for i, parent in enumerate(draft.parents) if parent in at and draft.candidate[i]]


def _path(draft: Draft, node: int) -> tuple[int, ...]:
    path: list[int] = []
    while node != ROOT:
        path.append(node)
        node = draft.parents[node]
    return tuple(reversed(path))
