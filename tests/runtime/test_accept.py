# ruff: noqa: ARG005 (stand-ins for protocols take what those take)
"""Acceptance gives the target's own law: by enumeration, through the real code, to 1e-12."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_edge.models.contract import SpecError
from spec_edge.runtime import accept
from spec_edge.runtime.draft import EMPTY, Draft, Verdict
from spec_edge.runtime.law import Law
from spec_edge.runtime.processors import Past
from spec_edge.runtime.sampling import Sampler, Sampling

V = 4
Tokens = tuple[int, ...]
Node = tuple[int, int, np.ndarray]
OPTIONS = [
    Sampling(1.0),
    Sampling(0.6, top_k=2),
    Sampling(1.3, top_p=0.7),
    Sampling(1.0, min_p=0.3),
    Sampling(1.0, repetition_penalty=1.7),
    Sampling(0.8, top_k=3, top_p=0.9, min_p=0.05, repetition_penalty=0.6),
    Sampling(1.0, presence_penalty=1.5, frequency_penalty=-0.7),
    Sampling(1.0, logit_bias={0: -2.0, 3: 1.5}, bad_words=((2,), (1, 0), (1, 0, 3))),
    Sampling(0.9, 3, 0.9, 0.02, 1.4, frequency_penalty=0.8, logit_bias={1: 0.5}, bad_words=((1, 1),)),
]


class Script:
    """Chance that follows given choices, then takes each first possible one and notes the others."""

    def __init__(self, choices: Tokens) -> None:
        self.choices, self.weight, self.others, self._at = choices, 1.0, [], 0

    def _choose(self, options: list[tuple[int, float]]) -> int:
        options = [(o, w) for o, w in options if w > 0]
        if self._at == len(self.choices):
            self.others += [(*self.choices, i) for i in range(1, len(options))]
            self.choices = (*self.choices, 0)
        option, weight = options[self.choices[self._at]]
        self._at += 1
        self.weight *= weight
        return option

    def accept(self, probability: float) -> bool:
        return bool(self._choose([(1, probability), (0, 1 - probability)]))

    def pick(self, law: Law) -> int:
        return self._choose(list(zip(law.ids.tolist(), law.p.tolist(), strict=True)))


def outcomes(run: Callable[[Script], Verdict]) -> Iterator[tuple[Verdict, float]]:
    todo: list[Tokens] = [()]
    while todo:
        chance = Script(todo.pop())
        verdict = run(chance)
        todo += chance.others
        yield verdict, chance.weight


class Target:
    """Random logits at every path; its law after the transforms."""

    def __init__(self, seed: int, options: Sampling) -> None:
        self.seed, self.options = seed, options

    @cache  # noqa: B019
    def law(self, path: Tokens) -> Law:
        logits = np.random.default_rng([self.seed, *path]).normal(size=V) * 1.5
        return Sampler(self.options).law(logits, Past(np.array([1, *path]), 1))

    def p(self, path: Tokens) -> np.ndarray:
        out = np.zeros(V)
        law = self.law(path)
        out[law.ids] = law.p
        return out

    def joint(self, n: int) -> dict[Tokens, float]:
        return {
            t: float(np.prod([self.p(t[:i])[t[i]] for i in range(n)])) for t in itertools.product(range(V), repeat=n)
        }


def add(joint: dict[Tokens, float], target: Target, tokens: Tokens, weight: float, n: int) -> None:
    """Count an outcome's first n tokens; later steps, if it is shorter, are the target's own."""
    if len(tokens) >= n:
        joint[tokens[:n]] += weight
        return
    for token, p in enumerate(target.p(tokens)):
        if p:
            add(joint, target, (*tokens, token), weight * p, n)


def error(joint: dict[Tokens, float], target: Target, n: int) -> float:
    want = target.joint(n)
    return max(abs(joint[t] - want[t]) for t in want)


@st.composite
def trees(draw: st.DrawFn) -> Draft:
    n = draw(st.integers(0, 6))
    return Draft(
        tuple(draw(st.integers(0, V - 1)) for _ in range(n)),
        tuple(draw(st.integers(-1, i - 1)) for i in range(n)),
        tuple(draw(st.booleans()) or draw(st.booleans()) for _ in range(n)),
    )


@settings(max_examples=150, deadline=None)
@given(trees(), st.integers(0, 1000), st.sampled_from(OPTIONS))
def test_point_mass_law_is_exact_for_any_tree(draft: Draft, seed: int, options: Sampling) -> None:
    target, joint = Target(seed, options), defaultdict(float)
    for verdict, weight in outcomes(lambda c: accept.exact(draft, lambda _, path: target.law(path), c)):
        check(draft, verdict)
        add(joint, target, verdict.tokens, weight, 3)
    assert error(joint, target, 3) < 1e-12


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 1000),
    st.sampled_from(OPTIONS),
    st.sampled_from(OPTIONS),
    st.sampled_from([(True, True), (True, False), (False, True)]),
)
def test_ratio_law_is_exact_for_a_chain(
    seed: int, options: Sampling, drafted: Sampling, candidate: tuple[bool, bool]
) -> None:
    target, drafter, joint = Target(seed, options), Target(seed + 5000, drafted), defaultdict(float)
    for tokens in itertools.product(range(V), repeat=2):
        q = np.stack([drafter.p(()), drafter.p(tokens[:1])])
        chance = float(q[0, tokens[0]] * q[1, tokens[1]])
        if not chance:
            continue
        draft = Draft(tokens, (-1, 0), candidate, q)

        def run(c: Script, draft: Draft = draft) -> Verdict:
            return accept.exact(draft, lambda _, path: target.law(path), c)

        for verdict, weight in outcomes(run):
            check(draft, verdict)
            add(joint, target, verdict.tokens, weight * chance, 3)
    assert error(joint, target, 3) < 1e-12


def drawn_trees(drafter: Target, path: Tokens, shape: tuple[int, ...]) -> Iterator[tuple[list[Node], float]]:
    """Every tree in which shape[d] siblings at depth d are drawn without replacement, with its probability.

    A node is (token, parent, q); nodes come level by level below `path`, each level below the first child only.
    """
    if not shape:
        yield [], 1.0
        return
    q = drafter.p(path)
    for tokens in itertools.permutations(np.flatnonzero(q).tolist(), min(shape[0], int(np.count_nonzero(q)))):
        nodes, chance, rest = [], 1.0, q.copy()
        for token in tokens:
            nodes.append((token, -1, rest / rest.sum()))
            chance *= nodes[-1][2][token]
            rest = rest.copy()
            rest[token] = 0
        for below, more in drawn_trees(drafter, (*path, tokens[-1]), shape[1:]):
            shift = len(nodes)
            last = [(t, shift - 1 if p < 0 else p + shift, law) for t, p, law in below]
            yield nodes + last, chance * more


@pytest.mark.parametrize("shape", [(1, 1), (2,), (3,), (4,), (2, 2), (2, 1, 1)])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("options", OPTIONS[:2] + OPTIONS[-1:])
def test_ratio_law_is_exact_for_siblings_without_replacement(
    shape: tuple[int, ...], seed: int, options: Sampling
) -> None:
    """p and q with zeros; children below the last sibling, so that they are reached after rejections."""
    for drafted in (OPTIONS[0], OPTIONS[1], OPTIONS[5]):
        target, drafter, joint = Target(seed, options), Target(seed + 77, drafted), defaultdict(float)
        for nodes, chance in drawn_trees(drafter, (), shape):
            tokens, parents, laws = zip(*nodes, strict=True)
            draft = Draft(tokens, parents, (True,) * len(nodes), np.stack(laws))

            def run(c: Script, draft: Draft = draft, target: Target = target) -> Verdict:
                return accept.exact(draft, lambda _, path: target.law(path), c)

            for verdict, weight in outcomes(run):
                check(draft, verdict)
                add(joint, target, verdict.tokens, weight * chance, 2)
        assert error(joint, target, 2) < 1e-12


def test_the_ratio_rule_on_a_merged_tree_is_wrong_and_refused() -> None:
    """Two tokens drawn from p itself, merged into siblings of which the likelier comes first: token 0 gains."""
    p = Law(np.arange(3), np.array([0.5, 0.3, 0.2]))
    by_ratio, by_point_mass = np.zeros(3), np.zeros(3)
    for pair in itertools.product(range(3), repeat=2):
        tokens = tuple(sorted(set(pair)))
        draft = Draft(tokens, (-1,) * len(tokens), (True,) * len(tokens), np.tile(p.p, (len(tokens), 1)))
        chance = float(p.p[list(pair)].prod())
        for verdict, weight in outcomes(lambda c, d=draft: accept.ratio(d, d.q, lambda row, path: p, c)):
            by_ratio[verdict.tokens[0]] += weight * chance
        bare = replace(draft, q=None)
        for verdict, weight in outcomes(lambda c, d=bare: accept.exact(d, lambda row, path: p, c)):
            by_point_mass[verdict.tokens[0]] += weight * chance
        if len(tokens) > 1:
            with pytest.raises(SpecError, match="leave the draft's q out"):
                accept.exact(draft, lambda row, path: p, Script(()))
    assert by_ratio == pytest.approx([0.75, 0.21, 0.04], abs=1e-12)
    assert by_point_mass == pytest.approx(p.p, abs=1e-12)


def medusa(draft: Draft, target: Target, o: Sampling) -> tuple[int, float]:
    """(longest accepted prefix over all leaf paths, largest log-probability among those as long), written as Medusa
    does: every path in full, then its leading accepted part."""
    results = [(0, 0.0)]
    for node in range(len(draft)):
        path = []
        while node >= 0:
            path.insert(0, node)
            node = draft.parents[node]
        score, length = 0.0, 0
        for i, n in enumerate(path):
            p = target.p(tuple(draft.tokens[m] for m in path[:i]))
            limit = min(o.typical_epsilon, o.typical_alpha * np.exp((p * np.log(p + 1e-5)).sum()))
            if not draft.candidate[n] or p[draft.tokens[n]] <= limit:
                break
            score, length = score + np.log(p[draft.tokens[n]]), length + 1
        results.append((length, score))
    return max(results)


@settings(max_examples=150, deadline=None)
@given(trees(), st.integers(0, 1000), st.sampled_from([(0.09, 0.3), (0.3, 0.09), (1.0, 1.0), (0.0, 0.0)]))
def test_typical_acceptance_is_medusas(draft: Draft, seed: int, limits: tuple[float, float]) -> None:
    options = Sampling(0.7, accept="typical", typical_epsilon=limits[0], typical_alpha=limits[1])
    target, rule = Target(seed, options), accept.sampled(options)
    length, score = medusa(draft, target, options)
    ends = np.zeros(V)
    for verdict, weight in outcomes(lambda c: rule(draft, lambda _, path: target.law(path), c)):
        check(draft, verdict)
        tokens = verdict.tokens[:-1]
        assert len(tokens) == length
        assert sum(np.log(target.p(tokens[:i])[t]) for i, t in enumerate(tokens)) == pytest.approx(score)
        ends[verdict.tokens[-1]] += weight
    assert ends == pytest.approx(target.p(tokens), abs=1e-12)


def test_typical_acceptance_is_lossy_and_says_so() -> None:
    """The likeliest token drafted is always taken: its law is no longer the target's."""
    options = Sampling(1.0, accept="typical")
    p = Law(np.arange(3), np.array([0.5, 0.3, 0.2]))
    rule = accept.sampled(options)
    assert [v.tokens[0] for v, _ in outcomes(lambda c: rule(Draft.chain([0]), lambda row, path: p, c))] == [0, 0, 0]
    assert options.lossy
    assert not Sampling(1.0).lossy
    assert not Sampling(0.0, accept="typical").lossy


def check(draft: Draft, verdict: Verdict) -> None:
    """The path is a path of candidates from the root, and its tokens are the verdict's."""
    assert len(verdict.tokens) == len(verdict.path) + 1
    before = -1
    for node, token in zip(verdict.path, verdict.tokens, strict=False):
        assert draft.parents[node] == before
        assert draft.candidate[node]
        assert draft.tokens[node] == token
        before = node


def test_self_draft_is_always_accepted() -> None:
    target = Target(3, OPTIONS[0])
    draft = Draft((0, 1), (-1, 0), (True, True), np.stack([target.p(()), target.p((0,))]))
    assert {len(v.tokens) for v, _ in outcomes(lambda c: accept.exact(draft, lambda _, p: target.law(p), c))} == {3}


def test_laws_are_asked_only_on_the_visited_path() -> None:
    target, asked = Target(0, Sampling(1.0, top_k=1)), []
    first = int(target.law(()).ids[0])
    draft = Draft(((first + 1) % V, 0, first), (-1, 0, -1), (True, True, True))

    def law(row: int, path: Tokens) -> Law:
        asked.append(row)
        return target.law(path)

    verdict = accept.exact(draft, law, accept.Dice(np.random.default_rng(0)))
    assert verdict.path == (2,)
    assert asked == [0, 3]


@pytest.mark.parametrize("q", [np.full((2, V), 0.25), np.eye(V)[[1, 1]]])
def test_siblings_that_were_not_drawn_without_replacement_are_refused(q: np.ndarray) -> None:
    """A merged tree's q, one not renormalised, one token twice: with any of them the ratio rule would be wrong."""
    draft = Draft((1, 2) if q[0, 0] else (1, 1), (-1, -1), (True, True), q)
    p = Law(np.arange(V), np.array([0.7, 0.0, 0.2, 0.1]))
    with pytest.raises(SpecError, match="replacement"):
        accept.exact(draft, lambda row, path: p, accept.Dice(np.random.default_rng(0)))


@pytest.mark.parametrize("value", [0.0, float("nan"), -1.0])
def test_a_token_that_its_q_excludes_is_refused(value: float) -> None:
    draft = Draft((0,), (-1,), (True,), np.full((1, V), value))
    with pytest.raises(SpecError, match="q"):
        accept.exact(draft, lambda _, path: Target(0, OPTIONS[0]).law(path), accept.Dice(np.random.default_rng(0)))


@settings(max_examples=200, deadline=None)
@given(trees(), st.integers(0, 1000))
def test_greedy_takes_the_longest_path_of_best_tokens(draft: Draft, seed: int) -> None:
    def best(path: Tokens) -> int:
        return int(np.random.default_rng([seed, *path]).integers(0, V))

    verdict = accept.greedy(draft, lambda _, path: best(path))
    check(draft, verdict)
    assert all(token == best(verdict.tokens[:i]) for i, token in enumerate(verdict.tokens))
    longest = 0
    for node in range(len(draft)):
        path = []
        while node >= 0:
            path.append(node)
            node = draft.parents[node]
        tokens = tuple(draft.tokens[i] for i in reversed(path))
        if all(draft.candidate[i] for i in path) and all(t == best(tokens[:i]) for i, t in enumerate(tokens)):
            longest = max(longest, len(tokens))
    assert len(verdict.path) == longest


def test_greedy_without_a_draft_and_duplicate_siblings() -> None:
    assert accept.greedy(EMPTY, lambda row, path: 3) == Verdict((), (3,))
    twice = Draft((1, 1, 2), (-1, -1, 1), (True, True, True))
    assert accept.greedy(twice, lambda row, path: len(path) + 1) == Verdict((1, 2), (1, 2, 3))
