"""Suffix decoding: what the tree holds, in which order, and how much work it is."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_edge.runtime.draft import Context, Draft
from spec_edge.runtime.drafters import suffix
from spec_edge.runtime.drafters.options import DrafterOptions
from spec_edge.runtime.drafters.suffix import FLOOR, Source, estimate
from spec_edge.runtime.pool import Pool
from spec_edge.runtime.suffix_automaton import SuffixAutomaton

RNG = np.random.default_rng(0)


def propose(ids: list[int], width: int, options: DrafterOptions | None = None) -> Draft:
    drafter = suffix.create(options or DrafterOptions())
    drafter.start(ids[:1])
    return drafter.propose(Context(ids, RNG), width)


def paths(draft: Draft) -> list[tuple[int, ...]]:
    out: list[tuple[int, ...]] = []
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        out.append((*(out[parent] if parent >= 0 else ()), token))
    return out


def test_a_tree_where_continuations_differ() -> None:
    """After 5 6 came 1 twice and 2 once: both branches, the frequent one first."""
    draft = propose([10, 5, 6, 1, 9, 11, 5, 6, 1, 9, 12, 5, 6, 2, 8, 13, 5, 6], 16)
    assert draft.tokens[0] == 1
    assert {(1,), (1, 9), (2,), (2, 8)} <= set(paths(draft))
    assert paths(draft).index((1,)) < paths(draft).index((2,))
    assert all(draft.candidate)
    assert draft.q is None


@pytest.mark.parametrize("width", [2, 4, 16])
@pytest.mark.parametrize("period", [1, 2, 9])
def test_periodic_text_is_continued(width: int, period: int) -> None:
    """The most probable path is the period itself, and goes on past the end of the text."""
    ids = [i % period for i in range(10 * period + 20)]
    draft = propose(ids, width)
    longest = max(paths(draft), key=len)
    assert longest == tuple((len(ids) + i) % period for i in range(len(longest)))
    assert len(longest) == len(draft) == width - 1


def test_a_known_pool_is_accepted_whole(tmp_path: object) -> None:
    """The answer itself in the pool: from its second token on every draft is a right chain."""
    text = np.random.default_rng(1).permutation(500).tolist()
    pool = Pool(tmp_path / "pool.json", "t")  # type: ignore[operator]
    pool.add(text)
    drafter = suffix.create(DrafterOptions(pool=pool))
    drafter.start([900, 901])
    ids = [900, 901, *text[:2]]
    for _ in range(20):
        draft = drafter.propose(Context(ids, RNG), 6)
        new = text[len(ids) - 2 : len(ids) + 3]
        # One occurrence in a context of one or two tokens is no certainty; longer ones fill the width.
        assert list(draft.tokens) == new[: len(draft)]
        assert len(draft) == (5 if len(ids) > 8 else len(draft)) > 1
        ids += new


def test_the_longer_context_wins_and_the_text_before_the_pool(tmp_path: object) -> None:
    pool = Pool(tmp_path / "pool.json", "t")  # type: ignore[operator]
    pool.add([3, 4, 7, 1])
    assert propose([4, 8, 2, 3, 4], 2, DrafterOptions(pool=pool)).tokens == (7,)
    assert propose([3, 4, 8, 2, 3, 4], 2, DrafterOptions(pool=pool)).tokens == (8,)
    assert set(propose([3, 4, 8, 2, 3, 4], 4, DrafterOptions(pool=pool)).tokens) >= {8, 7}


def test_nothing_known_nothing_drafted() -> None:
    assert len(propose([1, 2, 3, 4], 16)) == 0
    assert len(propose([1, 2, 1], 1)) == 0
    assert len(propose([1, 2, 1], 16, DrafterOptions(draft_tokens=1))) == 1


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 4), max_size=60), st.integers(1, 20))
def test_probabilities_and_order(ids: list[int], width: int) -> None:
    """Estimates are a law with something left over; rows come by falling score, none below the floor, no twins."""
    drafter = suffix.create(DrafterOptions())
    drafter.start(ids)
    draft, scores = drafter.propose_scored(Context(ids, RNG), width)
    assert len(draft) <= max(width - 1, 0)
    assert all(a >= b for a, b in itertools.pairwise(scores))
    assert all(FLOOR <= s < 1 for s in scores)
    assert len(set(paths(draft))) == len(draft)
    for i, parent in enumerate(draft.parents):
        assert parent < 0 or scores[i] <= scores[parent]
    law = estimate(drafter._sources, [s.place() for s in drafter._sources])
    assert sum(law.values()) < 1
    assert all(p > 0 for p in law.values())


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=2, max_size=50), st.integers(1, 49))
def test_the_pieces_the_text_arrives_in_do_not_matter(ids: list[int], cut: int) -> None:
    one, two = suffix.create(DrafterOptions()), suffix.create(DrafterOptions())
    one.start(ids[:cut])
    two.start([9, 9, 9])
    two.start(ids)
    assert one.propose(Context(ids, RNG), 12) == two.propose(Context(ids, RNG), 12)


def test_work_of_a_proposal_does_not_grow_with_the_text() -> None:
    """Operations, not seconds: estimates asked and automaton steps at 1,000 and at 32,000 tokens."""
    text = np.random.default_rng(0).zipf(1.3, 32_000) % 1000
    most = []
    for length in (1_000, 32_000):
        automaton = Counting()
        for token in text[:length].tolist():
            automaton.add(token)
        automaton.work = automaton.looked = 0
        draft, _ = suffix.grow([Source(automaton, follow=False)], 15, floor=1e-6)
        assert len(draft) == 15
        most.append((automaton.work, automaton.looked))
    assert all(work < 15 * 20 for work, _ in most)
    assert all(looked <= 15 * suffix.ORDERS for _, looked in most)


class Counting(SuffixAutomaton):
    """Counts how often followers are looked at."""

    looked = 0

    def followers(self, state: int) -> list[tuple[int, int]]:
        self.looked += 1
        return super().followers(state)
