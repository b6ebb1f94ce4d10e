# ruff: noqa: ARG001, ARG005 (stand-ins for protocols take what those take)
"""Every acceptance rule in the loop: it always moves on, limits and stops only cut, and the statistics add up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_edge.models.contract import BadUsage, SpecError
from spec_edge.runtime.draft import EMPTY, UNREAD, Context, Draft, Output, Verdict
from spec_edge.runtime.drafters import plain
from spec_edge.runtime.drafters.options import DrafterOptions
from spec_edge.runtime.engine import Engine, Limits
from spec_edge.runtime.law import Law, dense, siblings
from spec_edge.runtime.policy import Adaptive
from spec_edge.runtime.sampling import Sampling
from spec_edge.runtime.sessions.toy import ToySession
from spec_edge.runtime.stats import Round, dropped, summarise

V = 12
PROMPT = [3, 1, 4, 1, 5]


class Proposing:
    """A drafter made of one function."""

    name = "proposing"
    wants: frozenset[str] = frozenset()

    def __init__(self, propose: Callable[[Context, int], Draft]) -> None:
        self._propose = propose

    def start(self, prompt: Sequence[int], read: Output = UNREAD) -> None: ...

    def propose(self, context: Context, width: int) -> Draft:
        return self._propose(context, width)

    def observe(self, verdict: Verdict, draft: Draft, output: Output) -> None: ...


UNIFORM = Law(np.arange(V), np.full(V, 1 / V))


def point_mass(context: Context, width: int) -> Draft:
    a = context.ids[-1]
    return Draft((a, 1, a, 2, 3, a), (-1, -1, 0, 0, 1, 2), (True,) * 6)


def drawn_chain(context: Context, width: int) -> Draft:
    tokens = [siblings(UNIFORM, 1, context.rng)[0][0] for _ in range(3)]
    return Draft.chain(tokens, np.full((3, V), 1 / V))


def drawn_siblings(context: Context, width: int) -> Draft:
    tokens, laws = zip(*siblings(UNIFORM, 4, context.rng), strict=True)
    return Draft(tokens, (-1,) * 4, (True,) * 4, np.stack([dense(law, V) for law in laws]))


def impossible(context: Context, width: int) -> Draft:
    """Only tokens that the target, cut to one, never gives, and ids outside the vocabulary."""
    return Draft((V, -1, V + 5, 0), (-1, -1, 0, -1), (True,) * 4)


DRAFTS = {"point mass": point_mass, "chain": drawn_chain, "siblings": drawn_siblings, "impossible": impossible}
RULES = {
    "greedy": Sampling(seed=1, bad_words=((0,),)),
    "exact": Sampling(1.0, seed=1),
    "exact, one token left": Sampling(1.0, top_k=1, seed=1),
    "everything": Sampling(0.9, 5, 0.9, 0.01, 1.2, 1, 0.3, 0.2, {2: 1.0}, ((1, 2),)),
    "typical": Sampling(1.3, accept="typical", seed=1),
    "typical, cold": Sampling(seed=1, accept="typical"),
    "typical, all accepted": Sampling(1.0, accept="typical", typical_epsilon=0.0, seed=1),
    "typical, little accepted": Sampling(1.0, accept="typical", typical_epsilon=1.0, typical_alpha=1.0, seed=1),
}


def run(options: Sampling, draft: str, limits: Limits, seed: int = 0) -> Engine:
    session = ToySession(V, 48, 8, seed)
    engine = Engine(session, Proposing(DRAFTS[draft]), options, limits, Adaptive())
    chunks = list(engine.generate(PROMPT))
    assert all(chunks)
    assert list(chain.from_iterable(chunks)) == engine.tokens
    return engine


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("eos", [(), (7,)])
def test_every_step_commits_and_counts(rule: str, draft: str, eos: tuple[int, ...]) -> None:
    """Liveness: at least one token a step, so never more steps than tokens; and the same seed, the same text."""
    options = RULES[rule]
    for seed in range(3):
        engine = run(options, draft, Limits(eos_ids=eos), seed)
        assert engine.finish_reason in ("stop", "context")
        stats, new = engine.stats, len(engine.ids) - len(PROMPT)
        assert stats.steps <= new - 1
        assert stats.accepted + stats.bonus == new - 1 == round(stats.acceptance_length * stats.steps)
        assert stats.accepted == sum(stats.accepted_by_position) <= stats.drafted
        pairs = zip(stats.accepted_by_position, stats.drafted_by_position, strict=False)
        assert all(a <= d for a, d in pairs)
        assert len(stats.accepted_by_position) <= len(stats.drafted_by_position)
        assert stats.lossy == ("typical" in rule and not options.greedy)
        assert sum(stats.steps_by_drafter.values()) == stats.steps
        again = run(options, draft, Limits(eos_ids=eos), seed)
        assert (again.ids, again.stats.steps) == (engine.ids, stats.steps)


@pytest.mark.parametrize("rule", ["greedy", "typical, cold"])
@pytest.mark.parametrize("draft", DRAFTS)
def test_greedy_text_is_plain_under_every_rule(rule: str, draft: str) -> None:
    want = Engine(ToySession(V, 48, 8), plain.create(DrafterOptions()), RULES[rule])
    list(want.generate(PROMPT))
    assert run(RULES[rule], draft, Limits()).ids == want.ids


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("rule", RULES)
def test_a_stop_only_cuts(rule: str, draft: str) -> None:
    whole = run(RULES[rule], draft, Limits())
    ids = list(whole.tokens)
    for keep in (20, 7, 1, 0):
        whole.stop(keep)
        assert whole.tokens == ids[:keep]
        stats = whole.stats
        assert stats.new_tokens == keep
        assert stats.accepted + stats.bonus == max(0, keep - 1)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.integers(0, 30), st.sampled_from(["point mass", "impossible"]))
def test_a_smaller_limit_gives_a_prefix_when_greedy(m: int, seed: int, draft: str) -> None:
    short, longer = (run(RULES["greedy"], draft, Limits(n), seed).tokens for n in (m, m + 1))
    assert longer[:m] == short


def test_bad_words_never_appear() -> None:
    words = ((4,), (1, 2), (2, 3, 1))
    for rule in (Sampling(), Sampling(2.0, seed=3), Sampling(2.0, accept="typical", seed=3)):
        options = Sampling(rule.temperature, accept=rule.accept, seed=rule.seed, bad_words=words)
        for seed in range(5):
            ids = run(options, "point mass", Limits(), seed).ids
            new = len(PROMPT)
            assert 4 not in ids[new:]
            assert not any(ids[i - 1] == 1 and ids[i] == 2 for i in range(new, len(ids)))
            assert not any(ids[i - 2 : i + 1] == [2, 3, 1] for i in range(new, len(ids)))


def test_unknown_ids_are_refused_before_anything_runs() -> None:
    for options in (Sampling(logit_bias={9: 1.0}), Sampling(bad_words=((1, 9),))):
        with pytest.raises(BadUsage, match="names token 9"):
            Engine(ToySession(V, 48, 8), plain.create(DrafterOptions()), options, Limits(tokens=9))


def test_a_merged_tree_with_q_never_reaches_the_ratio_rule() -> None:
    q = np.full((2, V), 1 / V)
    drafter = Proposing(lambda context, width: Draft((1, 2), (-1, -1), (True, True), q))
    with pytest.raises(SpecError, match="leave the draft's q out"):
        list(Engine(ToySession(V, 48, 8), drafter, Sampling(1.0, seed=0)).generate(PROMPT))


def test_steps_are_counted_for_each_source() -> None:
    turn = iter(range(100))
    drafts = [Draft((1,), (-1,), (True,), None, ("a", "b")), Draft((1,), (-1,), (True,)), EMPTY]
    drafter = Proposing(lambda context, width: drafts[next(turn) % 3])
    engine = Engine(ToySession(V, 48, 8), drafter, Sampling(bad_words=((1,),)), Limits(10))
    list(engine.generate(PROMPT))
    assert engine.stats.steps_by_drafter == {"a": 3, "b": 3, "proposing": 3, "plain": 3}
    assert engine.stats.as_dict()["steps_by_drafter"] == {"a": 3, "b": 3, "proposing": 3, "plain": 3}


def test_summary_by_hand() -> None:
    rounds = [
        Round(5, 3, 2, 3, ("a",), 0.1, 0.5, 1.0),
        Round(2, 1, 0, 1, ("a", "b"), 0.1, 0.5, 1.0),
        Round(0, 0, 0, 1, ("plain",), 0.0, 0.5, 1.0),
    ]
    stats = summarise(7, 6, 0.25, rounds, lossy=True)
    assert (stats.drafted, stats.accepted, stats.bonus, stats.acceptance_length) == (7, 2, 3, pytest.approx(5 / 3))
    assert (stats.accepted_by_position, stats.drafted_by_position) == ((1, 1), (2, 1, 1))
    assert stats.steps_by_drafter == {"a": 2, "b": 1, "plain": 1}
    assert stats.lossy
    assert stats.as_dict()["accepted_by_position"] == [1, 1]
    assert summarise(7, 0, 0.1, []).accepted_by_position == ()
    cut = summarise(7, 3, 0.25, dropped(rounds, 3))
    assert (cut.accepted, cut.bonus, cut.steps) == (2, 0, 3)
