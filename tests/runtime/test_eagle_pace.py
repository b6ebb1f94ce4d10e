"""An EAGLE drafter where rows are dear: what it drafts, by brute force, and that its runs are timed once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from spec_edge.runtime import costs, curves
from spec_edge.runtime.costs import CostCurve
from spec_edge.runtime.draft import ROOT, Context, Draft, Output
from spec_edge.runtime.drafters import eagle as drafting
from spec_edge.runtime.drafters import suffix
from spec_edge.runtime.drafters.options import DrafterOptions
from spec_edge.runtime.eagle_model import EagleModel
from spec_edge.runtime.eagle_rows import Level
from spec_edge.runtime.hybrid import compose
from spec_edge.runtime.providers.provider import Found, ProviderFailed
from spec_edge.runtime.sampling import Sampler, Sampling
from spec_edge.runtime.worth import worth

SIZE = 12
TILES = CostCurve((1, 2, 3, 4, 5, 6, 8, 16), (1.0, 1.1, 1.2, 1.3, 1.9, 2.0, 2.4, 4.2))
FLAT = CostCurve((1, 16), (1.0, 1.2))
TEXT = [3, 1, 2, 9]
RNG = np.random.default_rng(0)
HERE = Context(tuple(TEXT), RNG)
Tokens = tuple[int, ...]


def law(seed: int, path: Tokens) -> np.ndarray:
    """After the text and drafted tokens."""
    logits = np.random.default_rng([seed, *path]).normal(size=SIZE) * 2.5
    return logits - np.log(np.exp(logits).sum())


class Known:
    """`Rows` whose laws after the text are known; features say nothing."""

    reads, vocabulary, capacity, room = "taps", None, 40, 40

    def __init__(self, seed: int = 4) -> None:
        self.seed, self.length, self.runs = seed, 0, list[int]()
        self._drafted: list[Tokens] = []

    def extend(self, ids: Sequence[int], features: np.ndarray) -> Level:
        self.length += len(features)
        return self._level([()], len(ids))

    def expand(self, ids: Sequence[int], hidden: np.ndarray, parents: Sequence[int]) -> Level:
        assert len(hidden) == len(ids)
        new = [(*(() if p == ROOT else self._drafted[p]), i) for i, p in zip(ids, parents, strict=True)]
        self._drafted += new
        return self._level(new, len(ids))

    def truncate(self, length: int) -> None:
        self.length, self._drafted = length, []

    def close(self) -> None: ...

    def _level(self, paths: Sequence[Tokens], rows: int) -> Level:
        self.runs.append(rows)
        laws = np.stack([law(self.seed, path) for path in paths])
        ids = np.argsort(-laws, 1)
        best = np.take_along_axis(laws, ids, 1)
        return Level(ids.astype(np.int32), best.astype(np.float32), np.zeros((len(paths), 8), np.float32), None)


def paths(draft: Draft) -> list[Tokens]:
    out: list[Tokens] = []
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        out.append((*(out[parent] if parent >= 0 else ()), token))
    return out


def told(rows: Known, sampling: Sampling | None = None, **more: Any) -> drafting.Eagle:
    """With the text's rows read, but for the last one's."""
    model, sampler = EagleModel(rows, SIZE), Sampler(sampling or Sampling(), (), SIZE)
    drafter = drafting.create(DrafterOptions(networks={"eagle": model}, sampler=sampler, **more))
    drafter.start(TEXT, Output(np.zeros((1, SIZE)), None, np.zeros((len(TEXT), 8), np.float32)))
    return drafter


def costing(step: float, cost: CostCurve = TILES, seed: int = 4, **more: Any) -> tuple[drafting.Eagle, Known]:
    rows = Known(seed)
    return told(rows, cost=cost, network_seconds={"eagle": step}, **more), rows


@pytest.mark.parametrize(("seed", "step"), list(product(range(8), (0.02, 0.2))))
def test_the_rows_are_those_of_the_comb_that_are_worth_their_cost(seed: int, step: float) -> None:
    """Of the chain of best tokens and their siblings, as far as it was followed, by enumeration of all its rows."""
    drafter, rows = costing(step, seed=seed)
    draft, scores = drafter.propose_scored(Context(TEXT, RNG), 16)
    chance: dict[Tokens, float] = {}
    above: Tokens = ()
    for _ in rows.runs:  # the first one read the text
        order = np.argsort(-law(seed, above))[: drafting.SIBLINGS]
        for token in order.tolist():
            chance[(*above, token)] = chance.get(above, 1.0) * float(np.exp(law(seed, above)[token]))
        above = (*above, int(order[0]))
    ranked = sorted(chance, key=lambda path: -chance[path])
    count = worth([chance[path] for path in ranked], TILES, len(rows.runs) * step)[0]
    found = paths(draft)
    assert set(found) == set(ranked[:count]) and len(found) == count
    assert scores == pytest.approx([chance[path] for path in found], rel=1e-5)
    assert drafter.spent(draft) == pytest.approx(len(rows.runs) * step)  # runs whose tokens were cut count too


def test_dear_runs_make_short_drafts_and_then_none() -> None:
    lengths = []
    for step in (0.001, 0.1, 0.5, 5.0):
        drafter, rows = costing(step)
        draft = drafter.propose(Context(TEXT, RNG), 16)
        lengths.append(len(rows.runs))
        assert drafter.seconds == step and (step < 5.0 or not len(draft))
    assert lengths == sorted(lengths, reverse=True) and lengths[0] > lengths[-1] == 1
    drafter, rows = costing(5.0)
    drafter.observe(SimpleNamespace(rows=(0,), tokens=(7,)), Draft((), (), ()), told_output())  # type: ignore[arg-type]
    drafter.propose(Context([*TEXT, 7], RNG), 16)
    assert len(rows.runs) == 1  # not even the text's new token is read


def told_output() -> Output:
    return Output(np.zeros((1, SIZE)), None, np.zeros((1, 8), np.float32))


@pytest.mark.parametrize(
    "more", [{"draft_tokens": 3}, {"confidence": 0.0}, {"tree": ()}, {"paths": ((0,), (1,))}, {"cost": FLAT}]
)
def test_trees_and_chains_are_as_ever_where_rows_are_cheap_or_the_user_says_how(more: dict[str, Any]) -> None:
    drafter, _ = costing(0.2, **{"cost": TILES, **more})
    free = told(Known(), **{name: value for name, value in more.items() if name != "cost"})
    assert drafter.seconds is None
    assert drafter.propose(Context(TEXT, RNG), 16) == free.propose(Context(TEXT, RNG), 16)


def test_drawn_drafts_are_not_paced() -> None:
    assert costing(0.2, sampling=Sampling(temperature=1.0))[0].seconds is None


@pytest.mark.parametrize(("text", "source"), [([5, 6, 7, 8] * 8, "suffix"), ([*range(SIZE)], "eagle")])
def test_a_hybrid_asks_it_only_where_it_promises_more_than_the_text(text: list[int], source: str) -> None:
    eagle, rows = costing(0.2)
    both = compose([suffix.create(DrafterOptions()), eagle], "merge", TILES)
    both.start(text, Output(np.zeros((1, SIZE)), None, np.zeros((len(text), 8), np.float32)))
    before = len(rows.runs)
    draft = both.propose(Context(text, RNG), 16)
    assert both.seconds == 0.2 and draft.sources == (source,)
    assert source == "eagle" or len(rows.runs) == before


def test_runs_are_timed_on_an_empty_cache_which_stays_empty() -> None:
    """The first one, which allocates, is left out."""
    rows, times = Known(), iter([x for n in range(40) for x in (10.0 * n, 10.0 * n + (9 if n == 0 else 2))])
    assert EagleModel(rows, SIZE).step_seconds(8, lambda: next(times)) == 2.0
    assert rows.length == 0 and set(rows.runs) == {1}


def test_a_time_is_kept_for_the_machine_and_a_failure_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "costs_folder", lambda: tmp_path)
    asked: list[int] = []

    class Timed(EagleModel):
        def step_seconds(self, width: int, clock: Any = None) -> float:  # noqa: ARG002
            asked.append(width)
            if width == 13:
                raise ProviderFailed("gone")
            return 0.25

    def found(width: int) -> dict[str, float]:
        place = SimpleNamespace(on=SimpleNamespace(name="cpu"), found=Found("a processor"))
        facts = SimpleNamespace(model=SimpleNamespace(hidden_size=width))
        known = curves.Curves({"eagle": place}, {"target": 2}, lambda: None, 2)  # type: ignore[dict-item]
        networks = {"eagle": Timed(Known(), SIZE), "medusa": SimpleNamespace()}
        return known.runs(SimpleNamespace(digest=f"d{width}", manifest=facts), networks)  # type: ignore[arg-type]

    assert found(12) == found(12) == {"eagle": 0.25} and asked == [12]
    assert found(13) == {}


class Wrong(Known):
    """Says what no law says."""

    def __init__(self, more: float = 0.0, first: int | None = None, deep: bool = False) -> None:
        super().__init__()
        self._more, self._first, self._deep = more, first, deep

    def _level(self, paths: Sequence[Tokens], rows: int) -> Level:
        level = super()._level(paths, rows)
        if self._deep and paths == [()]:
            return level
        ids = level.ids.copy()
        if self._first is not None:
            ids[:, 0] = self._first
        return replace(level, ids=ids, logprobs=level.logprobs + np.float32(self._more))


def test_log_probabilities_above_nothing_end_the_drafting_and_not_the_text() -> None:
    paced: dict[str, Any] = {"cost": TILES, "network_seconds": {"eagle": 0.05}}
    for options in (paced, {}, {"tree": (2, 1)}):
        with pytest.raises(ProviderFailed, match="a log-probability is"):
            told(Wrong(8.0), **options).propose(HERE, 8)
        draft = told(Wrong(8.0, deep=True), **options).propose(HERE, 8)
        assert set(draft.parents) == {ROOT}  # it is followed no further
        assert len(told(Wrong(1e-6), **options).propose(HERE, 8))


@pytest.mark.parametrize("first", [-1, SIZE, 10**6])
def test_ids_that_the_model_has_not_are_not_drafted(first: int) -> None:
    paced: dict[str, Any] = {"cost": TILES, "network_seconds": {"eagle": 0.05}}
    for options in (paced, {}, {"tree": (2, 1)}):
        draft = told(Wrong(first=first), **options).propose(HERE, 8)
        assert all(0 <= token < SIZE for token in draft.tokens)
