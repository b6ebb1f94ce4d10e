"""The width of each step: long drafts early, shorter ones where acceptance falls or the text is long."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_edge.runtime.costs import CostCurve
from spec_edge.runtime.draft import EMPTY, UNREAD, Context, Draft, Output, Verdict
from spec_edge.runtime.engine import Engine, Limits
from spec_edge.runtime.policy import Adaptive, Belief, Fixed, choose, known_cost
from spec_edge.runtime.sampling import Sampling
from spec_edge.runtime.sessions.toy import ToySession

CURVE = CostCurve((1, 17), (1.0, 5.0))
CHAIN = Draft.chain([1] * 15)


def tell(policy: Adaptive, accepted: int, steps: int = 30, draft: Draft = CHAIN) -> None:
    for _ in range(steps):
        path = tuple(range(accepted))
        policy.observe(draft, Verdict(path, (1,) * (accepted + 1)))


def test_fixed_takes_all() -> None:
    policy = Fixed()
    policy.start()
    policy.observe(CHAIN, Verdict((), (1,)))
    assert [policy.rows(10, most) for most in (1, 2, 16)] == [1, 2, 16]


def test_long_early_shorter_as_acceptance_falls_longer_as_it_rises() -> None:
    policy = Adaptive(CURVE)
    early = policy.rows(100, 16)
    tell(policy, 0)
    low = policy.rows(100, 16)
    tell(policy, 3)
    three = policy.rows(100, 16)
    tell(policy, 15)
    high = policy.rows(100, 16)
    assert (low, three, high) == (2, 4, 16)
    assert low < early <= high
    policy.start()
    assert policy.rows(100, 16) == early


def test_shorter_in_a_long_text() -> None:
    policy = Adaptive(CURVE, growth=1e-4)
    widths = [policy.rows(length, 16) for length in (0, 1000, 4000, 20000)]
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < widths[0]


def test_costly_rows_make_short_drafts() -> None:
    steep, flat = CostCurve((1, 2), (1.0, 1.9)), CostCurve((1, 16), (1.0, 1.1))
    assert Adaptive(steep).rows(0, 16) == 2 < Adaptive(flat).rows(0, 16) - 4


def test_what_was_seen_at_a_depth_no_longer_drafted_fades() -> None:
    policy = Adaptive(CURVE)
    tell(policy, 1)
    assert policy.rows(0, 16) == 2
    tell(policy, 1, 60, Draft.chain([1]))
    assert policy.rows(0, 16) > 2


def test_levels_of_a_tree_count_as_they_are() -> None:
    """Two siblings at each depth: a depth costs two rows."""
    tree = Draft((1, 2, 3, 4, 5, 6), (-1, -1, 0, 0, 2, 2), (True,) * 6)
    policy = Adaptive(CURVE)
    for _ in range(40):
        policy.observe(tree, Verdict((0, 2), (1, 3, 9)))
    assert policy.rows(0, 16) == 5
    assert policy.rows(0, 4) == 4


@settings(max_examples=80, deadline=None)
@given(
    st.integers(1, 20),
    st.integers(0, 5000),
    st.lists(st.tuples(st.integers(0, 15), st.integers(0, 15)), max_size=20),
    st.builds(Belief, st.floats(0, 1), st.floats(0.1, 10), st.floats(0.1, 1)),
)
def test_always_in_range(most: int, length: int, seen: list[tuple[int, int]], belief: Belief) -> None:
    policy = Adaptive(CURVE, belief)
    for drafted, accepted in seen:
        tell(policy, min(drafted, accepted), 1, Draft.chain([1] * drafted))
        assert min(2, most) <= policy.rows(length, most) <= most


def test_choice() -> None:
    assert isinstance(choose(own_pace=True, pinned=False, cost=CURVE), Fixed)
    assert isinstance(choose(own_pace=False, pinned=True, cost=CURVE), Fixed)
    assert isinstance(choose(own_pace=False, pinned=False, cost=None), Adaptive)


def test_no_measured_time_decides_under_a_seed() -> None:
    assert known_cost(Sampling(1.0, seed=1), CURVE) is None
    assert known_cost(Sampling(1.0), CURVE) is CURVE
    assert known_cost(Sampling(0.0, seed=1), CURVE) is CURVE


class Guessing:
    """Always drafts as many equal tokens as it may; keeps the widths it was offered."""

    name = "guessing"
    wants: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.widths: list[int] = []

    def start(self, prompt: Sequence[int], read: Output = UNREAD) -> None: ...

    def propose(self, context: Context, width: int) -> Draft:
        self.widths.append(width)
        return Draft.chain([context.ids[-1]] * (width - 1)) if width > 1 else EMPTY

    def observe(self, verdict: Verdict, draft: Draft, output: Output) -> None: ...


@pytest.mark.parametrize("options", [Sampling(), Sampling(1.0, seed=5)])
def test_the_engine_offers_what_the_policy_says(options: Sampling) -> None:
    texts, widths = [], []
    for policy in (Fixed(), Adaptive(CURVE), Adaptive(CURVE)):
        drafter = Guessing()
        engine = Engine(ToySession(16, 64, 16), drafter, options, Limits(), policy)
        for _ in range(2):
            list(engine.generate([1, 2, 3]))
        half = len(drafter.widths) // 2
        assert drafter.widths[:half] == drafter.widths[half:]
        texts.append(engine.ids)
        widths.append(drafter.widths[:half])
    assert texts[1:] == [texts[1]] * 2
    assert widths[1] == widths[2]
    if options.greedy:
        assert texts[0] == texts[1]
    assert min(widths[1][:-16]) < widths[1][0]
    assert set(widths[0][:-16]) == {16}
