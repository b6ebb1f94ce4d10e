"""Statistics of the benchmark by known values: pairing, bootstrap, rotation, figures."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spec_edge.runtime.bench import figures, order
from spec_edge.runtime.bench.ratios import LEAST, Ratio, paired, per_question
from spec_edge.runtime.bench.runs import Failed, Inside, Item, Record, Run


def record(question: str = "1", repeat: int = 0, run: Run | None = None, task: str = "qa", turn: int = 0) -> Record:
    return Record("plain", question, task, turn, repeat, run or steady(10, 0.1))


def steady(tokens: int, gap: float, first: float = 1.0, at_once: int = 1) -> Run:
    """One token after `first` seconds, then `at_once` of them every `gap` seconds."""
    arrivals = [(first, 1)] + [(first + gap * (i + 1), at_once) for i in range((tokens - 1) // at_once)]
    return Run(tuple(range(tokens)), tuple(arrivals), len(arrivals) - 1)


@given(st.integers(1, 12), st.integers(0, 30))
def test_the_order_is_balanced(count: int, start: int) -> None:
    """Everyone is in every place, and follows everyone else, equally often."""
    turns = count * (2 if count % 2 else 1)
    orders = [order.rotated(range(count), turn) for turn in range(turns)]
    assert orders == [order.rotated(range(count), turns * start + turn) for turn in range(turns)]
    for place in range(count):
        assert set(Counter(row[place] for row in orders).values()) == {turns // count}
    pairs = Counter(pair for row in orders for pair in itertools.pairwise(row))
    assert len(pairs) == count * (count - 1) and len(set(pairs.values())) <= 1


def test_each_contender_is_first_equally_often() -> None:
    """Every question sees another order, and so does the same question in the next repeat."""
    calls: list[tuple[str, str]] = []

    class One:
        def __init__(self, name: str) -> None:
            self.name = name

        def generate(self, item: Item) -> Run:
            calls.append((self.name, item.question))
            return steady(4, 0.1)

    contenders = [One(name) for name in "abcd"]
    items = [Item(str(i), "qa", 0, (1,), (1, 2, 3, 4)) for i in range(4)]
    _, records, failures = order.measure(contenders, items, 4)
    assert not failures
    assert calls[:4] == [(name, "0") for name in "abcd"]  # warm-up
    firsts = [name for i, (name, _) in enumerate(calls[4:]) if i % 4 == 0]
    assert sorted(firsts) == sorted("abcd" * 4)
    assert firsts[::4] == ["a", "b", "c", "d"]  # question 0 in each repeat
    assert len(records) == 64 and len({(r.contender, r.question, r.repeat) for r in records}) == 64
    assert order.runs_in_all(4, 4, 4) == len(calls)


def test_a_contender_that_fails_leaves_no_figures_and_stops_nobody() -> None:
    class Fails:
        name = "bad"

        def generate(self, item: Item) -> Run:
            if item.question == "1":
                raise Failed("its process ended with code -11")
            return steady(4, 0.1)

    class Works:
        name = "good"

        def generate(self, item: Item) -> Run:  # noqa: ARG002
            return steady(4, 0.1)

    ticks: list[int] = []
    items = [Item(q, "qa", 0, (1,), (1, 2, 3, 4)) for q in "01"]
    names, records, failures = order.measure([Fails(), Works()], items, 2, lambda: ticks.append(1))
    assert names == ["good"] and failures == {"bad": "its process ended with code -11"}
    assert {r.contender for r in records} == {"good"} and len(records) == 4
    assert len(ticks) == order.runs_in_all(2, 2, 2)


def test_ratios_are_taken_within_a_question_and_repeat() -> None:
    """The machine halves its speed between repeats: a ratio of means would say 1.5, each pair says 2."""
    base = {"a": [10.0, 5.0], "b": [100.0, 50.0]}
    other = {"a": [20.0, 10.0], "b": [200.0, 100.0]}
    assert per_question(base, other) == {"a": 2.0, "b": 2.0}
    found = paired(base, other)
    assert found is not None
    assert found.ratio == pytest.approx(2.0) and found.low == pytest.approx(2.0) and found.high == pytest.approx(2.0)
    assert not found.resolved  # two questions


def test_the_overall_ratio_is_the_geometric_mean() -> None:
    base = {str(i): [1.0] for i in range(8)}
    other = {str(i): [4.0 if i % 2 else 0.25] for i in range(8)}
    found = paired(base, other)
    assert found is not None and found.ratio == pytest.approx(1.0)
    assert found.low < 1 < found.high and not found.resolved


def test_the_interval_has_the_width_that_theory_gives() -> None:
    rng = np.random.default_rng(1)
    logs = rng.normal(0.3, 0.1, size=400)
    base = {str(i): [1.0] for i in range(400)}
    found = paired(base, {str(i): [float(np.exp(x))] for i, x in enumerate(logs)})
    assert found is not None and found.resolved
    half = 1.96 * logs.std() / math.sqrt(400)
    assert math.log(found.high) - math.log(found.ratio) == pytest.approx(half, rel=0.08)
    assert math.log(found.ratio) - math.log(found.low) == pytest.approx(half, rel=0.08)


def test_the_interval_is_the_same_each_time_and_covers_as_promised() -> None:
    base = {str(i): [1.0] for i in range(12)}
    covered = 0
    for trial in range(100):
        rng = np.random.default_rng(trial)
        other = {q: [float(np.exp(rng.normal(0.2, 0.3)))] for q in base}
        found = paired(base, other)
        assert found is not None and found == paired(base, other)
        covered += found.low <= math.exp(0.2) <= found.high
    assert covered >= 82  # the percentile method is a little narrow at 12 questions


@pytest.mark.parametrize(("questions", "verdict"), [(LEAST - 1, False), (LEAST, True)])
def test_few_questions_resolve_nothing(questions: int, verdict: bool) -> None:
    assert Ratio(1.5, 1.4, 1.6, questions).resolved is verdict
    assert not Ratio(1.0, 0.9, 1.1, questions).resolved
    assert Ratio(0.5, 0.4, 0.6, questions).resolved is verdict


def test_questions_that_only_one_side_has_do_not_count() -> None:
    assert paired({"a": [1.0]}, {"b": [1.0]}) is None
    found = paired({"a": [1.0], "c": [0.0]}, {"a": [3.0], "b": [9.0], "c": [1.0]})
    assert found is not None and found.ratio == pytest.approx(3.0) and found.questions == 1


def test_speeds_by_hand() -> None:
    run = steady(11, 0.1)  # 1 token at 1 s, 10 more in 1 s
    assert figures.decode_speed([run]) == pytest.approx(10.0)
    assert figures.whole_speed([run]) == pytest.approx(5.5)
    assert figures.decode_speed([run, steady(6, 0.2)]) == pytest.approx(15 / 2)
    assert figures.decode_speed([Run((1,), ((1.0, 1),), 0)]) == 0.0


def test_a_question_of_which_nothing_was_decoded_has_no_speed() -> None:
    alone = record("2", run=Run((1,), ((1.0, 1),), 0))
    assert figures.speeds([record("1"), alone], figures.decode_speed) == {"1": [pytest.approx(10.0)]}
    assert set(figures.speeds([record("1"), alone], figures.whole_speed)) == {"1", "2"}


def test_figures_by_hand() -> None:
    inside = Inside(draft_s=0.1, verify_s=0.7, overhead_s=0.2, accepted=(3, 1), drafted=(4, 2))
    run = steady(9, 0.4, at_once=4)  # 1 + 4 + 4
    runs = [Run(run.tokens, run.arrivals, 2, inside)]
    got = figures.figures([record("1", repeat, r) for repeat, r in enumerate(runs * 2)])
    assert got["questions"] == 1 and got["tokens"] == 9
    assert got["decode_tokens_per_s"] == pytest.approx({"median": 10.0, "low": 10.0, "high": 10.0})
    assert got["first_token_ms"]["median"] == pytest.approx(1000.0)
    assert got["inter_token_p50_ms"] == pytest.approx(100.0)
    assert got["pause_p95_ms"] == pytest.approx(400.0)
    assert got["acceptance_length"] == pytest.approx(4.0)
    assert got["accepted_by_depth"] == [0.75, 0.5]
    assert got["time_in"] == pytest.approx({"draft": 0.1, "verify": 0.7, "overhead": 0.2})


def test_what_a_peer_does_not_tell_is_not_known() -> None:
    run = steady(5, 0.1)
    got = figures.figures([record(run=Run(run.tokens, run.arrivals, None))])
    assert got["acceptance_length"] is None and got["accepted_by_depth"] is None and got["time_in"] is None
    empty = figures.figures([record(run=Run((1,), ((1.0, 1),), 0))])
    assert empty["decode_tokens_per_s"] is None and empty["inter_token_p50_ms"] is None
    assert empty["acceptance_length"] is None


def test_plain_decoding_has_acceptance_length_one() -> None:
    assert figures.acceptance_length([steady(20, 0.1), steady(7, 0.1)]) == pytest.approx(1.0)


def test_a_chat_counts_as_one_question() -> None:
    turns = [record("1", 0, steady(11, 0.1), turn=0), record("1", 0, steady(11, 0.3), turn=1)]
    assert figures.speeds(turns, figures.decode_speed) == {"1": [pytest.approx(20 / 4)]}
    assert figures.figures(turns)["questions"] == 1
