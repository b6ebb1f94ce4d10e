"""What an EAGLE drafter drafts, on a network whose laws are known: trees by brute force, laws by enumeration."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_edge.models.contract import BadUsage
from spec_edge.runtime import accept, drafted
from spec_edge.runtime.draft import ROOT, Context, Draft, Output, Verdict
from spec_edge.runtime.drafters import eagle as drafting
from spec_edge.runtime.drafters.options import DrafterOptions
from spec_edge.runtime.eagle_model import EagleModel
from spec_edge.runtime.eagle_rows import Level, Scratch
from spec_edge.runtime.engine import Engine, Limits
from spec_edge.runtime.hybrid import compose
from spec_edge.runtime.law import Law
from spec_edge.runtime.processors import Past
from spec_edge.runtime.sampling import Sampler, Sampling

RNG = np.random.default_rng(0)
Tokens = tuple[int, ...]


@cache
def logits_after(seed: int, ids: Tokens, size: int) -> np.ndarray:
    return np.random.default_rng([seed, *ids]).normal(size=size) * 1.3


class KnownRows:
    """`Rows` whose laws are a function of every token before. A feature is the text that it belongs to, as numbers, so
    that a row paired with a wrong one fails."""

    reads = "taps"

    def __init__(
        self, seed: int, size: int, capacity: int = 40, ids: Sequence[int] | None = None, top: int = 16
    ) -> None:
        self.seed, self.size, self.capacity = seed, size, capacity
        self.vocabulary = None if ids is None else np.array(ids)
        self.texts: list[list[int]] = []
        self.drafted: list[Tokens] = []
        self.runs: list[int] = []
        self.top, self.most, self.known = min(top, size), 10**6, True

    @property
    def length(self) -> int:
        return len(self.texts)

    @property
    def text(self) -> list[int]:
        """Up to the last committed row and the token after it."""
        return self.texts[-1] if self.texts else []

    @property
    def room(self) -> int:
        return self.most - len(self.drafted)

    def extend(self, ids: Sequence[int], features: np.ndarray) -> Level:
        self.drafted = []
        self.runs.append(len(ids))
        for token, feature in zip(ids, features, strict=True):
            prefix = [int(x) for x in feature if x >= 0]
            assert not self.text or prefix == self.text
            self.texts.append([*prefix, token])
        return self._level([tuple(self.text)])

    def expand(self, ids: Sequence[int], hidden: np.ndarray, parents: Sequence[int]) -> Level:
        paths = []
        self.runs.append(len(ids))
        for token, feature, parent in zip(ids, hidden, parents, strict=True):
            above = tuple(self.text) if parent == ROOT else self.drafted[parent]
            assert tuple(int(x) for x in feature if x >= 0) == above
            paths.append((*above, int(token)))
        self.drafted += paths
        assert self.room >= 0
        return self._level(paths)

    def truncate(self, length: int) -> None:
        self.drafted = []
        assert length <= self.length
        del self.texts[length:]

    def close(self) -> None: ...

    def _level(self, paths: Sequence[Tokens]) -> Level:
        logits = np.stack([logits_after(self.seed, path, self.size) for path in paths])
        laws = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        places = np.argsort(-laws, axis=1, kind="stable")[:, : self.top]
        ids = places if self.vocabulary is None else self.vocabulary[places]
        hidden = np.full((len(paths), 64), -1.0)
        for row, path in enumerate(paths):
            hidden[row, : len(path)] = path
        best = np.take_along_axis(laws, places, 1)
        return Level(ids.astype(np.int32), best, hidden, logits if self.known else None)  # type: ignore[arg-type]


class Texts:
    """A target whose logits are a function of every token before; its taps of a row are the text up to it."""

    capacity, max_width = 40, 16

    def __init__(self, seed: int, size: int) -> None:
        self.seed, self.vocab_size, self.ids, self.wants = seed, size, [], frozenset()
        self._run: list[int] = []

    @property
    def length(self) -> int:
        return len(self.ids)

    def prefill(self, ids: Sequence[int]) -> Output:
        start = len(self.ids)
        self.ids += ids
        return self._output([tuple(self.ids[: n + 1]) for n in range(start, len(self.ids))], 1)

    def verify(self, pending: int, draft: Draft) -> Output:
        self._run = [pending, *draft.tokens]
        return self._output([(*self.ids, *(self._run[i] for i in np.flatnonzero(seen))) for seen in draft.mask], 0)

    def _output(self, paths: Sequence[Tokens], last: int) -> Output:
        taps = np.full((len(paths), 64), -1.0)
        for row, path in enumerate(paths):
            taps[row, : len(path)] = path
        logits = [logits_after(self.seed, path, self.vocab_size) for path in paths[-last:]]
        return Output(np.stack(logits), None, taps)  # type: ignore[arg-type]

    def commit(self, rows: Sequence[int]) -> None:
        self.ids += [self._run[row] for row in rows]

    def truncate(self, length: int) -> None:
        del self.ids[length:]

    def close(self) -> None: ...


def told(rows: KnownRows, tokens: int, sampling: Sampling | None = None, **more: Any) -> drafting.Eagle:
    sampler = Sampler(sampling or Sampling(), (), tokens)
    return drafting.create(DrafterOptions(networks={"eagle": EagleModel(rows, tokens)}, sampler=sampler, **more))


def started(drafter: drafting.Eagle, prompt: list[int], size: int) -> None:
    output = Texts(0, size).prefill(prompt)
    drafter.start(prompt, output)


def brute(rows: KnownRows, text: Tokens, depth: int, branches: int, total: int) -> set[Tokens]:
    """The best `total` paths among those that EAGLE-2 sees, level by level with nothing left out."""

    def score(path: Tokens) -> float:
        out = 0.0
        for n in range(len(path)):
            logits = logits_after(rows.seed, (*text, *path[:n]), rows.size)
            out += float((logits - np.log(np.exp(logits).sum()))[path[n]])
        return out

    seen: list[Tokens] = []
    frontier: list[Tokens] = [()]
    for _ in range(depth):
        below: list[Tokens] = []
        for path in frontier:
            best = np.argsort(-logits_after(rows.seed, (*text, *path), rows.size), kind="stable")[:branches]
            below += [(*path, int(t)) for t in best]
        seen += below
        frontier = sorted(below, key=lambda p: -score(p))[:branches]
    return set(sorted(seen, key=lambda p: -score(p))[:total])


def paths(draft: Draft) -> list[Tokens]:
    out: list[Tokens] = []
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        out.append((*(out[parent] if parent >= 0 else ()), token))
    return out


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 50), st.integers(8, 40), st.integers(1, 6))
def test_the_dynamic_tree_is_eagle_2s(seed: int, width: int, depth: int) -> None:
    rows = KnownRows(seed, 20)
    drafter = told(rows, 20, tree=(), draft_tokens=depth)
    started(drafter, [3, 1, 2], 20)
    draft, scores = drafter.propose_scored(Context([3, 1, 2, 9], RNG), width)
    found, total = paths(draft), width - 1
    branches = min(10, total)
    assert set(found) == brute(rows, (3, 1, 2, 9), depth, branches, total) and len(set(found)) == len(found)
    assert len(draft) == min(total, sum(branches ** min(d, 2) for d in range(1, depth + 1)))
    assert sorted(scores, reverse=True) == pytest.approx(sorted((scores), reverse=True))
    assert all(s <= scores[p] for s, p in zip(scores, draft.parents, strict=True) if p >= 0)
    assert sum(rows.runs[2:]) <= (depth - 1) * branches


def test_scores_are_probabilities_of_paths() -> None:
    rows = KnownRows(1, 12)
    for more in ({"tree": ()}, {"tree": (3, 2)}, {"draft_tokens": 3, "confidence": 0.0}):
        drafter = told(rows, 12, **more)
        rows.truncate(0)
        started(drafter, [3, 1, 2], 12)
        draft, scores = drafter.propose_scored(Context([3, 1, 2, 9], RNG), 16)
        for path, score in zip(paths(draft), scores, strict=True):
            want = 1.0
            for n, token in enumerate(path):
                logits = logits_after(1, (3, 1, 2, 9, *path[:n]), 12)
                want *= float(np.exp(logits[token]) / np.exp(logits).sum())
            assert score == pytest.approx(want)


@pytest.mark.parametrize(
    ("tree", "width", "levels"),
    [((3, 2, 1), 16, (3, 6, 6)), ((3, 2, 1), 8, (3, 4)), ((20,), 32, (16,)), ((1, 1, 1, 1), 16, (1, 1, 1, 1))],
)
def test_a_static_tree_has_its_shape(tree: Tokens, width: int, levels: Tokens) -> None:
    rows = KnownRows(1, 30)
    drafter = told(rows, 30, tree=tree)
    started(drafter, [3, 1, 2], 30)
    draft = drafter.propose(Context([3, 1, 2, 9], RNG), width)
    assert tuple(draft.levels) == levels
    for path in paths(draft):
        for n, token in enumerate(path):
            best = np.argsort(-logits_after(1, (3, 1, 2, 9, *path[:n]), 30), kind="stable")
            assert token in best[: min(tree[n], 16)]


def test_published_paths_keep_their_ranks() -> None:
    chosen = ((0,), (0, 0), (0, 0, 0), (2,), (2, 1))
    drafter = told(KnownRows(1, 30), 30, paths=chosen)
    started(drafter, [3, 1, 2], 30)
    found = paths(drafter.propose(Context([3, 1, 2, 9], RNG), 16))
    ranks = set()
    for path in found:
        order = [np.argsort(-logits_after(1, (3, 1, 2, 9, *path[:n]), 30), kind="stable") for n in range(len(path))]
        ranks.add(tuple(int(np.flatnonzero(o == t)[0]) for o, t in zip(order, path, strict=True)))
    assert ranks == set(chosen)


def test_chains_by_width_options_and_confidence() -> None:
    def shape(width: int, **more: Any) -> tuple[int, bool]:
        drafter = told(KnownRows(2, 12), 12, **more)
        started(drafter, [3, 1], 12)
        draft = drafter.propose(Context([3, 1, 2], RNG), width)
        return len(draft), draft.is_chain

    assert shape(8)[1] is False and shape(16)[0] == 15
    assert shape(5, confidence=0.0) == (4, True) == shape(16, confidence=0.0)
    for k in range(1, 8):
        assert shape(16, draft_tokens=k, confidence=0.0) == (k, True)
    lengths = [shape(16, draft_tokens=7, confidence=c)[0] for c in (0.0, 0.2, 0.4, 1.0)]
    assert lengths == sorted(lengths, reverse=True) and lengths[-1] == 0
    sizes = [shape(16, tree=(), confidence=c)[0] for c in (0.0, 0.01, 0.1, 1.0)]
    assert sizes == sorted(sizes, reverse=True) and sizes[-1] == 0
    assert shape(1) == (0, True)


def test_only_what_is_known_is_drafted() -> None:
    """A reduced vocabulary, with ids past the real tokens in it."""
    rows = KnownRows(3, 6, ids=[1, 3, 5, 7, 11, 12])
    for sampling in (Sampling(), Sampling(1.0, seed=2), Sampling(0.0, repetition_penalty=1.4)):
        for more in ({"tree": ()}, {"draft_tokens": 4, "confidence": 0.0}):
            drafter = told(rows, 12, sampling, **more)
            rows.truncate(0)
            started(drafter, [3, 1, 2], 12)
            draft = drafter.propose(Context([3, 1, 2, 9], RNG), 16)
            assert len(draft) >= 4 and set(draft.tokens) <= {1, 3, 5, 7, 11}
            assert draft.q is None or np.all(draft.q[:, [0, 2, 4, 6, 8, 9, 10]] == 0)
            assert (draft.q is not None) == (not sampling.greedy and "draft_tokens" in more)


def test_drafting_ends_where_there_is_no_room() -> None:
    for most in range(6):
        for more in ({"tree": ()}, {"tree": (2, 2, 2)}, {"draft_tokens": 9, "confidence": 0.0}):
            rows = KnownRows(3, 12)
            rows.most = most
            drafter = told(rows, 12, **more)
            started(drafter, [3, 1, 2], 12)
            assert len(drafter.propose(Context([3, 1, 2, 9], RNG), 16)) >= 1


def test_catching_up_is_one_run() -> None:
    """A prompt, then per step one run over the accepted rows and the pending one, and one per further level."""
    rows = KnownRows(4, 10)
    engine = Engine(Texts(4, 10), told(rows, 10, draft_tokens=3, confidence=0.0), limits=Limits(1 + 3 * 4))
    list(engine.generate([1, 2, 3]))
    assert engine.stats.acceptance_length == 4
    assert rows.runs == [2, 1, 1, 1, 4, 1, 1, 4, 1, 1]


class Watched:
    """Lets a drafter propose at some steps only; it observes all of them."""

    name, wants = "watched", frozenset(("taps",))

    def __init__(self, inner: drafting.Eagle, pattern: Sequence[bool]) -> None:
        self.inner, self.pattern = inner, itertools.cycle(pattern)

    def start(self, prompt: Sequence[int], read: Output) -> None:
        self.inner.start(prompt, read)

    def propose(self, context: Context, width: int) -> Draft:
        return self.inner.propose(context, width) if next(self.pattern) else Draft.chain((1, 2))

    def observe(self, verdict: Verdict, draft: Draft, output: Output) -> None:
        self.inner.observe(verdict, draft, output)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=5), st.integers(0, 9), st.data())
def test_any_sequence_of_texts_pairs_rows_rightly(pattern: list[bool], seed: int, data: Any) -> None:
    """KnownRows refuses a feature of another text; texts share prefixes, end early, and begin behind what is known."""
    rows, target = KnownRows(seed, 10, 60), Texts(seed + 1, 10)
    inner = told(rows, 10, tree=(2, 1))
    engine = Engine(target, Watched(inner, pattern), limits=Limits(12, width=8))  # type: ignore[arg-type]
    text = [1, 2, 3]
    for _ in range(4):
        list(engine.generate(text, reuse=True))
        assert rows.text == engine.ids[: len(rows.text)]
        if data.draw(st.booleans()):
            engine.stop(data.draw(st.integers(0, 6)))
        text = engine.ids[: data.draw(st.integers(1, len(engine.ids)))] + data.draw(
            st.lists(st.integers(0, 9), max_size=3)
        )
        if data.draw(st.booleans()):
            other = Engine(target, compose([Watched(inner, [False]), _Silent()], "merge"), limits=Limits(3, width=8))  # type: ignore[list-item]
            other.ids = engine.ids
            list(other.generate(text, reuse=True))
            engine.ids = other.ids


class _Silent:
    name, wants = "silent", frozenset[str]()

    def start(self, prompt: Sequence[int], read: Output) -> None: ...

    def propose(self, context: Context, width: int) -> Draft:
        del context, width
        return Draft((), (), ())

    def observe(self, verdict: Verdict, draft: Draft, output: Output) -> None: ...


def test_scratch_rows_see_ancestors_only() -> None:
    scratch = Scratch()
    depths, mask = scratch.add([ROOT, ROOT])
    assert depths.tolist() == [0, 0] and mask.tolist() == [[True, False], [False, True]]
    depths, mask = scratch.add([1, ROOT, 0])
    assert depths.tolist() == [1, 0, 1]
    assert mask.astype(int).tolist() == [[0, 1, 1, 0, 0], [0, 0, 0, 1, 0], [1, 0, 0, 0, 1]]
    depths, mask = scratch.add([4])
    assert depths.tolist() == [2] and mask.astype(int).tolist() == [[1, 0, 0, 0, 1, 1]]
    scratch.clear()
    assert len(scratch) == 0 and scratch.add([ROOT])[1].tolist() == [[True]]


V, NEW, PROMPT = 3, 3, [1, 0]
LAWS = {
    "bare": Sampling(1.0),
    "cut": Sampling(0.7, top_k=2, min_p=0.05),
    "penalties": Sampling(1.0, repetition_penalty=1.6, presence_penalty=0.7, frequency_penalty=-0.4),
    "bias and bad words": Sampling(1.0, logit_bias={0: -1.0, 2: 1.0}, bad_words=((0, 1), (2, 2))),
}
DRAFTS: dict[str, dict[str, Any]] = {
    "chain": {"draft_tokens": 2, "confidence": 0.0},
    "chain that stops": {"draft_tokens": 2, "confidence": 0.45},
    "dynamic tree": {"tree": (), "draft_tokens": 2},
    "static tree": {"tree": (2, 1)},
}


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


def plain_law(options: Sampling) -> dict[Tokens, float]:
    sampler, joint = Sampler(options, (), V), {}
    todo: list[tuple[Tokens, float]] = [((), 1.0)]
    while todo:
        new, weight = todo.pop()
        if len(new) == NEW:
            joint[new] = weight
            continue
        logits = logits_after(4, (*PROMPT, *new), V)
        law = sampler.law(logits, Past(np.array([*PROMPT, *new]), len(PROMPT)))
        todo += [((*new, t), weight * p) for t, p in zip(law.ids.tolist(), law.p.tolist(), strict=True) if p > 0]
    return joint


@pytest.mark.parametrize("ids", [None, (0, 2)])
@pytest.mark.parametrize("shape", DRAFTS)
@pytest.mark.parametrize("name", LAWS)
def test_law(name: str, shape: str, ids: Tokens | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The law of the text, over every draw of the drafter's and of acceptance, is the target's to 1e-12."""
    options = LAWS[name]
    drafter = told(KnownRows(9, V if ids is None else len(ids), ids=ids), V, options, **DRAFTS[shape])
    engine = Engine(Texts(4, V), drafter, options, Limits(NEW))
    joint: dict[Tokens, float] = defaultdict(float)
    todo: list[Tokens] = [()]
    while todo:
        chance = Script(todo.pop())
        monkeypatch.setattr(accept, "Dice", lambda _, chance=chance: chance)
        monkeypatch.setattr(drafted, "draw", lambda law, _, chance=chance: chance.pick(law))
        list(engine.generate(PROMPT))
        joint[tuple(engine.ids[len(PROMPT) :])] += chance.weight
        todo += chance.others
    want = plain_law(options)
    assert joint.keys() >= want.keys() and sum(joint.values()) == pytest.approx(1.0)
    for text, p in joint.items():
        assert p == pytest.approx(want.get(text, 0.0), abs=1e-12)


def test_without_logits_a_sampled_chain_is_a_point_mass() -> None:
    rows = KnownRows(2, 12)
    rows.known = False
    drafter = told(rows, 12, Sampling(1.0, seed=1, repetition_penalty=1.2), draft_tokens=3, confidence=0.0)
    started(drafter, [3, 1], 12)
    draft = drafter.propose(Context([3, 1, 2], RNG), 8)
    assert len(draft) == 3 and draft.q is None


def test_a_method_without_its_network_is_refused() -> None:
    with pytest.raises(BadUsage, match="--eagle PATH"):
        drafting.create(DrafterOptions())
