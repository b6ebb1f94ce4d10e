"""A provider that dies at any call leaves the text as it would have been."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_edge.models.contract import SpecError
from spec_edge.runtime.draft import EMPTY, Draft, Output
from spec_edge.runtime.drafters import auto, lookahead, plain, prompt_lookup, suffix
from spec_edge.runtime.drafters.options import DrafterOptions
from spec_edge.runtime.engine import Engine, Limits
from spec_edge.runtime.protocols import Session
from spec_edge.runtime.providers.provider import ProviderFailed, ProviderMissing
from spec_edge.runtime.sampling import Sampling
from spec_edge.runtime.sessions.chain import Candidate, Chain, NoProviderLeft
from spec_edge.runtime.sessions.failover import FailoverSession
from spec_edge.runtime.sessions.toy import ToySession

V, CAPACITY, WIDTH = 6, 40, 8
PROMPT = [3, 1, 4, 1, 5, 3, 1]
METHODS = {m.__name__.rpartition(".")[2]: m for m in (plain, prompt_lookup, suffix, lookahead, auto)}
NEVER = 10**9


class Dying:
    """A toy on a provider that fails at call number `at`, before or after the work is done, and at every later one."""

    def __init__(self, at: int, late: bool = False, reason: str = "it broke") -> None:
        self.toy = toy()
        self.left, self.late, self.reason, self.closed = at, late, reason, False

    vocab_size = property(lambda self: self.toy.vocab_size)
    length = property(lambda self: self.toy.length)
    capacity, max_width = CAPACITY, WIDTH
    wants: frozenset[str] = frozenset()

    def _live(self, call: Callable[[], Any]) -> Any:
        self.left -= 1
        if self.left < 0 and not self.late:
            raise ProviderFailed(self.reason)
        result = call()
        if self.left < 0:
            raise ProviderFailed(self.reason)
        return result

    def prefill(self, ids: Sequence[int]) -> Output:
        return self._live(lambda: self.toy.prefill(ids))

    def verify(self, pending: int, draft: Draft) -> Output:
        return self._live(lambda: self.toy.verify(pending, draft))

    def commit(self, rows: Sequence[int]) -> None:
        self._live(lambda: self.toy.commit(rows))

    def truncate(self, length: int) -> None:
        self._live(lambda: self.toy.truncate(length))

    def close(self) -> None:
        self.closed = True


def toy() -> ToySession:
    return ToySession(V, CAPACITY, WIDTH, grain=0.5)


def failover(opens: Sequence[Callable[[], Session]], notes: list[str] | None = None) -> FailoverSession:
    say = ([] if notes is None else notes).append
    return FailoverSession(Chain([Candidate(f"p{i}", o, "g", "w") for i, o in enumerate(opens)], say), CAPACITY, WIDTH)


def refused(reason: str, kind: type[SpecError] = ProviderMissing) -> Callable[[], Session]:
    def open_() -> Session:
        raise kind(reason)

    return open_


def texts(session: Session, method: str, sampling: Sampling, turns: int, new: int = 12) -> list[list[int]]:
    """Several generations, the later ones over the rows that they share with the first."""
    engine = Engine(session, METHODS[method].create(DrafterOptions()), sampling, Limits(new))
    out = []
    for turn in range(turns):
        assert [t for c in engine.generate([*PROMPT, *range(turn)], reuse=True) for t in c]
        assert session.length == len(engine.ids) - 1
        out.append(list(engine.ids))
    return out


@settings(max_examples=60)
@given(
    method=st.sampled_from(sorted(METHODS)),
    deaths=st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=3),
    seed=st.none() | st.integers(0, 3),
    turns=st.integers(1, 3),
)
def test_the_text_is_an_undisturbed_ones(
    method: str, deaths: list[tuple[int, bool]], seed: int | None, turns: int
) -> None:
    sampling = Sampling() if seed is None else Sampling(1.0, seed=seed)
    notes: list[str] = []
    dying = [Dying(*death) for death in deaths]
    session = failover([*(lambda d=d: d for d in dying), toy], notes)
    whole = texts(toy(), method, sampling, turns)
    assert texts(session, method, sampling, turns) == whole
    dead = [d for d in dying if d.left < 0]
    assert len(notes) == len(dead) and all(d.closed for d in dead)
    assert all(f"continuing on p{i + 1}, same graph and weights" in note for i, note in enumerate(notes))
    held, fresh = session.chain.now, toy()
    fresh.prefill(whole[-1][:-1])
    assert np.array_equal((held.toy if isinstance(held, Dying) else held).cache, fresh.cache)  # type: ignore[attr-defined]


def test_every_step_is_announced() -> None:
    notes: list[str] = []
    session = failover([refused("no driver"), lambda: Dying(3), refused("it is\nno GPU."), toy], notes)
    texts(session, "plain", Sampling(), 1)
    assert notes == [
        "p0 skipped: no driver",
        "running on p1, same graph and weights; a bundle made for it is faster",
        "p2 skipped: it is no GPU",
        "p1 failed at token 7 (it broke); continuing on p3, same graph and weights",
    ]
    assert session.chain.name == "p3"


@pytest.mark.parametrize(
    ("weights", "graphs", "said", "more"),
    [
        ("w", "other", "same weights, another graph", "; a bundle made for it is faster"),
        ("other", "g", "with other weights: from here on the text is another model's", ""),
    ],
)
def test_what_changes_is_said(weights: str, graphs: str, said: str, more: str) -> None:
    notes: list[str] = []
    chain = Chain([Candidate("a", lambda: Dying(2), "g", "w"), Candidate("b", toy, graphs, weights)], notes.append)
    texts(FailoverSession(chain, CAPACITY, WIDTH), "plain", Sampling(), 1)
    assert notes == [f"a failed at token 7 (it broke); continuing on b, {said}"]
    notes.clear()
    Chain([Candidate("a", refused("no driver"), "g", "w"), Candidate("b", toy, graphs, weights)], notes.append)
    assert notes == ["a skipped: no driver", f"running on b, {said}{more}"]


LOST = ["ZE_RESULT_ERROR_DEVICE_LOST", "The GPU device instance has been suspended: 0x887A0005", "device was removed"]


@pytest.mark.parametrize("reason", LOST)
def test_a_lost_device_is_opened_again_once_in_a_text(reason: str) -> None:
    notes: list[str] = []
    opened: list[Dying] = []

    def again() -> Session:
        opened.append(Dying((4, 6, 20)[len(opened)], reason=reason))
        return opened[-1]

    session = failover([again, toy], notes)
    assert texts(session, "plain", Sampling(), 2) == texts(toy(), "plain", Sampling(), 2)
    assert [n.partition("; ")[2] for n in notes] == ["opened again", "continuing on p1, same graph and weights"]
    assert len(opened) == 2


def test_another_failure_is_not_tried_twice() -> None:
    opened: list[Dying] = []

    def once() -> Session:
        opened.append(Dying(4))
        return opened[-1]

    texts(failover([once, toy]), "plain", Sampling(), 1)
    assert len(opened) == 1  # a second session of it would have gone on


def test_a_new_text_may_lose_the_device_once_more() -> None:
    notes: list[str] = []
    lives = iter([5, 40, NEVER])
    session = failover([lambda: Dying(next(lives), reason="device lost")], notes)
    assert texts(session, "plain", Sampling(), 3) == texts(toy(), "plain", Sampling(), 3)
    assert len(notes) == 2 and all(note.endswith("opened again") for note in notes)


@given(at=st.integers(0, 30), late=st.booleans(), method=st.sampled_from(sorted(METHODS)))
@settings(max_examples=30)
def test_nobody_left_is_one_line_with_every_reason(at: int, late: bool, method: str) -> None:
    session = failover([refused("no driver"), lambda: Dying(at, late), lambda: Dying(0, reason="its memory is full.")])
    engine = Engine(session, METHODS[method].create(DrafterOptions()), Sampling(), Limits(30))
    got: list[int] = []
    with pytest.raises(NoProviderLeft) as error:
        for chunk in engine.generate(PROMPT):
            got += chunk
    line = error.value.message
    assert "\n" not in line and line.startswith("no provider is left: p0 skipped: no driver; p1 failed at token ")
    assert "(it broke); p2 failed at token " in line and "(its memory is full); 'spec-edge doctor' says" in line
    assert got == texts(toy(), method, Sampling(), 1, 30)[0][len(PROMPT) :][: len(got)]
    with pytest.raises(NoProviderLeft, match="no provider is left"):
        session.verify(0, EMPTY)


def test_nobody_opens() -> None:
    notes: list[str] = []
    with pytest.raises(NoProviderLeft, match="p0 skipped: no driver; p1 skipped: it refuses the graph; 'spec-edge"):
        failover([refused("no driver"), refused("it refuses the graph", ProviderFailed)], notes)
    assert notes == ["p0 skipped: no driver"]


class Nan(ToySession):
    """Garbage from a length on."""

    def verify(self, pending: int, draft: Draft) -> Output:
        output = super().verify(pending, draft)
        if self.length > len(PROMPT) + 2:
            output.logits[-1, 2:4] = self.value
        return output

    value: float | list[float] = np.nan


def test_both_infinities_are_garbage_too() -> None:
    def infinite() -> Session:
        session = Nan(V, CAPACITY, WIDTH, grain=0.5)
        session.value = [np.inf, -np.inf]
        return session

    assert texts(failover([infinite, toy]), "plain", Sampling(), 1) == texts(toy(), "plain", Sampling(), 1)


def test_garbage_moves_on_while_there_is_somebody_else() -> None:
    notes: list[str] = []

    def nan() -> Session:
        return Nan(V, CAPACITY, WIDTH, grain=0.5)

    assert texts(failover([nan, toy], notes), "plain", Sampling(), 1) == texts(toy(), "plain", Sampling(), 1)
    assert notes == [
        f"p0 failed at token {len(PROMPT) + 3} (it computes garbage: logits that are not finite); "
        "continuing on p1, same graph and weights"
    ]
    with pytest.raises(SpecError, match=r"step 4: .*computes garbage"):
        texts(failover([nan]), "plain", Sampling(), 1)


def test_an_error_of_the_caller_is_no_failure_of_the_provider() -> None:
    notes: list[str] = []
    session = failover([toy, toy], notes)
    session.prefill(PROMPT)
    with pytest.raises(SpecError, match="toy: 9 rows do not fit"):
        session.verify(1, Draft.chain([1] * 8))
    with pytest.raises(SpecError, match="do not fit"):
        session.prefill([1] * CAPACITY)
    assert not notes and session.length == len(PROMPT)


def test_an_interrupted_prefill_leaves_no_rows() -> None:
    class Interrupted(ToySession):
        def prefill(self, ids: Sequence[int]) -> Output:
            if len(ids) == 3:
                super().prefill(ids[:2])
                raise KeyboardInterrupt
            return super().prefill(ids)

    session = failover([lambda: Interrupted(V, CAPACITY, WIDTH), toy])
    session.prefill(PROMPT)
    with pytest.raises(KeyboardInterrupt):
        session.prefill([1, 2, 3])
    fresh = ToySession(V, CAPACITY, WIDTH)
    fresh.prefill(PROMPT)
    assert np.array_equal(session.verify(2, EMPTY).logits, fresh.verify(2, EMPTY).logits)
    session.commit([0])
    assert session.length == session.chain.now.length == len(PROMPT) + 1


def test_an_interrupted_step_down_is_taken_again() -> None:
    """Ctrl-C while the next provider opens: the model stays usable, and the next text is whole."""
    opened: list[int] = []

    def slow() -> Session:
        opened.append(1)
        if len(opened) == 1:
            raise KeyboardInterrupt
        return toy()

    session = failover([lambda: Dying(2), slow])
    session.prefill(PROMPT)
    session.verify(2, EMPTY)
    with pytest.raises(KeyboardInterrupt):
        session.commit([0])
    fresh = toy()
    fresh.prefill(PROMPT)
    assert np.array_equal(session.verify(2, EMPTY).logits, fresh.verify(2, EMPTY).logits)
    session.commit([0])
    assert session.length == session.chain.now.length == len(PROMPT) + 1 and len(opened) == 2


def test_features_of_the_repeated_prefill_are_those_that_are_wanted() -> None:
    """All of the prompt's rows, on the provider that read it; what was read again is not told twice."""
    wants: list[frozenset[str]] = []

    class Telling(ToySession):
        def prefill(self, ids: Sequence[int]) -> Output:
            wants.append(self.wants)
            return super().prefill(ids)

    session = failover([lambda: Dying(1), lambda: Telling(V, CAPACITY, WIDTH, grain=0.5)])
    session.wants = frozenset({"hidden"})
    session.prefill(PROMPT)
    output = session.prefill([1, 2])
    assert output.hidden is not None and output.hidden.shape[0] == 2
    assert wants == [frozenset(), frozenset({"hidden"})]


def test_closed_is_closed() -> None:
    session = failover([toy])
    session.close()
    session.close()
    with pytest.raises(SpecError, match="closed"):
        session.prefill(PROMPT)
