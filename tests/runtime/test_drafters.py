# ruff: noqa: ARG002 (stand-ins for protocols take what those take)
"""Prompt lookup's acceptance on known texts, and auto's decision to draft or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_edge.models.contract import BadUsage
from spec_edge.models.plugins import find, known
from spec_edge.runtime.costs import CostCurve
from spec_edge.runtime.draft import EMPTY, UNREAD, Context, Draft, Output, Verdict
from spec_edge.runtime.drafters import auto, plain, prompt_lookup
from spec_edge.runtime.drafters.options import DrafterOptions
from spec_edge.runtime.drafters.prompt_lookup import NgramIndex, continuation
from spec_edge.runtime.engine import Engine, Limits
from spec_edge.runtime.protocols import Drafter
from spec_edge.runtime.sampling import Sampling
from spec_edge.runtime.sessions.toy import ToySession
from spec_edge.runtime.stats import Stats

PACKAGE = "spec_edge.runtime.drafters"
FLAT = CostCurve((1, 16), (1.0, 1.2))
STEEP = CostCurve((1, 16), (1.0, 16.0))
RNG = np.random.default_rng(0)


class Replay:
    """A target that writes a given text."""

    capacity, max_width, length = 10**5, 16, 0

    def __init__(self, text: Sequence[int]) -> None:
        self.text = list(text)
        self.vocab_size = max(text) + 1

    def _rows(self, places: Sequence[int]) -> Output:
        logits = np.zeros((len(places), self.vocab_size), np.float32)
        logits[range(len(places)), [self.text[place % len(self.text)] for place in places]] = 1
        return Output(logits)

    def prefill(self, ids: Sequence[int]) -> Output:
        self.length += len(ids)
        return self._rows([self.length])

    def verify(self, pending: int, draft: Draft) -> Output:
        return self._rows((self.length + 1 + draft.depths).tolist())

    def commit(self, rows: Sequence[int]) -> None:
        self.length += len(rows)

    def truncate(self, length: int) -> None:
        self.length = length

    def close(self) -> None: ...


def replay(text: Sequence[int], prompt: int, drafter: Drafter, new: int) -> Stats:
    engine = Engine(Replay(text), drafter, Sampling(), Limits(max_new_tokens=new))
    list(engine.generate(text[:prompt]))
    assert engine.ids == list(text[: prompt + new])
    return engine.stats


def pseudo_text(length: int, seed: int = 0, repeat: float = 0.3) -> list[int]:
    """Tokens of 200 kinds in which earlier stretches come back, about as often as in edited code."""
    rng = np.random.default_rng(seed)
    text = rng.integers(0, 200, 40).tolist()
    while len(text) < length:
        if rng.random() < repeat:
            start = int(rng.integers(0, len(text) - 12))
            text += text[start : start + int(rng.integers(3, 12))]
        else:
            text += rng.integers(0, 200, int(rng.integers(1, 6))).tolist()
    return text[:length]


def test_methods_are_found_by_file_name() -> None:
    assert {"plain", "prompt-lookup", "auto"} <= set(known(PACKAGE, "create"))
    assert "options" not in known(PACKAGE, "create")
    for name in ("plain", "prompt-lookup", "auto"):
        drafter: Drafter = find(PACKAGE, "create", name, "method").create(DrafterOptions())
        assert drafter.name == name
        assert drafter.wants == frozenset()
    with pytest.raises(BadUsage, match="prompt-lookup"):
        find(PACKAGE, "create", "prompt-lookp", "method")


@pytest.mark.parametrize(("k", "period"), [(None, 9), (3, 9), (5, 2), (7, 1), (15, 4)])
def test_periodic_text_accepts_everything(k: int | None, period: int) -> None:
    text = [i % period for i in range(400)]
    k_real = k or prompt_lookup.DRAFT_TOKENS
    stats = replay(text, 2 * period + 8, prompt_lookup.create(DrafterOptions(k)), 1 + 8 * (k_real + 1))
    assert stats.acceptance_length == k_real + 1
    assert stats.accepted_by_position == (8,) * k_real


def test_known_acceptance_on_a_pseudo_text() -> None:
    stats = replay(pseudo_text(1200), 200, prompt_lookup.create(DrafterOptions(min_ngram=2)), 1000)
    assert (stats.steps, stats.drafted, stats.accepted) == (717, 787, 282)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(1, 4), st.integers(0, 3), st.integers(1, 30))
def test_index_finds_the_latest_longest_match(ids: list[int], shortest: int, more: int, split: int) -> None:
    """Against a search by hand, whatever the text arrives in."""
    index = NgramIndex(shortest, shortest + more)
    index.update(ids[:split])
    index.update(ids)
    for n in range(shortest + more, shortest - 1, -1):
        starts = [s for s in range(len(ids) - n) if ids[s : s + n] == ids[len(ids) - n :]]
        if starts:
            assert index.find(ids) == (n, starts[-1] + n)
            return
    assert index.find(ids) == (0, 0)


def test_continuation_reads_its_own_output() -> None:
    assert continuation([5, 6, 7, 8], 1, 2) == [6, 7]
    assert continuation([5, 6, 7, 8], 2, 7) == [7, 8, 7, 8, 7, 8, 7]


def test_shortest_match_by_default() -> None:
    ids = [1, 2, 3, 9, 2]
    for options, tokens in (
        (DrafterOptions(), (3, 9)),
        (DrafterOptions(min_ngram=2), ()),
        (DrafterOptions(max_ngram=1), (3, 9)),
    ):
        drafter = prompt_lookup.create(options)
        drafter.start(ids)
        assert drafter.propose(Context(ids, RNG), 3).tokens == tokens


def test_prompt_lookup_keeps_to_the_width_and_starts_afresh() -> None:
    drafter = prompt_lookup.create(DrafterOptions())
    drafter.start([1, 2, 3, 1, 2])
    assert drafter.propose(Context([1, 2, 3, 1, 2], RNG), 3).tokens == (3, 1)
    assert drafter.propose(Context([1, 2, 3, 1, 2], RNG), 1).tokens == ()
    drafter.start([7, 8])
    assert drafter.propose(Context([7, 8, 1, 2], RNG), 8).tokens == ()


@pytest.mark.parametrize("method", [plain, prompt_lookup, auto])
def test_every_method_gives_the_plain_text(method: object) -> None:
    want = None
    for seed in range(5):
        for module in (plain, method):
            engine = Engine(ToySession(12, 90, 8, seed, 0.5), module.create(DrafterOptions(cost=FLAT)))
            list(engine.generate([1, 2, 3, 1, 2]))
            want = engine.ids if module is plain else want
            assert engine.ids == want


def test_auto_goes_plain_when_drafts_fail() -> None:
    """Bad guesses and a steep curve: nearly every step is plain, and none costs more than plain."""
    rng = np.random.default_rng(1)
    text = rng.integers(0, 6, 1200).tolist()
    stats = replay(text, 200, auto.create(DrafterOptions(cost=STEEP)), 1000)
    assert stats.drafted <= 0.05 * stats.steps
    lookup = replay(text, 200, prompt_lookup.create(DrafterOptions()), 1000)
    assert lookup.drafted > 6 * lookup.steps


def test_auto_drafts_when_it_pays() -> None:
    text = [i % 9 for i in range(2000)]
    stats = replay(text, 30, auto.create(DrafterOptions(cost=FLAT)), 1000)
    assert stats.acceptance_length > 12
    free = replay(pseudo_text(1200), 200, auto.create(DrafterOptions(cost=FLAT)), 1000)
    assert free.acceptance_length > 1.4


@pytest.mark.parametrize("slope", [0.02, 0.1, 0.25, 0.6, 1.0])
@pytest.mark.parametrize("repeat", [0.0, 0.3, 0.9])
def test_auto_is_never_far_from_the_better_choice(slope: float, repeat: float) -> None:
    """On a linear curve, against plain and against prompt lookup at its fixed length."""
    curve = CostCurve((1, 17), (1.0, 1.0 + 16 * slope))
    text = pseudo_text(2400, 5, repeat)
    costs = []
    for method in (plain, prompt_lookup, auto):
        stats = replay(text, 400, method.create(DrafterOptions(cost=curve)), 2000)
        costs.append(stats.steps + slope * stats.drafted)
    assert costs[2] <= 1.02 * costs[0]
    assert costs[2] <= 1.10 * costs[1]


def test_auto_learns_while_plain() -> None:
    """A text that begins random and turns periodic: the shadow notices, drafting begins."""
    rng = np.random.default_rng(2)
    text = rng.integers(0, 8, 600).tolist() + [i % 7 for i in range(800)]
    stats = replay(text, 100, auto.create(DrafterOptions(cost=CostCurve((1, 16), (1.0, 3.0)))), 1200)
    assert stats.steps < 500 + 800 / 5
    assert stats.accepted > 500


def test_auto_is_reproducible() -> None:
    runs = []
    for _ in range(2):
        drafter = auto.create(DrafterOptions(cost=FLAT))
        engine = Engine(ToySession(6, 300, 16, 3), drafter, Sampling(0.5, seed=9), Limits())
        list(engine.generate([1, 2, 3]))
        runs.append((engine.ids, engine.stats.drafted, engine.stats.accepted_by_position))
    assert runs[0] == runs[1]
    list(engine.generate([1, 2, 3]))
    assert (engine.ids, engine.stats.drafted, engine.stats.accepted_by_position) == runs[0]


def test_best_depth_by_hand() -> None:
    curve = CostCurve((1, 2, 4), (1.0, 1.5, 2.5))

    def depth(rates: list[float], levels: tuple[int, ...] = (1, 1, 1), width: int = 4) -> int:
        return auto.best_depth(rates, levels, curve, width, 1.03)[0]

    assert depth([0.9, 0.9, 0.9]) == 3
    assert depth([0.9, 0.0, 0.0]) == 1
    assert depth([0.5, 0.9, 0.9]) == 0
    assert depth([0.54, 0.0, 0.0]) == 0  # promises 2.7 per cent: within the margin
    assert depth([0.9, 0.9, 0.9], width=3) == 2
    assert depth([0.9, 0.6], (2, 1), 8) == 0  # 1.9 tokens at a cost of 2, 2.44 at 2.5
    assert depth([1.0, 1.0, 1.0], (2, 1), 8) == 2
    assert depth([0.9, 0.9], ()) == 0


def test_first_choices_of_a_tree() -> None:
    tree = Draft((4, 5, 6, 7, 8, 9), (-1, -1, 1, 0, 3, 3), (True, True, True, False, True, True), None, ("x",), 2)
    assert auto.first_choices(tree) == Draft((4,), (-1,), (True,), None, ("x",), 2)
    tree = replace(tree, candidate=(True,) * 6, q=np.eye(6, 10))
    spine = auto.first_choices(tree)
    assert (spine.tokens, spine.parents, spine.grade) == ((4, 7, 8), (-1, 0, 1), 2)
    assert spine.q is not None
    assert (spine.q == np.eye(6, 10)[[0, 3, 4]]).all()
    assert auto.first_choices(spine) is spine
    assert auto.first_choices(EMPTY) is EMPTY


class Forking:
    """Knows the text: the right next tokens, with wrong ones beside or before them."""

    name = "forking"
    wants = frozenset({"hidden"})

    def __init__(self, text: Sequence[int], right_first: bool) -> None:
        self._text, self._right_first, self.observed = text, right_first, 0

    def start(self, prompt: Sequence[int], read: Output = UNREAD) -> None: ...

    def propose(self, context: Context, width: int) -> Draft:
        right = self._text[len(context.ids) :][:3]
        tokens, parents, parent = [], [], -1
        for token in right:
            pair = [token, (token + 1) % 200]
            tokens += pair if self._right_first else pair[::-1]
            parents += [parent, parent]
            parent = len(tokens) - (2 if self._right_first else 1)
        return Draft(tuple(tokens), tuple(parents), (True,) * len(tokens))

    def observe(self, verdict: Verdict, draft: Draft, output: Output) -> None:
        self.observed += 1


@pytest.mark.parametrize(("right_first", "rows"), [(True, 4), (False, 7)])
def test_auto_over_a_tree_takes_the_cheaper_view(right_first: bool, rows: int) -> None:
    """Where first choices are right, their chain; where they are wrong, the whole tree; both give four tokens."""
    text = pseudo_text(900, 3, 0.0)
    inner = Forking(text, right_first)
    drafter = auto.Auto(inner, CostCurve((1, 16), (1.0, 2.0)), 15)
    stats = replay(text, 100, drafter, 700)
    assert stats.acceptance_length > 3.9
    assert stats.drafted / stats.steps == pytest.approx(rows - 1, abs=0.15)
    assert stats.steps_by_drafter["forking"] == stats.steps - stats.steps_by_drafter.get("plain", 0)
    assert inner.observed == stats.steps
    assert drafter.wants == inner.wants


def test_auto_over_a_tree_that_does_not_pay_is_plain() -> None:
    text = pseudo_text(900, 3, 0.0)
    stats = replay(text, 100, auto.Auto(Forking(text[::-1], True), STEEP, 15), 700)
    assert stats.drafted <= 0.05 * stats.steps


def test_grades_are_learnt_apart() -> None:
    acceptance = auto.Acceptance(2, auto.Belief())
    for _ in range(50):
        acceptance.learn(((), 4), 0, True)
        acceptance.learn(((), 1), 0, False)
        acceptance.learn((("other",), 1), 0, True)
    assert acceptance.rates(((), 4))[0] > 0.9 < acceptance.rates((("other",), 1))[0]
    assert acceptance.rates(((), 1))[0] < 0.1
    assert acceptance.rates(((), 9)) == [auto.Belief().first[1]] * 2
    assert auto.Belief(first=(0.2, 0.6)).of(2) == pytest.approx(0.4)


def test_draft_tokens_caps_auto() -> None:
    text = [i % 9 for i in range(500)]
    assert replay(text, 30, auto.create(DrafterOptions(2, cost=FLAT)), 301).acceptance_length <= 3


@pytest.mark.parametrize("bad", [{"draft_tokens": 0}, {"max_ngram": 0}, {"min_ngram": 5}])
def test_bad_options(bad: dict[str, int]) -> None:
    with pytest.raises(BadUsage):
        DrafterOptions(**bad)
