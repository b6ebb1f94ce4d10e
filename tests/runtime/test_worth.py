"""Which rows of a merged draft are run, and when a member that takes time is not asked at all."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spec_edge.runtime.costs import CostCurve
from spec_edge.runtime.draft import EMPTY, UNREAD, Context, Draft, Output, Verdict
from spec_edge.runtime.drafters import lookahead
from spec_edge.runtime.drafters.options import DrafterOptions
from spec_edge.runtime.hybrid import compose
from spec_edge.runtime.sampling import generator
from spec_edge.runtime.survivor import Survivor
from spec_edge.runtime.trie import Scores
from spec_edge.runtime.worth import promise, worth

TILES = CostCurve((1, 2, 3, 4, 5, 6, 8), (1.0, 1.1, 1.2, 1.3, 1.9, 2.0, 2.4))
HERE = Context((1, 2, 3), generator(0))


class Says:
    """Proposes the same chain with the same scores, and counts how often it was asked."""

    wants: frozenset[str] = frozenset()

    def __init__(self, name: str, tokens: list[int], scores: list[float], seconds: float | None = None) -> None:
        self.name, self._draft, self._scores, self.seconds = name, Draft.chain(tokens), scores, seconds
        self.asked = 0

    def start(self, prompt: object, read: Output = UNREAD) -> None: ...

    def propose_scored(self, context: Context, width: int) -> tuple[Draft, Scores]:  # noqa: ARG002
        self.asked += 1
        return self._draft, self._scores

    def propose(self, context: Context, width: int) -> Draft:
        return self.propose_scored(context, width)[0]

    def observe(self, verdict: Verdict, draft: Draft, output: Output) -> None: ...

    def promises(self, cost: CostCurve, most: int) -> float:
        return promise(cost, self.seconds or 0.0, self._scores[0] if self._scores else 0.0, most)

    def spent(self, draft: Draft) -> float:
        return len(draft) * (self.seconds or 0.0)


@given(st.lists(st.floats(0, 1), max_size=12), st.floats(0, 3))
def test_no_other_number_of_rows_is_faster(chances: list[float], spent: float) -> None:
    chances = sorted(chances, reverse=True)
    expected = list(accumulate(chances, initial=1.0))
    gains = [e * TILES.at(1) / (TILES.at(1 + rows) + spent) for rows, e in enumerate(expected)]
    rows, gain = worth(chances, TILES, spent)
    assert gain == max(gains) == gains[rows] and gains.index(gain) == rows


@given(st.floats(0, 1), st.floats(0, 2))
def test_a_promise_is_the_best_chain(rate: float, step: float) -> None:
    chains = [[rate**d for d in range(1, n + 1)] for n in range(1, 8)]
    best = max((1 + sum(c)) / (TILES.at(1 + len(c)) + len(c) * step) for c in chains)
    assert abs(promise(TILES, step, rate, 7) - max(1.0, best)) < 1e-9


def test_rows_that_are_not_worth_it_are_left_out() -> None:
    likely = Says("model", [5, 6, 7], [0.9, 0.85, 0.8], 0.1)
    for unlikely, rows in ((Says("text", [8, 9], [0.1, 0.05]), 3), (Says("text", [5, 6, 9], [0.5, 0.3, 0.1]), 3)):
        found = compose([unlikely, likely], "merge", TILES).propose(HERE, 8)
        assert len(found) == rows and found.tokens == (5, 6, 7)
    both = compose([Says("text", [8, 9], [0.1, 0.05]), likely], "merge")
    assert len(both.propose(HERE, 8)) == 5  # without a curve nothing is left out


def test_who_takes_time_is_not_asked_where_the_text_is_sure() -> None:
    model = Says("model", [5, 6, 7], [0.9, 0.85, 0.8], 0.4)
    sure, unsure = Says("text", [8, 9, 10], [0.97, 0.95, 0.93]), Says("text", [8], [0.3])
    found = compose([model, sure], "merge", TILES).propose(HERE, 8)
    assert found.tokens == (8, 9, 10) and found.sources == ("text",) and model.asked == 0
    assert compose([model, unsure], "merge", TILES).propose(HERE, 8).tokens[0] == 5 and model.asked == 1


def test_a_network_that_may_fail_is_weighed_like_any_other() -> None:
    """What keeps a text going without a drafter must not hide what that drafter costs."""
    model = Says("model", [5, 6, 7], [0.9, 0.85, 0.8], 0.4)
    guarded, sure = Survivor(model, model.propose_scored, print), Says("text", [8, 9, 10], [0.97, 0.95, 0.93])
    assert compose([guarded, sure], "merge", TILES).propose(HERE, 8).sources == ("text",) and model.asked == 0
    dear = Says("model", [5], [0.9], 30.0)
    for one in (dear, Survivor(dear, dear.propose_scored, print)):
        assert compose([one, Says("text", [8], [0.3])], "merge", TILES).propose(HERE, 8).tokens == (8,)
    assert dear.asked == 0
    assert guarded.spent(Draft.chain([1, 2])) == 0.8 and guarded.promises(TILES, 3) == model.promises(TILES, 3)


@pytest.mark.parametrize(("took", "asked"), [(0.0, 0), (2.0, 1)])
def test_what_a_draft_has_cost_counts_against_it(took: float, asked: int) -> None:
    """Whoever is asked next has to promise more than it gives, and it gives little where it took long."""

    class Took(Says):
        def spent(self, draft: Draft) -> float:  # noqa: ARG002
            return took

    head, last = Took("head", [7], [0.95], 0.2), Says("last", [5], [0.9], 0.3)
    compose([head, last], "merge", TILES).propose(HERE, 8)
    assert (head.asked, last.asked) == (1, asked)


def test_free_members_are_merged_as_before() -> None:
    """Nobody takes time: their rows are the policy's business."""
    a, b = Says("a", [5, 6], [0.2, 0.1]), Says("b", [8], [0.01])
    both = compose([a, b], "merge", TILES)
    assert both.seconds is None and len(both.propose(HERE, 8)) == 3
    assert compose([Says("a", [], []), Says("m", [], [], 0.4)], "merge", TILES).propose(HERE, 8).tokens == EMPTY.tokens


def test_a_window_keeps_the_width_that_a_policy_gives() -> None:
    """Lookahead's shape is fixed by the first width that it is offered: all the room would be far too much."""
    model = Says("m", [8], [0.9], 0.4)
    both = compose([lookahead.create(DrafterOptions()), model], "merge", TILES)
    assert both.seconds is None
    both.enable("lookahead", False)
    assert both.seconds == 0.4


def test_a_cascade_weighs_nothing() -> None:
    """Its drafts are not cut by their cost, so a policy has to bound them."""
    assert compose([Says("a", [5], [0.2]), Says("m", [8], [0.9], 0.4)], "cascade", TILES).seconds is None


def test_a_member_that_is_off_takes_no_time() -> None:
    both = compose([Says("a", [5], [0.2]), Says("m", [8], [0.9], 0.4)], "merge", TILES)
    assert both.seconds == 0.4
    both.enable("m", False)
    assert both.seconds is None and both.propose(HERE, 8).tokens == (5,)
