"""The toy target: its cache matters, and any width or tree computes the same bits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_edge.models.contract import SpecError
from spec_edge.runtime.draft import EMPTY, Draft
from spec_edge.runtime.prune import prune
from spec_edge.runtime.sessions.toy import ToySession


@st.composite
def trees(draw: st.DrawFn) -> Draft:
    n = draw(st.integers(0, 7))
    return Draft(
        tuple(draw(st.integers(0, 15)) for _ in range(n)),
        tuple(draw(st.integers(-1, i - 1)) for i in range(n)),
        (True,) * n,
    )


def path(draft: Draft, row: int) -> list[int]:
    out = []
    while row > 0:
        out.append(row)
        row = draft.parents[row - 1] + 1
    return out[::-1]


@settings(max_examples=60, deadline=None)
@given(trees(), st.integers(0, 20), st.lists(st.integers(0, 15), min_size=1, max_size=6))
def test_each_row_is_its_path_token_by_token(draft: Draft, seed: int, prompt: list[int]) -> None:
    session = ToySession(seed=seed)
    session.prefill(prompt)
    output = session.verify(5, draft)
    for row in range(len(draft) + 1):
        alone = ToySession(seed=seed)
        tokens = [5, *(draft.tokens[r - 1] for r in path(draft, row))]
        want = alone.prefill([*prompt, *tokens])
        assert np.array_equal(output.logits[row], want.logits[-1])
        again = ToySession(seed=seed)
        again.prefill(prompt)
        again.verify(5, draft)
        again.commit([0, *path(draft, row)])
        assert np.array_equal(again.cache, alone.cache)


@pytest.mark.parametrize("rows", [[0], [0, 2], [0, 1, 3], [0, 1, 2, 3]])
def test_a_wrong_commit_changes_what_follows(rows: list[int]) -> None:
    draft = Draft.chain([1, 2, 3])
    right, wrong = ToySession(), ToySession()
    for session, kept in ((right, [0, 1, 2]), (wrong, rows)):
        session.prefill([4, 5])
        session.verify(6, draft)
        session.commit(kept)
    assert not np.array_equal(right.verify(7, EMPTY).logits, wrong.verify(7, EMPTY).logits)


def test_truncate_forgets() -> None:
    session, fresh = ToySession(), ToySession()
    session.prefill([1, 2, 3, 4])
    session.truncate(2)
    fresh.prefill([1, 2])
    assert np.array_equal(session.prefill([9]).logits, fresh.prefill([9]).logits)
    session.close()


def test_grain_makes_ties() -> None:
    logits = ToySession(grain=0.5).prefill([1, 2]).logits
    assert np.array_equal(logits, np.round(logits * 2) / 2)
    assert len(np.unique(logits)) < 16


def test_misuse_is_refused() -> None:
    session = ToySession(capacity=4, max_width=3)
    for call in (
        lambda: session.prefill([]),
        lambda: session.prefill([1] * 5),
        lambda: session.prefill([16]),
        lambda: session.verify(0, Draft.chain([1, 2, 3])),
        lambda: session.commit([0]),
        lambda: session.truncate(1),
    ):
        with pytest.raises(SpecError, match="toy"):
            call()
    session.verify(0, EMPTY)
    for rows in ([], [1], [0, 1]):
        with pytest.raises(SpecError, match="rows"):
            session.commit(rows)


@settings(max_examples=150, deadline=None)
@given(trees(), st.integers(0, 8), st.integers(0, 8), st.integers(1, 18))
def test_prune_keeps_a_tree_of_what_fits(draft: Draft, nodes: int, depth: int, tokens: int) -> None:
    cut = prune(draft, nodes, depth, tokens)
    assert len(cut) <= nodes
    assert cut.depths.max() <= depth
    assert all(t < tokens for t in cut.tokens)
    paths = {tuple(draft.tokens[r - 1] for r in path(draft, row)) for row in range(len(draft) + 1)}
    assert all(tuple(cut.tokens[r - 1] for r in path(cut, row)) in paths for row in range(len(cut) + 1))
    if len(draft) <= nodes and draft.depths.max() <= depth and max(draft.tokens, default=0) < tokens:
        assert cut == draft


def test_prune_keeps_q_beside_its_tokens() -> None:
    q = np.arange(12.0).reshape(3, 4)
    cut = prune(Draft.chain([1, 2, 3], q), 7, 2, 4)
    assert cut.tokens == (1, 2)
    assert cut.q is not None
    assert np.array_equal(cut.q, q[:2])
