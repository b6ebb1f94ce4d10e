"""Costs that follow the machine: what runs of late took, against what was measured once."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from spec_edge.runtime.costs import CostCurve
from spec_edge.runtime.draft import Context, Draft, Verdict
from spec_edge.runtime.drafters import prompt_lookup
from spec_edge.runtime.drafters.auto import Auto
from spec_edge.runtime.drafters.options import DrafterOptions
from spec_edge.runtime.live_costs import APART, EVERY, FEWEST, KEPT, OLD, STREAK, LiveCurve, live, share
from spec_edge.runtime.pace import Ledger, Pace

MEASURED = CostCurve((1, 2, 4, 8), (4.0, 4.4, 5.0, 8.0), growth=0.001)
ENOUGH = STREAK + APART * KEPT + EVERY


def told(curve: LiveCurve, width: int, seconds: float, runs: int = ENOUGH, length: int = 128) -> LiveCurve:
    for _ in range(runs):
        curve.saw(width, length, seconds)
    return curve


def test_it_begins_as_it_was_measured() -> None:
    curve = live(MEASURED)
    assert [curve.at(w) for w in (1, 3, 8, 16)] == [MEASURED.at(w) for w in (1, 3, 8, 16)]
    assert [curve.over(640).at(w) for w in (1, 8)] == [MEASURED.over(640).at(w) for w in (1, 8)]


def test_runs_of_late_count_at_their_width_and_between() -> None:
    curve = told(told(live(MEASURED), 1, 2.0), 5, 5.75)
    assert MEASURED.at(5) == 5.75
    assert curve.at(1) == pytest.approx(2.0)
    assert curve.at(3) == pytest.approx(MEASURED.at(3) * 0.75)
    assert (curve.at(5), curve.at(8)) == (pytest.approx(5.75), pytest.approx(8.0))


def test_one_width_alone_says_how_fast_the_machine_is() -> None:
    curve = told(live(MEASURED), 4, 10.0)
    assert [curve.at(w) / MEASURED.at(w) for w in (1, 2, 4, 8)] == pytest.approx([2.0] * 4)


def test_a_long_text_is_no_slow_machine() -> None:
    curve = told(live(MEASURED), 8, MEASURED.over(1128).at(8), length=1128)
    assert curve.at(8) == pytest.approx(8.0)


def test_few_runs_and_one_slow_one_do_not_count() -> None:
    curve = live(MEASURED)
    for _ in range(FEWEST - 1):
        told(told(curve, 8, 80.0, 1), 4, 5.0, EVERY)
    assert curve.at(8) == pytest.approx(8.0)
    told(told(curve, 8, 80.0, 1), 4, 5.0, EVERY)
    assert curve.at(8) == pytest.approx(80.0)
    steady = told(live(MEASURED), 8, 8.0)
    assert told(told(steady, 8, 500.0, 1), 8, 8.0, EVERY).at(8) == pytest.approx(8.0)


def test_a_disturbance_of_some_runs_does_not_count() -> None:
    curve = told(live(MEASURED), 8, 8.0)
    assert told(curve, 8, 80.0, APART * (KEPT // 2 - 1)).at(8) == pytest.approx(8.0)


def test_a_wider_run_never_takes_less() -> None:
    """Shares of neighbouring widths may be of different moments."""
    curve = told(told(live(MEASURED), 4, 8.0), 8, 6.0)
    assert curve.at(4) == curve.at(8) == pytest.approx(8.0)
    assert curve.at(64) >= curve.at(16) >= 8.0


def test_drafters_are_taken_to_change_like_single_rows() -> None:
    assert (share(None), share(MEASURED), share(live(MEASURED))) == (1.0, 1.0, 1.0)
    assert share(told(live(MEASURED), 1, 2.0)) == pytest.approx(0.5)


def test_long_texts_are_left_out_where_their_cost_is_unknown() -> None:
    flat = CostCurve(MEASURED.widths, MEASURED.seconds)
    assert told(live(flat), 8, 20.0, length=900).at(8) == 8.0
    assert told(live(flat), 8, 20.0, length=500).at(8) == pytest.approx(20.0)


def test_single_rows_between_wider_runs_do_not_count() -> None:
    curve = live(MEASURED)
    for _ in range(4 * ENOUGH):
        told(told(curve, 1, 40.0, STREAK), 4, 5.0, 1)
    assert curve.at(1) == pytest.approx(4.0)
    assert told(curve, 1, 40.0).at(1) == pytest.approx(40.0)


def test_what_is_long_ago_is_forgotten() -> None:
    curve = told(told(live(MEASURED), 8, 80.0), 8, 8.0, APART * KEPT + EVERY)
    assert curve.at(8) == pytest.approx(8.0)
    curve = told(told(live(MEASURED), 8, 80.0), 1, 4.0, OLD + EVERY)
    assert curve.at(8) == pytest.approx(8.0)


def test_what_a_text_was_begun_with_follows() -> None:
    """Drafters hold the curve over their text's length."""
    curve = live(MEASURED)
    held = curve.over(300)
    told(curve, 1, 2.0)
    assert held.at(1) == pytest.approx(MEASURED.over(300).at(1) / 2)


def draft_length(cost: CostCurve, ids: Sequence[int]) -> int:
    auto = Auto(prompt_lookup.create(DrafterOptions(draft_tokens=7, min_ngram=1)), cost, 7)
    auto.start(ids)
    return len(auto.propose(Context(ids, None), 8))  # type: ignore[arg-type]


def test_drafts_follow() -> None:
    """`auto` drafts where rows are cheap, and no more once they have proved dear."""
    ids = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4]
    curve = live(MEASURED)
    assert draft_length(curve, ids) > 0
    told(told(curve, 2, 8.0), 1, 1.0)
    assert draft_length(curve, ids) == 0
    told(curve, 1, 1.0, OLD)  # nothing has been drafted for long: it is tried again
    assert draft_length(curve, ids) > 0


def test_a_pace_follows() -> None:
    curve = live(MEASURED)
    pace = Pace(curve, 0.1, 0.0)
    assert pace.takes(1.0, 0.6, 2)
    told(told(curve, 2, 8.0), 1, 1.0)
    assert not pace.takes(1.0, 0.6, 2)


ONE = Draft.chain([1])


@pytest.mark.parametrize(("taken", "asked"), [(4.4, True), (9.0, False)])
def test_a_ledger_counts_what_steps_take(taken: float, asked: bool) -> None:
    """With all that comes on top of the runs; by what was measured each of these steps would have paid."""
    now = [0.0]
    ledger, measured = (Ledger(curve, lambda: now[0]) for curve in (live(MEASURED), MEASURED))
    for _ in range(20):
        for one in (ledger, measured):
            if one.asks():
                now[0] += taken
                one.learn(Verdict((0,), (1, 2)), ONE, ONE, 0.1)
    assert measured.asks() and ledger.asks() == asked


def test_a_disturbed_step_is_not_the_drafters() -> None:
    now = [0.0]
    ledger = Ledger(live(MEASURED), lambda: now[0])
    for seconds in [4.5] * 19 + [500.0]:
        assert ledger.asks()
        now[0] += seconds
        ledger.learn(Verdict((0,), (1, 2)), ONE, ONE, 0.1)
    assert ledger.asks()
