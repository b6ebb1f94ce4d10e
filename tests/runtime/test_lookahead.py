"""Lookahead's window against a reference written from the paper's description, its pool, and its acceptance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_edge.models.contract import BadUsage
from spec_edge.runtime.draft import EMPTY, UNREAD, Context, Draft, Output, Verdict
from spec_edge.runtime.drafters import lookahead
from spec_edge.runtime.drafters.lookahead import Shape, check_width, fit, locate, window
from spec_edge.runtime.drafters.options import DrafterOptions
from spec_edge.runtime.engine import Engine, Limits
from spec_edge.runtime.ngram_pool import NgramPool
from spec_edge.runtime.pool import Pool
from spec_edge.runtime.prune import prune
from spec_edge.runtime.sampling import Sampling
from spec_edge.runtime.sessions.toy import DIM, LAYERS, ToySession

RNG = np.random.default_rng(0)


class Reference:
    """Lookahead on the toy network by (level, column) arithmetic: no Draft, no parents.

    Every cell's position and visible cells are written down from their coordinates; text is kept as ids and the whole
    context is computed again each time.
    """

    def __init__(self, toy: ToySession, prompt: Sequence[int], columns: int, n: int) -> None:
        self.toy, self.columns, self.n = toy, columns, n
        picks = np.random.default_rng(lookahead.SEED).integers(0, len(prompt), columns + n - 3)
        self.levels = [[prompt[i] for i in picks]]
        self.found: list[tuple[int, ...]] = []

    def logits(self, text: Sequence[int], token: int, position: int, seen: list[tuple[int, int]]) -> np.ndarray:
        """Of a token at a position that sees the text and other (token, position) pairs, in numpy."""
        toy = self.toy
        rows = [*enumerate(text), *((p, t) for t, p in seen), (position, token)]
        visible = [list(range(i + 1)) for i in range(len(text))]
        visible += [list(range(len(text) + k + 1)) for k in range(len(seen) + 1)]
        x = np.stack([toy._embed[t] + toy._position[p] for p, t in rows])
        for wq, wk, wv, wo in toy._mix[:LAYERS]:
            keys, values, queries, out = x @ wk, x @ wv, x @ wq, []
            for i, see in enumerate(visible):
                score = np.exp(keys[see] @ queries[i] / DIM**0.5)
                out.append(np.tanh(x[i] + (score / score.sum()) @ values[see] @ wo))
            x = np.stack(out)
        return x[-1] @ toy._head

    def step(self, text: Sequence[int], pending: int) -> None:
        """Compute the last level, note the n-grams, move on by one position."""
        p, block0 = len(text), [pending, *self.levels[0]]
        depth = len(self.levels) - 1
        best = []
        for j in range(len(block0)):
            seen = [(block0[c], p + c) for c in range(j + 1)]
            seen += [(self.levels[level][j], p + level + j) for level in range(1, depth + 1)]
            token, position = seen.pop()
            best.append(int(self.logits(text, token, position, seen).argmax()))
        if depth < self.n - 2:
            self.levels = [level[1:] for level in self.levels] + [best[1:]]
            return
        for j in range(self.columns):
            self.found.append((block0[j], *(level[j] for level in self.levels[1:]), best[j]))
        rolled = [*self.levels[1:], best]
        self.levels = [rolled[0][1:], *rolled[1:]]


@pytest.mark.parametrize(("columns", "n"), [(3, 4), (1, 5), (4, 2), (2, 5), (5, 3), (1, 2)])
def test_window_is_that_of_the_reference(columns: int, n: int) -> None:
    """Token by token over warm-up and several steps, whatever was accepted in between."""
    toy, prompt = ToySession(13, 200, 40, seed=3), [1, 2, 3, 4, 5]
    drafter = lookahead.create(DrafterOptions(lookahead=(columns, n, 3)))
    engine = Engine(toy, drafter)
    engine.generate(prompt)
    reference = Reference(toy, prompt, columns, n)
    for step in range(n + 6):
        text, pending = list(engine.ids[:-1]), engine.ids[-1]
        seen = len(reference.found)
        engine.step()
        reference.step(text, pending)
        assert [list(level) for level in drafter._levels] == reference.levels, f"step {step}"
        assert len(reference.levels[0]) == max(columns - 1, columns + n - 4 - step)
        for ngram in reference.found[seen:][-1:]:
            assert ngram[1:] in drafter._pool.find(ngram[0])
    assert len(reference.found) == 8 * columns
    assert engine.stats.acceptance_length > 1


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 6), st.integers(2, 6), st.integers(0, 5))
def test_mask_and_positions(columns: int, n: int, guesses: int) -> None:
    """Cell (l, j) stands at l + j and sees (0, 0..j) and (1..l, j); guesses see the pending token and themselves."""
    levels = tuple(tuple(range(columns - (level == 0))) for level in range(n - 1))
    chains = [Draft.chain([100 + g] * (n - 1)) for g in range(guesses)]
    draft = lookahead.merge([*chains, window(levels)], (n - 1) * (columns + guesses) + 1)
    first = guesses * (n - 1)
    row = {(0, 0): 0} | {(0, j): first + j for j in range(1, columns)}
    row |= {(level, j): first + level * columns + j for level in range(1, n - 1) for j in range(columns)}
    assert len(draft) + 1 == first + (n - 1) * columns == Shape(columns, n, guesses).rows
    for (level, j), at in row.items():
        assert draft.depths[at] == level + j
        seen = {row[0, c] for c in range(j + 1)} | {row[k, j] for k in range(1, level + 1)}
        assert set(np.flatnonzero(draft.mask[at])) == seen
        assert at == 0 or not draft.candidate[at - 1]
    for i in range(first):
        chain = i // (n - 1) * (n - 1)
        assert set(np.flatnonzero(draft.mask[i + 1])) == {0, *range(chain + 1, i + 2)}
        assert draft.depths[i + 1] == i - chain + 1


@pytest.mark.parametrize("width", range(2, 65))
def test_fit_uses_the_width(width: int) -> None:
    shape = fit(width)
    assert 1 + (shape.n - 1) * shape.columns - 1 < width  # room for a guess
    check_width((shape.columns, shape.n, 1), width)
    if width >= 16:
        assert shape.n >= 4
        assert shape.columns >= 2


def test_override_that_does_not_fit() -> None:
    check_width((5, 4, 1), 18)
    with pytest.raises(BadUsage, match="needs 18 rows, a step here has 16"):
        check_width((5, 4, 1), 16)
    for bad in ((0, 3, 1), (1, 1, 1), (1, 3, 0)):
        with pytest.raises(BadUsage, match="at least 1,2,1"):
            DrafterOptions(lookahead=bad)


@pytest.mark.parametrize("width", [2, 3, 4, 8, 16, 32])
@pytest.mark.parametrize("prompt_pool", [False, True])
def test_greedy_text_is_the_plain_one(width: int, prompt_pool: bool) -> None:
    for seed in range(4):
        texts = []
        for drafter in (None, lookahead.create(DrafterOptions(lookahead_prompt=prompt_pool))):
            engine = Engine(ToySession(12, 70, width, seed, 0.5), drafter or Nothing(), Sampling())
            list(engine.generate([1, 2, 3, 1, 2]))
            texts.append(engine.ids)
        assert texts[0] == texts[1]


class Nothing:
    name = "nothing"
    wants: frozenset[str] = frozenset()

    def start(self, prompt: Sequence[int], read: Output = UNREAD) -> None: ...

    def propose(self, context: Context, width: int) -> Draft:  # noqa: ARG002
        return EMPTY

    def observe(self, verdict: Verdict, draft: Draft, output: Output) -> None: ...


class Periodic:
    """A target that writes 0 1 .. period-1 0 1 .., whatever the tokens before: each row knows its position."""

    capacity, max_width, length = 10**5, 64, 0

    def __init__(self, period: int) -> None:
        self.vocab_size = period

    def prefill(self, ids: Sequence[int]) -> Output:
        self.length += len(ids)
        return self._rows([-1])

    def verify(self, pending: int, draft: Draft) -> Output:  # noqa: ARG002
        return self._rows(draft.depths.tolist())

    def _rows(self, depths: list[int]) -> Output:
        return Output(
            np.eye(self.vocab_size, dtype=np.float32)[[(self.length + d + 1) % self.vocab_size for d in depths]]
        )

    def commit(self, rows: Sequence[int]) -> None:
        self.length += len(rows)

    def truncate(self, length: int) -> None:
        self.length = length

    def close(self) -> None: ...


@pytest.mark.parametrize("width", [4, 8, 16, 32])
def test_a_full_match_keeps_its_bonus_token(width: int) -> None:
    """Prompt and target of one period: every guess of N - 1 tokens is right, and a step gives N."""
    drafter = lookahead.create(DrafterOptions())
    engine = Engine(Periodic(9), drafter, Sampling(), Limits(max_new_tokens=1 + 5 * fit(width).n, width=width))
    list(engine.generate([i % 9 for i in range(20)]))
    assert engine.stats.steps == 5
    assert engine.stats.acceptance_length == fit(width).n


def test_the_window_alone_finds_the_text() -> None:
    """A pool from generation only: no token comes back within 1,000, yet the target's own guesses come true."""
    drafter = lookahead.create(DrafterOptions(lookahead_prompt=False))
    engine = Engine(Periodic(1000), drafter, Sampling(), Limits(max_new_tokens=200, width=16))
    list(engine.generate([5, 700, 30]))
    assert engine.stats.acceptance_length > 1.4


def test_pool_from_generation_only() -> None:
    for seeded, tokens in ((True, (3, 9, 1)), (False, ())):
        drafter = lookahead.create(DrafterOptions(lookahead=(1, 4, 2), lookahead_prompt=seeded))
        drafter.start([1, 2, 3, 9, 1])
        draft = drafter.propose(Context([1, 2, 3, 9, 1, 2], RNG), 16)
        assert tuple(t for t, c in zip(draft.tokens, draft.candidate, strict=True) if c) == tokens


def test_observe_copes_with_any_draft() -> None:
    """Drafts of others, cut ones, empty ones: the window moves only when all its rows were run."""
    toy = ToySession(12, 80, 32, 1)
    drafter = lookahead.create(DrafterOptions(lookahead=(3, 4, 2)))
    drafter.start([1, 2, 3])
    toy.prefill([1, 2, 3])
    draft = drafter.propose(Context([1, 2, 3, 4], RNG), 16)
    before = drafter._levels
    for other in (EMPTY, Draft.chain([5, 6]), prune(draft, 3, 9, 12), prune(draft, 9, 2, 12)):
        drafter.observe(Verdict((), (4,)), other, toy.verify(4, other))
        assert drafter._levels == before
    mixed = lookahead.merge([Draft.chain([7, 8, 9]), draft], 32)
    drafter.observe(Verdict((), (4,)), mixed, toy.verify(4, mixed))
    moved = drafter._levels
    assert len(moved) == 2
    drafter.start([1, 2, 3])
    drafter.propose(Context([1, 2, 3, 4], RNG), 16)
    drafter.observe(Verdict((), (4,)), draft, toy.verify(4, draft))
    assert drafter._levels == moved


def test_rows_are_found_by_path() -> None:
    shown = window(((5, 6), (5, 7, 8)))
    draft = lookahead.merge([Draft.chain([5, 6, 1]), shown], 16)
    rows = locate(shown, draft)
    assert rows is not None
    assert [draft.tokens[r - 1] for r in rows] == list(shown.tokens)
    assert [draft.depths[r] for r in rows] == [shown.depths[i + 1] for i in range(len(shown))]
    assert not any(draft.candidate[r - 1] for r in rows)
    assert locate(shown, prune(draft, 6, 9, 99)) is None


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=40), st.integers(2, 4), st.integers(1, 3))
def test_ngram_pool_against_a_search(text: list[int], n: int, guesses: int) -> None:
    pool = NgramPool(n, guesses)
    pool.add_text(text)
    for token in range(4):
        starts = [i for i in range(len(text) - n + 1) if text[i] == token]
        latest = list(dict.fromkeys(tuple(text[i + 1 : i + n]) for i in reversed(starts)))
        assert pool.find(token) == latest[:guesses]
    assert len(pool) <= 4 * guesses


def test_persistent_pool_on_request(tmp_path: object) -> None:
    pool = Pool(tmp_path / "pool.json", "t")  # type: ignore[operator]
    pool.add([4, 7, 8, 9])
    for wanted, found in ((True, (7, 8, 9)), (False, ())):
        drafter = lookahead.create(DrafterOptions(lookahead=(1, 4, 2), pool=pool, pool_in_lookahead=wanted))
        drafter.start([1])
        draft = drafter.propose(Context([1, 4], RNG), 16)
        assert tuple(t for t, c in zip(draft.tokens, draft.candidate, strict=True) if c) == found
