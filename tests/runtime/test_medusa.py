"""The Medusa drafter over the toy target and heads that a test controls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from spec_edge.models.contract import BadUsage
from spec_edge.runtime.costs import CostCurve
from spec_edge.runtime.draft import UNREAD, Context, Draft, Output, Verdict
from spec_edge.runtime.drafters import medusa, plain, prompt_lookup
from spec_edge.runtime.drafters.options import DrafterOptions
from spec_edge.runtime.engine import Engine, Limits
from spec_edge.runtime.hybrid import compose
from spec_edge.runtime.sampling import Sampler, Sampling
from spec_edge.runtime.sessions.toy import ToySession
from spec_edge.runtime.trees import fitting, paths_of

V, CAPACITY, HEADS = 12, 96, 4
PROMPT = [1, 2, 3, 1, 2]
Answers = Callable[[np.ndarray], np.ndarray]


class Heads:
    """In place of a `MedusaSession`: `answers` gives log-probabilities [heads, V] for a hidden state."""

    def __init__(self, answers: Answers, top: int = 10, accuracy: Any = ()) -> None:
        self.answers, self.heads, self.top, self.runs = answers, HEADS, top, 0
        self.fact = SimpleNamespace(accuracy=accuracy)

    def run(self, hidden: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self.runs += 1
        laws = self.answers(hidden)
        ids = np.argsort(-laws, axis=1, kind="stable")[:, : self.top]
        return ids.astype(np.int32), np.take_along_axis(laws, ids, 1).astype(np.float32)


def normalised(scores: np.ndarray) -> np.ndarray:
    return scores - np.log(np.exp(scores).sum(-1, keepdims=True))


def random_answers(hidden: np.ndarray) -> np.ndarray:
    return normalised(np.random.default_rng(abs(int(hidden[0] * 1e6))).normal(size=(HEADS, V)) * 2)


class Oracle:
    """Knows the greedy text: the answers are right, at rank `rank`."""

    def __init__(self, seed: int = 0, rank: int = 0) -> None:
        self.rank = rank
        session = ToySession(V, CAPACITY, 8, seed)
        engine = Engine(session, plain.create(DrafterOptions()))
        list(engine.generate(PROMPT))
        self.text = engine.ids
        fresh = ToySession(V, CAPACITY, 8, seed)
        features = fresh.prefill(self.text[: CAPACITY - 1]).hidden
        assert features is not None
        self.known = features

    def __call__(self, hidden: np.ndarray) -> np.ndarray:
        at = int(np.abs(self.known - hidden).sum(1).argmin())
        scores = np.zeros((HEADS, V))
        for i in range(HEADS):
            token = self.text[min(at + 2 + i, len(self.text) - 1)]
            order = [(token + n) % V for n in range(1, self.rank + 1)]
            for n, t in enumerate([*order, token]):
                scores[i, t] = 9.0 - n
        return normalised(scores)


def made(answers: Answers, heads: Heads | None = None, **options: Any) -> medusa.Medusa:
    return medusa.Medusa(heads or Heads(answers), DrafterOptions(**options))  # type: ignore[arg-type]


def text(drafter: Any, width: int = 8, seed: int = 0, sampling: Sampling | None = None, new: int = 40) -> Engine:
    engine = Engine(ToySession(V, CAPACITY, 64, seed), drafter, sampling, Limits(new, width=width))
    list(engine.generate(PROMPT))
    return engine


@pytest.mark.parametrize("width", [2, 8, 16, 32])
@pytest.mark.parametrize("tree", [{}, {"tree": ()}, {"tree": (3, 2, 1)}, {"paths": paths_of("mc_sim_7b_63")}])
def test_greedy_text_is_the_targets(width: int, tree: dict[str, Any]) -> None:
    """Random heads, and heads that always draft what the target finds least likely."""
    for seed in range(2):
        want = text(plain.create(DrafterOptions()), width, seed)
        for answers in (random_answers, lambda h: -random_answers(h)):
            got = text(made(answers, **tree), width, seed)
            assert got.ids == want.ids and got.stats.drafted > 0


@pytest.mark.parametrize(
    ("width", "depth", "tree"), [(5, 4, {"tree": (1, 1, 1, 1)}), (8, 3, {}), (16, 3, {}), (32, 3, {})]
)
def test_heads_that_know_the_text_are_always_right(width: int, depth: int, tree: dict[str, Any]) -> None:
    """As deep as the tree is, at every step."""
    new = 1 + (depth + 1) * 9
    got = text(made(Oracle(), **tree), width, new=new)
    assert got.stats.acceptance_length == depth + 1
    assert got.ids == text(plain.create(DrafterOptions()), width, new=new).ids


def test_siblings_are_tried_too() -> None:
    """The right token is each head's third choice: a chain of first choices has none accepted, a tree all."""
    oracle = Oracle(rank=2)
    chain = text(made(oracle, tree=(1, 1, 1, 1)), 8)
    assert chain.stats.accepted < chain.stats.steps / 4
    paths = ((2,), (2, 2), (2, 2, 2), (2, 2, 2, 2))
    assert text(made(oracle, paths=paths), 8, new=1 + 5 * 8).stats.acceptance_length == HEADS + 1
    wide = text(made(oracle, tree=(3, 3)), 16, new=1 + 3 * 12)
    assert wide.stats.acceptance_length == 3


def test_the_hidden_state_is_the_last_accepted_rows() -> None:
    """Whoever drafted, and whatever was accepted."""
    seen: list[np.ndarray] = []

    def watch(hidden: np.ndarray) -> np.ndarray:
        seen.append(hidden.copy())
        return random_answers(hidden)

    engine = text(compose([prompt_lookup.create(DrafterOptions()), made(watch)], "merge"), 12)
    fresh = ToySession(V, CAPACITY, 8)
    features = fresh.prefill(engine.ids).hidden
    assert features is not None and len(seen) > 10
    places = [int(np.flatnonzero((features == h).all(1))[0]) for h in seen]
    assert places[0] == len(PROMPT) - 1 and places == sorted(set(places)) and places[-1] <= len(engine.ids) - 2


def test_one_run_a_step_and_none_without_room() -> None:
    heads = Heads(random_answers)
    drafter = made(random_answers, heads)
    assert drafter.propose(Context(PROMPT, np.random.default_rng(0)), 8) == Draft((), (), ())
    drafter.start(PROMPT, UNREAD)
    assert len(drafter.propose(Context(PROMPT, np.random.default_rng(0)), 8)) == 0 and heads.runs == 0
    hidden = np.ones((2, 8), np.float32)
    drafter.start(PROMPT, Output(np.empty((1, V), np.float32), hidden))
    context = Context(PROMPT, np.random.default_rng(0))
    assert len(drafter.propose(context, 1)) == 0 and heads.runs == 0
    assert len(drafter.propose(context, 9)) == 8 and len(drafter.propose(context, 5)) == 4 and heads.runs == 1
    hidden[:] = 7
    drafter.observe(Verdict((), (3,)), Draft((), (), ()), Output(np.empty((1, V), np.float32), hidden[:1]))
    drafter.propose(context, 5)
    assert heads.runs == 2


def test_scores_are_the_heads_own_probabilities() -> None:
    drafter = made(random_answers)
    hidden = np.full((1, 8), 0.5, np.float32)
    drafter.start(PROMPT, Output(np.empty((1, V), np.float32), hidden))
    draft, scores = drafter.propose_scored(Context(PROMPT, np.random.default_rng(0)), 20)
    laws = np.exp(random_answers(hidden[0]))
    for i, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        above = scores[parent] if parent >= 0 else 1.0
        assert scores[i] == pytest.approx(above * laws[draft.depths[i + 1] - 1, token], rel=1e-5)
    likely, kept = made(random_answers, confidence=0.05), 0
    likely.start(PROMPT, Output(np.empty((1, V), np.float32), hidden))
    some, high = likely.propose_scored(Context(PROMPT, np.random.default_rng(0)), 20)
    kept = sum(s >= 0.05 for s in scores)
    assert len(some) == kept == len(high) and min(high) >= 0.05 and 0 < kept < len(draft)


def test_the_best_tree_is_this_steps() -> None:
    """`--tree best` holds the likeliest paths by the heads' probabilities, whatever the accuracies say."""
    hidden = np.full((1, 8), 0.25, np.float32)
    drafter = made(random_answers, tree=())
    drafter.start(PROMPT, Output(np.empty((1, V), np.float32), hidden))
    _, scores = drafter.propose_scored(Context(PROMPT, np.random.default_rng(0)), 13)
    laws = -np.sort(-np.exp(random_answers(hidden[0])), axis=1)[:, :10]
    every = [
        float(np.prod([laws[d, r] for d, r in enumerate(p)])) for n in range(1, 5) for p in product(range(10), repeat=n)
    ]
    assert sorted(scores, reverse=True) == pytest.approx(sorted(every, reverse=True)[:12], rel=1e-5)


def test_known_accuracies_shape_the_tree() -> None:
    """Heads of which only the second is ever right at the first rank: the tree is wide, then narrow."""
    flat = ((0.2, 0.2, 0.2, 0.2), (0.9, 0.01, 0.01, 0.01), (0.0,) * 4, (0.0,) * 4)
    heads = Heads(random_answers, top=4, accuracy=flat)
    drafter = made(random_answers, heads)
    drafter.start(PROMPT, Output(np.empty((1, V), np.float32), np.ones((1, 8), np.float32)))
    draft = drafter.propose(Context(PROMPT, np.random.default_rng(0)), 9)
    assert draft.levels == (4, 4)
    published = made(random_answers)
    published.start(PROMPT, Output(np.empty((1, V), np.float32), np.ones((1, 8), np.float32)))
    assert published.propose(Context(PROMPT, np.random.default_rng(0)), 64).levels[0] == 10


def test_draft_tokens_bound_the_tree() -> None:
    drafter = made(random_answers, draft_tokens=3)
    drafter.start(PROMPT, Output(np.empty((1, V), np.float32), np.ones((1, 8), np.float32)))
    assert len(drafter.propose(Context(PROMPT, np.random.default_rng(0)), 64)) == 3


def law(seed: int, prompt: Sequence[int], count: int) -> dict[tuple[int, ...], float]:
    """Of the next `count` tokens of the toy."""
    if not count:
        return {(): 1.0}
    logits = ToySession(5, 16, 8, seed).prefill(prompt).logits[-1].astype(np.float64)
    p = np.exp(logits - logits.max())
    p /= p.sum()
    out: dict[tuple[int, ...], float] = {}
    for token, chance in enumerate(p):
        out |= {(token, *rest): chance * q for rest, q in law(seed, [*prompt, token], count - 1).items()}
    return out


@pytest.mark.parametrize("tree", [{"tree": (2, 1)}, {"tree": ()}])
def test_sampled_text_has_the_targets_law(tree: dict[str, Any]) -> None:
    """2,000 texts of three tokens, by a test that a wrong acceptance (the ratio rule on this tree) would fail."""
    runs = 2000
    session = ToySession(5, 16, 8, 3)

    def answers(hidden: np.ndarray) -> np.ndarray:
        return normalised(np.random.default_rng(abs(int(hidden[0] * 1e6))).normal(size=(HEADS, 5)))

    engine = Engine(session, made(answers, Heads(answers, top=5), **tree), Sampling(1.0), Limits(3, width=5))
    engine._rng = np.random.default_rng(11)
    found: Counter[tuple[int, ...]] = Counter()
    accepted = 0
    for seed in range(runs):
        engine._sampler.options = engine.options = Sampling(1.0, seed=seed)  # type: ignore[misc]
        list(engine.generate([1, 2]))
        found[tuple(engine.ids[2:])] += 1
        accepted += engine.stats.accepted
    want = law(3, [1, 2], 3)
    expected = np.array([want[k] * runs for k in sorted(want)])
    observed = np.array([found[k] for k in sorted(want)])
    large = expected >= 5
    chi = ((observed - expected)[large] ** 2 / expected[large]).sum()
    degrees = int(large.sum())
    assert sum(found.values()) == runs and accepted > runs / 4
    assert chi < degrees + 5 * np.sqrt(2 * degrees)


def test_it_needs_heads() -> None:
    with pytest.raises(BadUsage, match="--medusa PATH"):
        medusa.create(DrafterOptions())


def test_order_of_rows_is_the_published_one() -> None:
    """Sorted by length, then by ranks, as Medusa's buffers are."""
    paths = fitting(paths_of("mc_sim_7b_63"), 5, 10, 63)
    assert list(paths) == sorted(paths_of("mc_sim_7b_63"), key=lambda p: (len(p), p))


TILES = CostCurve((1, 2, 3, 4, 5, 6, 8, 16), (1.0, 1.1, 1.2, 1.3, 1.9, 2.0, 2.4, 4.2))


@pytest.mark.parametrize("step", [0.0, 0.1, 0.4])
def test_where_rows_are_dear_a_tree_has_those_that_are_worth_it(step: float) -> None:
    """Of all trees of the best paths, the one with the most tokens a second; the text stays the target's."""
    drafter = made(random_answers, cost=TILES, network_seconds={"medusa": step})
    drafter.start((1, 2, 3), Output(np.zeros((1, 4)), np.zeros((1, 8), np.float32)))
    draft, scores = drafter.propose_scored(Context((1, 2, 3), np.random.default_rng(0)), 17)
    free = made(random_answers, tree=())
    free.start((1, 2, 3), Output(np.zeros((1, 4)), np.zeros((1, 8), np.float32)))
    chances = sorted(free.propose_scored(Context((1, 2, 3), np.random.default_rng(0)), 17)[1], reverse=True)
    gains = [(1 + sum(chances[:n])) / (TILES.at(1 + n) + step) for n in range(len(chances) + 1)]
    assert sorted(scores, reverse=True) == pytest.approx(chances[: int(np.argmax(gains))])
    assert drafter.seconds == drafter.spent(draft) == step  # whatever is kept
    assert text(drafter).tokens == text(made(random_answers, tree=())).tokens


def test_dear_heads_are_not_asked_and_cheap_rows_make_whole_trees() -> None:
    heads = Heads(random_answers)
    dear = made(random_answers, heads, cost=TILES, network_seconds={"medusa": 9.0})
    dear.start((1, 2, 3), Output(np.zeros((1, 4)), np.zeros((1, 8), np.float32)))
    assert not len(dear.propose(Context((1, 2, 3), np.random.default_rng(0)), 17)) and not heads.runs
    for more in ({"cost": CostCurve((1, 16), (1.0, 1.2))}, {"cost": TILES, "draft_tokens": 4}):
        assert made(random_answers, network_seconds={"medusa": 0.1}, **more).seconds is None


class Strangers(Heads):
    """Every other candidate is an id that the model has not."""

    def run(self, hidden: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        ids, logs = super().run(hidden)
        ids[:, ::2] = np.where(ids[:, ::2] % 2, -1, 10**6)
        return ids, logs


@pytest.mark.parametrize("tree", [{}, {"tree": (3, 2, 1)}, {"draft_tokens": 2}])
def test_ids_that_the_model_has_not_leave_the_text_alone(tree: dict[str, Any]) -> None:
    sampler = Sampler(Sampling(), (), V)
    strange = made(random_answers, Strangers(random_answers), sampler=sampler, **tree)
    assert text(strange).ids == text(plain.create(DrafterOptions())).ids
