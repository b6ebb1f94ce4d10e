# ruff: noqa: ARG001, ARG002, ARG005 (stand-ins for protocols take what those take)
"""The loop over the toy target: whatever a drafter does, the text is the target's own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_edge.models.contract import SpecError
from spec_edge.runtime.draft import EMPTY, UNREAD, Context, Draft, Output, Verdict
from spec_edge.runtime.drafters import plain
from spec_edge.runtime.drafters.options import DrafterOptions
from spec_edge.runtime.engine import Engine, Limits
from spec_edge.runtime.sampling import Sampling
from spec_edge.runtime.sessions.toy import ToySession

V, CAPACITY = 16, 48
PROMPT = [3, 1, 4, 1, 5]


class Scripted:
    """Proposes what a function of (ids, width) says; remembers what it was shown."""

    name = "scripted"
    wants: frozenset[str] = frozenset()

    def __init__(self, propose: Callable[[Sequence[int], int], Draft]) -> None:
        self._propose = propose
        self.seen: list[tuple[Verdict, Draft]] = []

    def start(self, prompt: Sequence[int], read: Output = UNREAD) -> None:
        self.seen = []

    def propose(self, context: Context, width: int) -> Draft:
        return self._propose(context.ids, width)

    def observe(self, verdict: Verdict, draft: Draft, output: Output) -> None:
        assert output.logits.shape == (len(draft) + 1, V)
        self.seen.append((verdict, draft))


def toy(seed: int = 0, grain: float = 0.0, width: int = 8) -> ToySession:
    return ToySession(V, CAPACITY, width, seed, grain)


def plainly(prompt: Sequence[int], seed: int, grain: float, limits: Limits, options: Sampling | None = None) -> Engine:
    engine = Engine(toy(seed, grain), plain.create(DrafterOptions()), options, limits)
    list(engine.generate(prompt))
    return engine


def oracle(seed: int, grain: float = 0.0) -> list[int]:
    """Prompt and everything greedy decoding writes until the context is full, without the engine."""
    session, ids = toy(seed, grain), list(PROMPT)
    row = session.prefill(ids).logits[-1]
    while True:
        ids.append(int(row.argmax()))
        if len(ids) == CAPACITY:
            return ids
        row = session.prefill(ids[-1:]).logits[-1]


@st.composite
def any_draft(draw: st.DrawFn) -> Draft:
    n = draw(st.integers(0, 12))
    straight = draw(st.booleans())
    return Draft(
        tuple(draw(st.integers(-3, V + 3)) for _ in range(n)),
        tuple(i - 1 if straight else draw(st.integers(-1, i - 1)) for i in range(n)),
        tuple(draw(st.integers(0, 4)) > 0 for _ in range(n)),
    )


@st.composite
def near_miss(draw: st.DrawFn) -> Callable[[Sequence[int], list[int]], Draft]:
    """A tree around the true continuation: right tokens, wrong ones, copies and uncounted rows mixed."""
    shape = [(draw(st.integers(-1, i - 1)), draw(st.integers(0, 5)), draw(st.integers(0, 5))) for i in range(10)]

    def build(ids: Sequence[int], truth: list[int]) -> Draft:
        depth, tokens = {-1: 0}, []
        for i, (parent, wrong, _) in enumerate(shape):
            depth[i] = depth[parent] + 1
            at = len(ids) + depth[i] - 1
            right = truth[at] if at < len(truth) else 0
            tokens.append((right + (wrong == 0)) % V)
        return Draft(tuple(tokens), tuple(p for p, _, _ in shape), tuple(c > 0 for _, _, c in shape))

    return build


def rebuilt(session: ToySession, ids: Sequence[int], seed: int, grain: float = 0.0) -> None:
    """The cache is bit-equal to one built token by token."""
    fresh = toy(seed, grain)
    if session.length:
        fresh.prefill(ids[: session.length])
    assert np.array_equal(session.cache, fresh.cache)


LIMITS = st.builds(
    Limits,
    max_new_tokens=st.one_of(st.none(), st.integers(1, 50)),
    eos_ids=st.lists(st.integers(0, V - 1), max_size=2).map(tuple),
    width=st.one_of(st.none(), st.integers(1, 8)),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(any_draft(), min_size=1, max_size=5), st.integers(0, 50), st.sampled_from([0.0, 0.7]), LIMITS)
def test_any_drafts_give_the_plain_tokens(drafts: list[Draft], seed: int, grain: float, limits: Limits) -> None:
    turn = iter(range(10**6))
    same_as_plain(Scripted(lambda ids, width: drafts[next(turn) % len(drafts)]), seed, grain, limits)


@settings(max_examples=60, deadline=None)
@given(near_miss(), st.integers(0, 50), st.sampled_from([0.0, 0.7]), LIMITS)
def test_near_misses_give_the_plain_tokens(
    build: Callable[[Sequence[int], list[int]], Draft], seed: int, grain: float, limits: Limits
) -> None:
    truth = oracle(seed, grain)
    same_as_plain(Scripted(lambda ids, width: build(ids, truth)), seed, grain, limits)


def same_as_plain(drafter: Scripted, seed: int, grain: float, limits: Limits) -> None:
    want = plainly(PROMPT, seed, grain, limits)
    engine = Engine(toy(seed, grain), drafter, Sampling(), limits)
    chunks = list(engine.generate(PROMPT))
    assert all(chunks)
    assert list(chain.from_iterable(chunks)) == engine.tokens == want.tokens
    assert engine.ids == want.ids
    assert engine.finish_reason == want.finish_reason
    assert engine.session.length == len(engine.ids) - 1
    rebuilt(engine.session, engine.ids, seed, grain)
    stats = engine.stats
    assert stats.steps <= want.stats.steps
    assert 1 + round(stats.acceptance_length * stats.steps) == len(engine.ids) - len(PROMPT)
    assert stats.accepted == sum(stats.accepted_by_position) <= stats.drafted
    assert stats.new_tokens == len(engine.tokens)


@pytest.mark.parametrize("seed", range(4))
def test_plain_equals_greedy_by_hand(seed: int) -> None:
    truth = oracle(seed)
    engine = plainly(PROMPT, seed, 0.0, Limits())
    assert (engine.ids, engine.finish_reason) == (truth, "context")
    assert engine.stats.acceptance_length == 1


ADVERSARIES: dict[str, Callable[[list[int]], Callable[[Sequence[int], int], Draft]]] = {
    "always right": lambda truth: lambda ids, width: Draft.chain(truth[len(ids) :][:20]),
    "always wrong": lambda truth: lambda ids, width: Draft.chain([(t + 1) % V for t in truth[len(ids) :][:7]]),
    "end first": lambda truth: lambda ids, width: Draft.chain([7] * 7),
    "repeats": lambda truth: lambda ids, width: Draft.chain([ids[-1]] * 7),
    "outside": lambda truth: lambda ids, width: Draft.chain([V, -1, 10**9]),
    "far outside": lambda truth: lambda ids, width: Draft.chain([*truth[len(ids) :][:2], V, 0]),
    "never counted": lambda truth: lambda ids, width: Draft(tuple(truth[len(ids) :][:1]) or (0,), (-1,), (False,)),
    "too long": lambda truth: lambda ids, width: Draft.chain([0] * 500),
}


@pytest.mark.parametrize("name", ADVERSARIES)
@pytest.mark.parametrize("eos", [(), (7,), (2, 9)])
def test_adversaries(name: str, eos: tuple[int, ...]) -> None:
    for seed in range(3):
        same_as_plain(Scripted(ADVERSARIES[name](oracle(seed))), seed, 0.0, Limits(eos_ids=eos))


@pytest.mark.parametrize("k", [1, 3, 7])
def test_self_draft_accepts_everything(k: int) -> None:
    """A drafter that is the target: every step gives exactly K + 1 tokens."""

    def draft(ids: Sequence[int], width: int) -> Draft:
        model, out = toy(5), list(ids)
        for _ in range(k):
            out.append(int(model.prefill(out[model.length :]).logits[-1].argmax()))
        return Draft.chain(out[len(ids) :])

    engine = Engine(toy(5), Scripted(draft), Sampling(), Limits(max_new_tokens=1 + 3 * (k + 1)))
    list(engine.generate(PROMPT))
    assert engine.stats.acceptance_length == k + 1
    assert engine.stats.accepted_by_position == (3,) * k
    assert engine.tokens == oracle(5)[len(PROMPT) :][: 1 + 3 * (k + 1)]


def test_self_draft_of_probabilities_accepts_everything() -> None:
    """Under sampling too, where q is p itself."""

    def draft(context: Context) -> Draft:
        model, out, q = toy(5), list(context.ids), []
        for _ in range(3):
            row = model.prefill(out[model.length :]).logits[-1].astype(float)
            q.append(np.exp(row - row.max()) / np.exp(row - row.max()).sum())
            out.append(int(context.rng.choice(V, p=q[-1])))
        return Draft.chain(out[len(context.ids) :], np.stack(q) * (1 - 1e-6))

    drafter = Scripted(lambda ids, width: EMPTY)
    drafter.propose = lambda context, width: draft(context)  # type: ignore[method-assign]
    engine = Engine(toy(5), drafter, Sampling(1.0, seed=3), Limits(max_new_tokens=21))
    list(engine.generate(PROMPT))
    assert engine.stats.acceptance_length == 4


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 42), st.integers(0, 20), st.booleans(), st.integers(0, V - 1))
def test_a_smaller_limit_gives_a_prefix(m: int, seed: int, speculate: bool, eos: int) -> None:
    truth = oracle(seed)
    right = ADVERSARIES["always right"](truth) if speculate else lambda ids, width: EMPTY
    texts = []
    for limit in (m, m + 1):
        engine = Engine(toy(seed), Scripted(right), Sampling(), Limits(limit, (eos,)))
        list(engine.generate(PROMPT))
        assert len(engine.tokens) == limit or engine.finish_reason == "stop"
        texts.append(engine.tokens)
    assert texts[1][:m] == texts[0]


def test_end_of_sequence_inside_a_block_is_counted_but_not_text() -> None:
    truth = oracle(0)
    new = truth[len(PROMPT) :]
    at = next(i for i in range(3, 20) if new[i] not in new[:i])
    drafter = Scripted(ADVERSARIES["always right"](truth))
    engine = Engine(toy(0, width=16), drafter, Sampling(), Limits(eos_ids=(new[at],)))
    session = engine.session
    list(engine.generate(PROMPT))
    assert (engine.tokens, engine.finish_reason) == (new[:at], "stop")
    assert engine.ids == truth[: len(PROMPT) + at + 1]
    stats = engine.stats
    assert (stats.steps, stats.acceptance_length, stats.accepted) == (1, at, at)
    assert len(drafter.seen[-1][0].tokens) == at
    assert session.length == len(engine.ids) - 1


def test_end_of_sequence_as_the_first_token() -> None:
    first = oracle(0)[len(PROMPT)]
    engine = plainly(PROMPT, 0, 0.0, Limits(eos_ids=(first,)))
    assert (engine.tokens, engine.finish_reason, engine.stats.steps) == ([], "stop", 0)
    assert engine.stats.as_dict()["acceptance_length"] == 0


def test_drafts_see_only_what_can_still_be_used() -> None:
    truth, widths = oracle(2), []

    def draft(ids: Sequence[int], width: int) -> Draft:
        widths.append(width)
        return Draft.chain(truth[len(ids) :][:20] + [0] * 20)

    engine = Engine(toy(2), drafter := Scripted(draft), Sampling(), Limits(max_new_tokens=12))
    list(engine.generate(PROMPT))
    assert [len(d) for _, d in drafter.seen] == [7, 2]
    assert engine.finish_reason == "length"
    engine = Engine(toy(2), drafter, Sampling(), Limits())
    list(engine.generate(PROMPT))
    assert engine.finish_reason == "context"
    assert len(engine.ids) == CAPACITY
    assert widths[-1] <= CAPACITY - len(drafter.seen)


def test_padding_ids_are_never_given_nor_drafted() -> None:
    limits = Limits(tokens=9, max_new_tokens=40)
    for options in (Sampling(), Sampling(2.0, seed=1), Sampling(2.0, top_k=4, seed=1), Sampling(2.0, top_p=0.9)):
        drafter = Scripted(lambda ids, width: Draft.chain([8, 9, 10]))
        engine = Engine(toy(1), drafter, options, limits)
        list(engine.generate(PROMPT))
        assert max(engine.tokens) < 9
        assert all(max(d.tokens, default=0) < 9 for _, d in drafter.seen)


def test_a_drawn_draft_outside_the_vocabulary_is_refused() -> None:
    q = np.full((1, V + 1), 1 / (V + 1))
    engine = Engine(toy(), Scripted(lambda ids, width: Draft.chain([V], q)), Sampling(1.0, seed=0), Limits())
    with pytest.raises(SpecError, match="outside"):
        list(engine.generate(PROMPT))
    engine = Engine(toy(), Scripted(lambda ids, width: Draft.chain([1], q[:, :5])), Sampling(1.0, seed=0), Limits())
    with pytest.raises(SpecError, match="covers 5"):
        list(engine.generate(PROMPT))


@pytest.mark.parametrize("options", [Sampling(0.8, seed=4), Sampling(1.0, 5, 0.9, 0.01, 1.2, seed=4), Sampling()])
def test_the_same_seed_gives_the_same_text(options: Sampling) -> None:
    drafter = Scripted(lambda ids, width: Draft((1, 2, 3, ids[-1]), (-1, -1, 0, 2), (True,) * 4))
    texts = []
    engine = Engine(toy(3), drafter, options, Limits())
    for _ in range(2):
        list(engine.generate(PROMPT))
        texts.append((engine.tokens, engine.stats.accepted_by_position))
    assert texts[0] == texts[1]
    assert engine.stats.steps == len(drafter.seen)


def test_penalty_counts_the_prompt_and_the_accepted_path() -> None:
    """Greedy with a penalty: speculation equals plain, and both equal the transform by hand."""
    options = Sampling(repetition_penalty=1.8)
    want = plainly(PROMPT, 6, 0.0, Limits(max_new_tokens=30), options)
    session, ids = toy(6), list(PROMPT)
    row = session.prefill(ids).logits[-1]
    for _ in range(30):
        seen = np.unique(ids)
        row = row.copy()
        row[seen] = np.where(row[seen] < 0, row[seen] * 1.8, row[seen] / 1.8)
        ids.append(int(row.argmax()))
        row = session.prefill(ids[-1:]).logits[-1]
    assert want.ids == ids
    engine = Engine(toy(6), Scripted(ADVERSARIES["always right"](ids)), options, Limits(max_new_tokens=30))
    list(engine.generate(PROMPT))
    assert engine.ids == ids
    assert engine.stats.acceptance_length > 4


def test_leaving_the_loop_and_going_on() -> None:
    truth = oracle(0)
    engine = Engine(toy(0), Scripted(ADVERSARIES["always right"](truth)), Sampling(), Limits())
    for chunk in engine.generate(PROMPT):
        if len(chunk) > 1:
            break
    assert engine.session.length == len(engine.ids) - 1
    rows = engine.session.length
    longer = [*engine.ids, 2]
    list(engine.generate(longer, reuse=True))
    assert engine.ids[: len(longer)] == longer
    rebuilt(engine.session, engine.ids, 0)
    want = plainly(longer, 0, 0.0, Limits())
    assert engine.ids == want.ids
    assert rows == len(longer) - 2


def test_stop_drops_what_comes_after() -> None:
    truth = oracle(0)
    engine = Engine(toy(0), Scripted(ADVERSARIES["always right"](truth)), Sampling(), Limits())
    chunks = engine.generate(PROMPT)
    next(chunks)
    next(chunks)
    assert len(engine.tokens) == 9
    engine.stop(4)
    assert engine.tokens == truth[len(PROMPT) :][:4]
    assert engine.finish_reason == "stop"
    assert engine.session.length == len(engine.ids) - 1
    stats = engine.stats
    assert (stats.new_tokens, stats.acceptance_length, stats.accepted) == (4, 3, 3)
    assert list(chunks) == []
    rebuilt(engine.session, engine.ids, 0)
    engine.stop(4)
    assert len(engine.tokens) == 4
    engine.stop(0)
    assert (engine.ids, engine.stats.acceptance_length) == (PROMPT, 0)


def test_step_is_short_and_knows_no_method() -> None:
    source = inspect.getsource(Engine.step)
    assert len(source.splitlines()) < 40


def test_order_of_the_phases() -> None:
    """propose, verify, commit, observe, and never a commit without a verify."""
    calls: list[str] = []

    class Watched(ToySession):
        def verify(self, pending: int, draft: Draft) -> Output:
            calls.append("verify")
            return super().verify(pending, draft)

        def commit(self, rows: Sequence[int]) -> None:
            calls.append("commit")
            super().commit(rows)

    drafter = Scripted(lambda ids, width: calls.append("propose") or EMPTY)  # type: ignore[func-returns-value]
    observe = drafter.observe
    drafter.observe = lambda *a: calls.append("observe") or observe(*a)  # type: ignore[method-assign]
    engine = Engine(Watched(V, CAPACITY, 8), drafter, Sampling(), Limits(max_new_tokens=3))
    steps: Iterator[list[int]] = engine.generate(PROMPT)
    calls.clear()
    list(steps)
    # the last of the three tokens leaves no room for a draft
    assert calls == ["propose", "verify", "commit", "observe", "verify", "commit", "observe"]
