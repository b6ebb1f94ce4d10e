# ruff: noqa: ARG002 (stand-ins for protocols take what those take)
"""A drafter whose provider dies drafts the same on the next one; without one the text goes on without it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_edge.models.contract import DrafterFact, SpecError
from spec_edge.runtime.draft import Draft, Output
from spec_edge.runtime.draft_model import DraftModel
from spec_edge.runtime.drafters.options import DrafterOptions
from spec_edge.runtime.eagle_model import EagleModel
from spec_edge.runtime.eagle_rows import F32, Level, Scratch
from spec_edge.runtime.engine import Engine, Limits
from spec_edge.runtime.hybrid import create
from spec_edge.runtime.protocols import Session
from spec_edge.runtime.providers.provider import ProviderFailed
from spec_edge.runtime.sampling import Sampler, Sampling
from spec_edge.runtime.sessions.chain import Candidate, Chain
from spec_edge.runtime.sessions.eagle_failover import FailoverRows
from spec_edge.runtime.sessions.failover import FailoverSession
from spec_edge.runtime.sessions.medusa import FailoverHeads
from spec_edge.runtime.sessions.toy import ToySession

V, CAPACITY, WIDTH, H = 8, 48, 12, 8
PROMPT = [3, 1, 4, 1, 5]
NEVER = 10**9


class Life:
    """Dies at its n-th use, and at every later one."""

    def __init__(self, left: int) -> None:
        self.left = left

    def use(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise ProviderFailed("it broke")


class MortalToy(ToySession):
    """A draft model's session."""

    def __init__(self, life: Life) -> None:
        super().__init__(V, CAPACITY, WIDTH, seed=1)
        self._life = life

    def verify(self, pending: int, draft: Draft) -> Output:
        self._life.use()
        return super().verify(pending, draft)


class ToyRows:
    """A drafter whose every row depends on all that it sees, so that a wrong or missing row shows."""

    reads, vocabulary, capacity = "hidden", None, CAPACITY

    def __init__(self, life: Life) -> None:
        rng = np.random.default_rng(5)
        self._embed, self._head = rng.normal(size=(V, H)), rng.normal(size=(H, V))
        self._life, self._rows, self._drafted = life, list[Any](), list[Any]()
        self._scratch = Scratch()

    @property
    def length(self) -> int:
        return len(self._rows)

    @property
    def room(self) -> int:
        return 64 - len(self._drafted)

    def extend(self, ids: Sequence[int], features: F32) -> Level:
        self._life.use()
        self.truncate(self.length)
        for token, feature in zip(ids, features, strict=True):
            self._rows.append(self._mixed(token, feature, self._rows))
        return self._level(self._rows[-1:])

    def expand(self, ids: Sequence[int], hidden: F32, parents: Sequence[int]) -> Level:
        self._life.use()
        _, mask = self._scratch.add(parents)
        new = []
        for token, feature, seen in zip(ids, hidden, mask, strict=True):
            above = [row for row, sees in zip(self._drafted, seen, strict=False) if sees]
            new.append(self._mixed(token, feature, [*self._rows, *above]))
        self._drafted += new
        return self._level(new)

    def truncate(self, length: int) -> None:
        del self._rows[length:]
        self._drafted.clear()
        self._scratch.clear()

    def close(self) -> None: ...

    def _mixed(self, token: int, feature: F32, seen: Sequence[Any]) -> Any:
        return np.tanh(self._embed[token] + feature + sum(seen) / (1 + len(seen)))

    def _level(self, rows: Sequence[Any]) -> Level:
        logits = np.stack(rows) @ self._head
        logp = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        order = np.argsort(-logp, axis=1, kind="stable")[:, :4]
        scores = np.take_along_axis(logp, order, 1)
        return Level(order.astype(np.int32), *(a.astype(np.float32) for a in (scores, np.stack(rows), logits)))


class ToyHeads:
    """Two heads of two candidates."""

    fact = DrafterFact("medusa", "medusa", "hidden", 0, None, heads=2)  # type: ignore[arg-type]
    heads, top = 2, 2

    def __init__(self, life: Life) -> None:
        self._life = life

    def run(self, hidden: F32) -> tuple[Any, F32]:
        self._life.use()
        first = int(abs(float(hidden.sum())) * 100) % V
        return np.array([[first, 1], [2, 3]], np.int32), np.log(np.array([[0.6, 0.2], [0.5, 0.3]], np.float32))

    def close(self) -> None: ...


def chain(make: Callable[[Life], Any], lives: Sequence[int], notes: list[str]) -> Chain[Any]:
    candidates = [Candidate(f"p{i}", lambda n=n: make(Life(n)), "g", "w") for i, n in enumerate(lives)]
    return Chain(candidates, notes.append, "drafter")


def model(session: Session) -> dict[str, Any]:
    return {"draft": DraftModel(session, V)}


def network(name: str, made: Any) -> dict[str, Any]:
    return {"networks": {name: made}}


def eagle(life: Life) -> EagleModel:
    return EagleModel(ToyRows(life), V)


BARE: dict[str, Callable[[Life], dict[str, Any]]] = {
    "draft": lambda life: model(MortalToy(life)),
    "eagle": lambda life: network("eagle", eagle(life)),
    "medusa": lambda life: network("medusa", ToyHeads(life)),
}
CHAINED: dict[str, Callable[[Sequence[int], list[str]], dict[str, Any]]] = {
    "draft": lambda lives, notes: model(FailoverSession(chain(MortalToy, lives, notes), CAPACITY, WIDTH)),
    "eagle": lambda lives, notes: network("eagle", EagleModel(FailoverRows(chain(eagle, lives, notes)), V)),
    "medusa": lambda lives, notes: network("medusa", FailoverHeads(chain(ToyHeads, lives, notes))),
}


def run(
    method: str, lives: Sequence[int] | None, sampling: Sampling, notes: list[str]
) -> tuple[list[list[int]], list[int]]:
    """The texts, and how many tokens were drafted for each. lives: of a chain; None: a drafter that lives, bare."""
    name = method.partition("+")[0]
    told = BARE[name](Life(NEVER)) if lives is None else CHAINED[name](lives, notes)
    options = DrafterOptions(sampler=Sampler(sampling, (), V), confidence=0.0, **told)
    engine = Engine(ToySession(V, CAPACITY, WIDTH), create(method, options, notes.append), sampling, Limits(16))
    texts, drafted = [], []
    for turn in range(2):
        for _ in engine.generate([*PROMPT, *range(turn)], reuse=True):
            pass
        texts.append(list(engine.ids))
        drafted.append(engine.stats.drafted)
    return texts, drafted


@settings(max_examples=40)
@given(
    method=st.sampled_from(sorted(CHAINED)),
    lives=st.lists(st.integers(0, 25), max_size=3),
    seed=st.none() | st.integers(0, 2),
)
def test_what_is_drafted_stays_the_same(method: str, lives: list[int], seed: int | None) -> None:
    sampling = Sampling() if seed is None else Sampling(1.0, seed=seed)
    notes: list[str] = []
    expected = run(method, None, sampling, [])
    assert run(method, [*lives, NEVER], sampling, notes) == expected
    assert min(expected[1]) > 0
    assert all(note.startswith("drafter: p") and "same graph and weights" in note for note in notes)


@settings(max_examples=40)
@given(
    method=st.sampled_from([*sorted(CHAINED), "eagle+suffix", "draft+prompt-lookup"]),
    lives=st.lists(st.integers(0, 25), min_size=1, max_size=2),
)
def test_a_drafter_that_dies_ends_no_text(method: str, lives: list[int]) -> None:
    """Greedy text is the target's, whoever drafts."""
    notes: list[str] = []
    name = method.partition("+")[0]
    assert run(method, lives, Sampling(), notes)[0] == run(name, None, Sampling(), [])[0]
    ends = [note for note in notes if f"{name} drafts no more in this text (drafter: no provider is left: " in note]
    assert len(ends) <= 1  # said once, also where the next text finds it dead


@pytest.mark.parametrize("method", sorted(CHAINED))
def test_its_end_is_said_once(method: str) -> None:
    notes: list[str] = []
    texts, _ = run(method, [3, 4], Sampling(), notes)
    assert texts == run(method, None, Sampling(), [])[0]
    assert len(notes) == 2 and "continuing on p1" in notes[0]
    assert notes[1].startswith(f"{method} drafts no more in this text (drafter: no provider is left: p0 failed")


def test_members_of_a_hybrid_go_on() -> None:
    notes: list[str] = []
    with_one = run("medusa+suffix", [0], Sampling(), notes)
    assert with_one[1] == run("medusa+suffix", [0], Sampling(), [])[1]
    options = DrafterOptions(sampler=Sampler(Sampling(), (), V))
    engine = Engine(ToySession(V, CAPACITY, WIDTH), create("suffix", options), Sampling(), Limits(16))
    for _ in engine.generate(PROMPT):
        pass
    assert with_one[1][0] == engine.stats.drafted > 0


def test_garbage_of_a_draft_model_ends_its_drafting() -> None:
    session = ToySession(V, CAPACITY, WIDTH, seed=1)
    session._head[:] = np.nan
    notes: list[str] = []
    options = DrafterOptions(sampler=Sampler(Sampling(), (), V), draft=DraftModel(session, V))
    engine = Engine(ToySession(V, CAPACITY, WIDTH), create("draft", options, notes.append), Sampling(), Limits(8))
    for _ in engine.generate(PROMPT):
        pass
    assert len(engine.tokens) == 8 and engine.stats.drafted == 0
    assert len(notes) == 1 and "computes garbage" in notes[0]


def test_a_wrong_call_of_a_drafter_is_still_an_error() -> None:
    class Wrong(ToySession):
        def verify(self, pending: int, draft: Draft) -> Output:
            raise SpecError("a bug")

    options = DrafterOptions(sampler=Sampler(Sampling(), (), V), draft=DraftModel(Wrong(V, CAPACITY, WIDTH), V))
    engine = Engine(ToySession(V, CAPACITY, WIDTH), create("draft", options), Sampling(), Limits(8))
    with pytest.raises(SpecError, match="a bug"):
        list(engine.generate(PROMPT))


def test_a_smaller_cache_ends_the_drafting_and_not_the_text() -> None:
    class Small(ToyRows):
        capacity = 6

        def extend(self, ids: Sequence[int], features: F32) -> Level:
            if self.length + len(ids) > self.capacity:
                raise SpecError("they do not fit into the drafter's 6")
            return super().extend(ids, features)

    notes: list[str] = []
    kinds = iter([ToyRows, Small])
    rows = FailoverRows(chain(lambda life: EagleModel(next(kinds)(life), V), [12, NEVER], notes))
    options = DrafterOptions(sampler=Sampler(Sampling(), (), V), networks={"eagle": EagleModel(rows, V)})
    engine = Engine(ToySession(V, CAPACITY, WIDTH), create("eagle", options, notes.append), Sampling(), Limits(30))
    for _ in engine.generate(PROMPT):
        pass
    assert len(engine.tokens) == 30 and "they do not fit" in notes[-1] and "eagle drafts no more" in notes[-1]
