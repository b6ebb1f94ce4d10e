"""Acceptance: which drafted tokens the target itself would have produced.

Enters: a `Draft` and, asked for one visited row at a time, the target's best token or law there.
Leaves: a `Verdict`. Pure functions. The output law of `greedy` and `exact` is the target's own, whatever the draft;
that of `typical` is not: it is LOSSY.

| rule        | for                                                              | accepts x                    |
| greedy      | temperature 0                                                    | if it is the best token      |
| point mass  | a draft without q: merged, pruned, ranked in any way             | with p(x), else rules it out |
| ratio       | a draft with q: a chain, or siblings drawn without replacement   | with min(1, p(x) / q(x))     |
| typical     | sampling with `accept="typical"`                                 | if p(x) > min(e, a exp(-H))  |

Sources: Leviathan et al. 2023 (arXiv 2211.17192), ratio; Miao et al. 2023 (SpecInfer, arXiv 2305.09781), siblings;
Cai et al. 2024 (Medusa, arXiv 2401.10774), typical.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from spec_edge.models.contract import SpecError
from spec_edge.runtime.draft import ROOT, Draft, Verdict
from spec_edge.runtime.law import Floats, Law, draw, probability, residual, without
from spec_edge.runtime.sampling import Sampling

Tokens = tuple[int, ...]
Best = Callable[[int, Tokens], int]
"""(verify row, tokens accepted before it) -> the target's best token."""
Laws = Callable[[int, Tokens], Law]
"""(verify row, tokens accepted before it) -> the target's law."""


class Chance(Protocol):
    """The two random decisions. A test enumerates them, so the law of a rule is known exactly."""

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


Rule = Callable[[Draft, Laws, Chance], Verdict]


def sampled(options: Sampling) -> Rule:
    """The rule of a sampled generation."""
    return RULES[options.accept](options)


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


def exact(draft: Draft, laws: Laws, chance: Chance) -> Verdict:
    """Tokens with the target's law. SpecError: a draft whose `q` cannot be what its tokens were drawn from."""
    if draft.q is None:
        return point_mass(draft, laws, chance)
    _check_drawn(draft, draft.q)
    return ratio(draft, draft.q, laws, chance)


def point_mass(draft: Draft, laws: Laws, chance: Chance) -> Verdict:
    """Siblings in order: accept x with probability p(x), else rule it out; at the end draw from what is left.

    Exact for any candidates chosen without looking at the target's draw.
    """
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


def ratio(draft: Draft, q: Floats, laws: Laws, chance: Chance) -> Verdict:
    """Siblings in order: accept x drawn from q with probability min(1, p/q), else go on with norm(max(0, p - q)).

    Exact if q[i] is the law that token i was drawn from, given the siblings before it; on any other tree it is wrong.
    """
    at = ROOT
    tokens: Tokens = ()
    while True:
        law = laws(at + 1, tokens)
        for node in _children(draft, [at]):
            token = draft.tokens[node]
            if chance.accept(min(1.0, probability(law, token) / float(q[node, token]))):
                break
            law = residual(law, q[node])
        else:
            return Verdict(_path(draft, at), (*tokens, chance.pick(law)))
        at, tokens = node, (*tokens, token)


def _check_drawn(draft: Draft, q: Floats) -> None:
    """Each token is possible in its q, and its q excludes the siblings before it, as drawing without replacement does:
    a merged or ranked tree, or one whose q was not renormalised, fails here instead of bending the law unseen."""
    for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        if not q[node, token] > 0:
            raise SpecError(
                f"drafted token {token} has probability {q[node, token]} in its own q; the drafter is wrong"
            )
        if any(draft.parents[i] == parent and q[node, draft.tokens[i]] > 0 for i in range(node)):
            raise SpecError(
                f"drafted token {token}: its q still holds a sibling before it, so it was not drawn without "
                "replacement; leave the draft's q out"
            )


def typical(options: Sampling) -> Rule:
    """LOSSY. Accept x where p(x) > min(epsilon, alpha exp(-H(p))), along the longest such path (of several, the
    likeliest), then draw one token from the law after it. H in nats, with Medusa's 1e-5 under the logarithm."""

    def rule(draft: Draft, laws: Laws, chance: Chance) -> Verdict:
        # (depth, log-probability) and tokens of each accepted node, and the law after it
        paths: dict[int, tuple[tuple[int, float], Tokens]] = {ROOT: ((0, 0.0), ())}
        after: dict[int, Law] = {}
        for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
            if parent not in paths or not draft.candidate[node]:
                continue
            (depth, score), tokens = paths[parent]
            law = after[parent] if parent in after else after.setdefault(parent, laws(parent + 1, tokens))
            p = probability(law, token)
            if p > _threshold(law, options):
                paths[node] = ((depth + 1, score + math.log(p)), (*tokens, token))
        end = max(paths, key=lambda node: paths[node][0])
        tokens = paths[end][1]
        return Verdict(_path(draft, end), (*tokens, chance.pick(laws(end + 1, tokens))))

    return rule


def _threshold(law: Law, options: Sampling) -> float:
    entropy = -float((law.p * np.log(law.p + 1e-5)).sum())
    return min(options.typical_epsilon, options.typical_alpha * math.exp(-entropy))


RULES: dict[str, Callable[[Sampling], Rule]] = {"exact": lambda _: exact, "typical": typical}


def _children(draft: Draft, at: Sequence[int]) -> list[int]:
    """Candidates that follow any node of `at`: copies of one path, so that duplicate siblings lose nothing."""
    return [i for i, parent in enumerate(draft.parents) if parent in at and draft.candidate[i]]


def _path(draft: Draft, node: int) -> tuple[int, ...]:
    path: list[int] = []
    while node != ROOT:
        path.append(node)
        node = draft.parents[node]
    return tuple(reversed(path))
