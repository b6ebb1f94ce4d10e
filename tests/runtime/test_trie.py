"""Merging drafts: nothing invented, nothing lost that fits, best rows first."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_edge.models.contract import SpecError
from spec_edge.runtime.draft import EMPTY, Draft
from spec_edge.runtime.trie import merge, merge_scored


def paths(draft: Draft, candidate: bool = True) -> set[tuple[int, ...]]:
    """Tokens from the root down to each row of that kind."""
    out: list[tuple[int, ...]] = []
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        out.append((*(out[parent] if parent >= 0 else ()), token))
    return {p for p, c in zip(out, draft.candidate, strict=True) if c == candidate}


@st.composite
def trees(draw: st.DrawFn, most: int = 10) -> Draft:
    n = draw(st.integers(0, most))
    parents = [draw(st.integers(-1, i - 1)) for i in range(n)]
    return Draft(tuple(draw(st.integers(0, 2)) for _ in range(n)), tuple(parents), (True,) * n)


@st.composite
def windows(draw: st.DrawFn) -> Draft:
    tree = draw(trees(6))
    return Draft(tree.tokens, tree.parents, (False,) * len(tree))


@settings(max_examples=200, deadline=None)
@given(st.lists(trees(), max_size=4), st.integers(0, 12))
def test_merged_paths_are_paths_of_some_draft(drafts: list[Draft], width: int) -> None:
    found = merge(drafts, width)
    known = set().union(*(paths(d) for d in drafts))
    assert paths(found) <= known
    assert len(paths(found)) == len(found) == min(len(known), max(width - 1, 0))
    assert found == merge(drafts, width)


def chances(drafts: list[Draft], scores: list[list[float]]) -> dict[tuple[int, ...], float]:
    """Of each path: that not all drafts that hold it are wrong, and no more than the path above it."""
    wrong: dict[tuple[int, ...], float] = {}
    for draft, own in zip(drafts, scores, strict=True):
        at: list[tuple[int, ...]] = []
        said: dict[tuple[int, ...], float] = {}
        for i, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
            at.append((*(at[parent] if parent >= 0 else ()), token))
            said[at[-1]] = max(said.get(at[-1], 0.0), own[i])
        for path, chance in said.items():
            wrong[path] = wrong.get(path, 1.0) * (1 - chance)
    found: dict[tuple[int, ...], float] = {(): 2.0}
    for path in sorted(wrong, key=len):
        found[path] = min(1 - wrong[path], found[path[:-1]])
    return found


@settings(max_examples=200, deadline=None)
@given(st.lists(trees(), min_size=1, max_size=3), st.integers(1, 12), st.randoms())
def test_best_rows_first(drafts: list[Draft], width: int, random: object) -> None:
    """No row that was left out has a better score and its parent in the tree."""
    scores = [[random.random() for _ in d.tokens] for d in drafts]  # type: ignore[attr-defined]
    found = merge(drafts, width, scores)
    best = chances(drafts, scores)
    inside = paths(found)
    worst = min((best[p] for p in inside), default=2.0)
    if len(found) == width - 1:
        assert all(best[p] <= worst + 1e-9 for p in set(best) - inside - {()} if p[:-1] in inside | {()})
    else:
        assert inside == set(best) - {()}


@settings(max_examples=200, deadline=None)
@given(st.lists(trees(), max_size=3), windows(), st.integers(0, 3), st.integers(1, 16))
def test_a_window_stays_apart(drafts: list[Draft], window: Draft, at: int, width: int) -> None:
    found = merge([*drafts[:at], window, *drafts[at:]], width)
    own = sum(not c for c in found.candidate)
    assert own == min(len(window), width - 1)
    assert paths(found) <= set().union(*(paths(d) for d in drafts))
    tail = Draft(found.tokens[-own:], tuple(-1 for _ in range(own)), (False,) * own) if own else EMPTY
    assert tail.tokens == window.tokens[:own]
    shift = len(found) - own
    kept = [p if p < 0 else p - shift for p in found.parents[shift:]]
    assert kept == list(window.parents[:own])
    assert all(found.candidate[: len(found) - own])


def test_priority_and_q() -> None:
    q = np.full((2, 4), 0.25)
    found = merge([Draft.chain([1, 2], q), Draft.chain([1, 3]), Draft.chain([0])], 4)
    assert (found.tokens, found.parents, found.q) == ((1, 2, 3), (-1, 0, 0), None)
    found = merge([Draft.chain([1, 2]), Draft.chain([1, 3])], 3, [[0.5, 0.1], [0.4, 0.4]])
    assert (found.tokens, found.parents) == ((1, 3), (-1, 0))


def test_drafts_that_agree_are_surer() -> None:
    found, chance = merge_scored(
        [Draft.chain([1, 2]), Draft.chain([1]), Draft.chain([3])], 9, [[0.4, 0.3], [0.5], [0.6]]
    )
    assert found.tokens == (1, 3, 2) and chance == [0.4 + 0.6 * 0.5, 0.6, 0.3]
    assert merge_scored([Draft.chain([1, 2])], 9, [[0.1, 0.7]])[1] == [0.1, 0.1]


def test_a_window_row_may_follow_a_candidate() -> None:
    mixed = Draft((5, 6, 7, 8), (-1, 0, 1, 0), (True, False, False, True))
    found = merge([Draft.chain([9]), mixed], 9)
    assert (found.tokens, found.parents) == ((9, 5, 8, 6, 7), (-1, -1, 1, 1, 3))
    assert found.candidate == (True, True, True, False, False)
    assert merge([Draft.chain([9, 9]), mixed], 4).tokens == (9,)  # its candidate found no room


def test_refusals_and_nothing() -> None:
    assert merge([], 8) == merge([EMPTY, EMPTY], 8) == merge([Draft.chain([1])], 1) == merge([Draft.chain([1])], 0)
    window = Draft((1,), (-1,), (False,))
    with pytest.raises(SpecError, match="2 drafts"):
        merge([window, window], 8)
    with pytest.raises(SpecError, match="one score per row"):
        merge([Draft.chain([1, 2])], 8, [[0.5]])
