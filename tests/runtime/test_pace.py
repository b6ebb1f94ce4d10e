"""When drafting stops: what a further token must be worth by the costs."""

from __future__ import annotations

from itertools import product

import pytest

from spec_edge.runtime.costs import CostCurve
from spec_edge.runtime.draft import Context, Draft, Verdict
from spec_edge.runtime.draft_model import DraftModel
from spec_edge.runtime.drafted import greedy_chain
from spec_edge.runtime.drafters import auto
from spec_edge.runtime.drafters import draft as drafting
from spec_edge.runtime.drafters.options import DrafterOptions
from spec_edge.runtime.pace import Confidence, Ledger, Pace
from spec_edge.runtime.policy import Adaptive
from spec_edge.runtime.sampling import generator
from spec_edge.runtime.sessions.toy import ToySession

V = 16
TILES = CostCurve((1, 2, 3, 4, 5, 6, 8), (1.0, 1.1, 1.2, 1.3, 1.9, 2.0, 2.4))
"""A kernel that takes four rows at a time."""


def chain(pace: Pace | Confidence, likely: list[float]) -> int:
    """Drafted tokens where the drafter gives its best tokens these probabilities in turn."""
    return len(greedy_chain(0, lambda token: token + 1, lambda level: (level, likely[level]), 7, pace))


@pytest.mark.parametrize("step", [0.0, 0.05, 0.2, 0.4, 2.0])
def test_a_chain_ends_where_a_run_gives_less_than_it_takes(step: float) -> None:
    """By enumeration: of all lengths of sure tokens, the one with the most tokens a second, but for the margin."""
    speeds = {n: (1 + n) / (TILES.at(1 + n) + n * step) for n in range(1, 8)}
    best = max(speeds, key=lambda n: speeds[n])
    sure = Pace(TILES, step, 0.0, margin=speeds[best], next=1.0)
    assert speeds[chain(sure, [1.0] * 7)] == pytest.approx(speeds[best], rel=1e-9)


def test_the_fifth_row_of_a_tile_must_be_worth_it() -> None:
    assert chain(Pace(TILES, 0.3, 0.4), [0.95] * 7) == 3
    assert chain(Pace(TILES, 0.0, 0.4), [0.999] * 7) == 7


def test_an_unlikely_path_ends_it() -> None:
    pace = Pace(TILES, 0.3, 0.4)
    assert chain(pace, [0.35] * 7) == 0  # below `least`
    assert chain(pace, [0.45] * 7) == 1  # another run would be for nothing
    assert chain(pace, [0.9, 0.41, 0.9, 0.9, 0.9, 0.9, 0.9]) == 2
    assert chain(Confidence(0.4), [0.45] * 7) == 7


def test_levels_that_cost_something_make_short_drafts() -> None:
    widths = [Adaptive(TILES, drafting=d).rows(0, 8) for d in (0.0, 0.3, 0.6, 5.0)]
    assert widths == sorted(widths, reverse=True) and widths[0] > widths[-1] == 2
    busy = Adaptive(TILES, drafting=0.3)
    for _ in range(50):
        busy.observe(Draft.chain([1] * 7), Verdict(tuple(range(7)), (1,) * 8))
    assert busy.rows(0, 8) == 4  # seven sure tokens would take a second tile and four more runs


def learned(ledger: Ledger, tokens: int, rows: int, spent: float) -> None:
    """A step in which a head's chain was verified alone and gave so many tokens."""
    draft, right = Draft.chain(range(rows - 1)), tuple(range(tokens - 1))
    ledger.learn(Verdict(right, (*right, V)), draft, draft, spent)


def test_what_others_drafted_is_not_the_heads() -> None:
    """A chain of four that was right beside a head that was wrong; the same where it has the chain's first token."""
    others, wrong = Draft.chain([1, 2, 3, 4]), Draft.chain([9])
    verdict = Verdict((0, 1, 2, 3), (1, 2, 3, 4, 5))
    useless, useful = Ledger(TILES), Ledger(TILES)
    for _ in range(60):
        useless.learn(verdict, Draft((1, 2, 3, 4, 9), (-1, 0, 1, 2, -1), (True,) * 5), wrong, 0.1)
        useful.learn(verdict, others, Draft.chain([1, 2]), 0.1)
    assert [useless.asks() for _ in range(33)].count(True) == 2
    assert all(useful.asks() for _ in range(33))


def test_a_ledger_asks_while_it_pays_and_now_and_then_where_it_does_not() -> None:
    paying, losing = Ledger(TILES), Ledger(TILES)
    for _ in range(60):
        learned(paying, 2, 3, 0.1)  # two tokens in 1.3 plain steps
        learned(losing, 1, 3, 0.1)
    assert all(paying.asks() for _ in range(40))
    assert [losing.asks() for _ in range(33)].count(True) == 2
    losing.start()
    assert losing.asks()  # another text
    for _ in range(3):
        learned(losing, 1, 3, 0.1)
    assert not losing.asks()
    for _ in range(20):
        learned(losing, 3, 3, 0.1)
    assert losing.asks()


class Counting(ToySession):
    runs = 0

    def verify(self, pending: int, draft: Draft):  # type: ignore[no-untyped-def]
        self.runs += 1
        return super().verify(pending, draft)


def test_costs_shorten_the_chains_of_a_draft_model() -> None:
    """Known costs end them, unless the user says how to draft; every drafted token has cost one run."""
    for step, said in product((0.0, 0.4, 9.0), ({}, {"draft_tokens": 4}, {"confidence": 0.0})):
        session = Counting(V, 64, 8, 5)
        told = DrafterOptions(draft=DraftModel(session, tokens=V), cost=TILES, draft_seconds=step, **said)  # type: ignore[arg-type]
        drafter = drafting.create(told)
        drafter.start((1, 2, 3))
        before = session.runs
        draft = drafter.propose(Context((1, 2, 3), generator(0)), 8)
        assert session.runs - before <= max(1, len(draft) + 1)
        if said and step == 9.0:
            free = DrafterOptions(draft=DraftModel(ToySession(V, 64, 8, 5), tokens=V), **said)  # type: ignore[arg-type]
            assert len(draft) == len(drafting.create(free).propose(Context((1, 2, 3), generator(0)), 8))
        elif step == 9.0:
            assert len(draft) <= 1


def test_over_a_long_text_rows_are_dearer() -> None:
    growing = CostCurve(TILES.widths, TILES.seconds, 0.001)
    pace = Pace(growing, 0.1, 0.0)
    lengths = [chain(pace.over(length), [0.8] * 7) for length in (0, 128, 500, 1000, 3000)]
    assert lengths == sorted(lengths, reverse=True) and lengths[1] == 3 and lengths[-1] <= 1
    widths = [Adaptive(growing).rows(length, 8) for length in (0, 128, 500, 1000, 3000)]
    assert widths == sorted(widths, reverse=True) and widths[0] > widths[-1]


def test_methods_weigh_the_costs_over_their_own_text() -> None:
    """A copy pays less over a long prompt; the next text begins anew."""
    growing = CostCurve((1, 2, 3, 4, 5, 6, 8), (1.0, 1.1, 1.2, 1.3, 1.4, 1.9, 2.4), 0.01)
    loop = [1, 2, 3, 4, 5, 6, 7, 8] * 5
    drafter = auto.create(DrafterOptions(cost=growing))
    rows = []
    for length in (40, 4000, 40):
        text = (loop * (length // 40))[:length]
        drafter.start(text)
        rows.append(len(drafter.propose(Context(tuple(text), generator(0)), 8)))
    assert rows[0] == rows[2] > rows[1]
