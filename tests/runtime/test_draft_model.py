"""The draft model: greedy text stays the target's, the cache follows the text, trees are the likeliest ones."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_edge.models.contract import BadUsage, SpecError
from spec_edge.runtime.draft import UNREAD, Context, Draft, Output, Verdict
from spec_edge.runtime.draft_model import DraftModel
from spec_edge.runtime.drafters import draft as drafting
from spec_edge.runtime.drafters import plain, prompt_lookup
from spec_edge.runtime.drafters.options import DrafterOptions
from spec_edge.runtime.engine import Engine, Limits
from spec_edge.runtime.hybrid import compose
from spec_edge.runtime.protocols import Drafter
from spec_edge.runtime.sampling import Sampler, Sampling
from spec_edge.runtime.sessions.toy import ToySession

V, CAPACITY, PROMPT = 10, 60, [1, 2, 3, 1, 2]
RNG = np.random.default_rng(0)
TREES = [None, (), (3, 2, 1), (4,), (1, 1, 2)]


class Counting(ToySession):
    """Notes how many rows each run has."""

    rows: tuple[int, ...] = ()

    def _run(self, tokens: list[int], draft: Draft) -> Output:
        self.rows += (len(tokens),)
        return super()._run(tokens, draft)


def made(session: ToySession, **more: object) -> drafting.DraftDrafter:
    model = DraftModel(session, V)
    return drafting.create(DrafterOptions(draft=model, **{"confidence": 0.0, **more}))  # type: ignore[arg-type]


def text(drafter: Drafter, width: int = 8, seed: int = 0, grain: float = 0.5) -> Engine:
    """Greedy text of the toy target to the end of its context."""
    engine = Engine(ToySession(V, CAPACITY, width, seed, grain), drafter)
    list(engine.generate(PROMPT))
    return engine


@pytest.mark.parametrize("width", [2, 4, 8, 16])
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("k", [None, 1, 6])
def test_greedy_text_is_the_targets(width: int, tree: tuple[int, ...] | None, k: int | None) -> None:
    for seed in range(3):
        want = text(plain.create(DrafterOptions()), width, seed)
        # Rounded logits, so that ties occur, and a draft model that is sometimes right.
        drafter = made(ToySession(V, CAPACITY, 16, seed, 1.5), tree=tree, draft_tokens=k)
        got = text(drafter, width, seed)
        assert got.ids == want.ids
        assert got.stats.drafted > 0 and got.stats.steps < want.stats.steps


@pytest.mark.parametrize("k", [1, 2, 4, 7])
def test_a_model_that_drafts_for_itself_is_always_right(k: int) -> None:
    engine = Engine(
        ToySession(V, CAPACITY, 8), made(ToySession(V, CAPACITY, 8), draft_tokens=k), limits=Limits(1 + 5 * (k + 1))
    )
    list(engine.generate(PROMPT))
    assert engine.stats.acceptance_length == k + 1
    assert engine.stats.accepted_by_position == engine.stats.drafted_by_position == (5,) * k


def test_catching_up_is_one_run() -> None:
    """K drafted tokens cost K runs; after a full acceptance the first of them has two rows, else one."""
    session = Counting(V, CAPACITY, 8)
    engine = Engine(ToySession(V, CAPACITY, 8), made(session, draft_tokens=3), limits=Limits(1 + 4 * 2))
    drafter_rows = len(session.rows)
    list(engine.generate(PROMPT))
    # Prompt, then per step the catch-up and two drafted tokens (the third is not run).
    assert session.rows[drafter_rows + 1 :] == (1, 1, 1, 2, 1, 1)


@pytest.mark.parametrize("limits", [Limits(2), Limits(width=1), Limits()])
def test_the_draft_model_does_not_run_where_there_is_no_room(limits: Limits) -> None:
    """One token left of the limit, a width of one row, one token left of the context."""
    capacity = CAPACITY if limits != Limits() else len(PROMPT) + 2
    session = Counting(V, CAPACITY, 8)
    engine = Engine(ToySession(V, capacity, 8), made(session), limits=limits)
    chunks = engine.generate(PROMPT)
    runs = len(session.rows)
    list(chunks)
    assert len(engine.tokens) > 1 and session.rows[runs:] == ()


class Watched:
    """A drafter that checks the draft model's cache against a fresh prefill of the text after each proposal."""

    wants: frozenset[str] = frozenset()

    def __init__(self, inner: drafting.DraftDrafter, session: ToySession, fresh: ToySession) -> None:
        self.inner, self.session, self.fresh, self.checks = inner, session, fresh, 0
        self.name = inner.name

    def start(self, prompt: Sequence[int], read: Output = UNREAD) -> None:
        self.inner.start(prompt, read)
        self._check(prompt)

    def propose(self, context: Context, width: int) -> Draft:
        draft = self.inner.propose(context, width)
        if width > 1:
            # A tree's runs leave the last token out: it is their row 0.
            self._check(context.ids[: min(len(context.ids), self.session.length)])
            assert self.session.length >= len(context.ids) - 1
        return draft

    def observe(self, verdict: Verdict, draft: Draft, output: Output) -> None:
        self.inner.observe(verdict, draft, output)

    def _check(self, ids: Sequence[int]) -> None:
        self.fresh.truncate(0)
        self.fresh.prefill(ids)
        np.testing.assert_array_equal(self.session.cache[:, :, : len(ids)], self.fresh.cache)
        self.checks += 1


@pytest.mark.parametrize("tree", [None, (), (2, 2)])
@pytest.mark.parametrize("other", ["none", "cascade", "merge"])
def test_the_cache_is_a_fresh_prefill(tree: tuple[int, ...] | None, other: str) -> None:
    for seed in (0,):
        session = ToySession(V, CAPACITY, 8, seed + 1, 0.5)
        watched = Watched(made(session, tree=tree), session, ToySession(V, CAPACITY, 8, seed + 1, 0.5))
        drafter: Drafter = watched
        if other != "none":
            drafter = compose([prompt_lookup.create(DrafterOptions()), watched], other)
        engine = Engine(ToySession(V, CAPACITY, 8, seed, 0.5), drafter)
        list(engine.generate(PROMPT))
        list(engine.generate([*PROMPT, 4, 5], reuse=True))
        list(engine.generate(PROMPT[:2]))
        assert watched.checks > 10


def test_the_next_text_keeps_the_common_prefix() -> None:
    session = Counting(V, CAPACITY, 8)
    drafter = made(session)
    engine = text(drafter)
    before = len(session.rows)
    drafter.start(engine.ids[:20])
    assert sum(session.rows[before:]) == 1
    before = len(session.rows)
    drafter.start([*engine.ids[:11], (engine.ids[11] + 1) % V, 3])
    assert sum(session.rows[before:]) == 2
    assert drafter.propose(Context([*engine.ids[:11], (engine.ids[11] + 1) % V, 3], RNG), 2).tokens


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("capacity", [4, 5, 6, 17, 30])
def test_past_the_draft_models_context_decoding_is_plain(capacity: int, tree: tuple[int, ...] | None) -> None:
    want = text(plain.create(DrafterOptions())).ids
    drafter = made(ToySession(V, capacity, 8), tree=tree)
    engine = text(drafter)
    assert engine.ids == want
    assert drafter.propose(Context(want[:capacity], RNG), 8).tokens != ()
    assert drafter.propose(Context(want[: capacity + 1], RNG), 8) == Draft((), (), ())
    assert (engine.stats.drafted > 0) == (capacity > len(PROMPT))


def test_only_shared_ids_are_drafted() -> None:
    """A padded draft vocabulary, and one that lacks some of the target's ids."""

    class Padded(ToySession):
        def _run(self, tokens: list[int], draft: Draft) -> Output:
            output = super()._run(tokens, draft)
            output.logits[:, 6:] += 100
            return output

    for options in (Sampling(), Sampling(1.0, seed=1), Sampling(1.0, top_k=3, seed=1)):
        for tree in (None, ()):
            model = DraftModel(Padded(V + 5, CAPACITY, 8), tokens=V, shared=6)
            told = DrafterOptions(draft=model, confidence=0.0, tree=tree, sampler=Sampler(options, (), V))
            draft = drafting.create(told).propose(Context([1, 2, 3], RNG), 8)
            assert len(draft) >= 3 and max(draft.tokens) < 6
            assert draft.q is None or (draft.q.shape[1] == V and np.all(draft.q[:, 6:] == 0))
            model.begin()
            assert drafting.create(told).propose(Context([1, 7, 3], RNG), 8) == Draft((), (), ())


def test_text_with_an_unknown_id_is_plain_from_there() -> None:
    want = text(plain.create(DrafterOptions())).ids
    model = DraftModel(ToySession(V, CAPACITY, 8), tokens=V, shared=max(want))
    engine = text(drafting.create(DrafterOptions(draft=model, confidence=0.0)))
    assert engine.ids == want


def test_confidence_stops_a_chain() -> None:
    session = ToySession(V, CAPACITY, 8)
    for options in (Sampling(), Sampling(1.0, seed=3)):
        told = {"sampler": Sampler(options, (), V), "draft_tokens": 7}
        lengths = [len(made(session, **told, confidence=c).propose(Context(PROMPT, RNG), 8)) for c in (0.0, 0.3, 1.0)]
        assert lengths[0] == 7 and lengths[-1] == 0 and lengths == sorted(lengths, reverse=True)


def law_of(path: Sequence[int]) -> np.ndarray:
    """The draft toy's softmax after a text, from a fresh prefill."""
    logits = ToySession(V, CAPACITY, 16, 5).prefill(path).logits[-1].astype(np.float64)
    p = np.exp(logits - logits.max())
    return p / p.sum()


def paths(draft: Draft) -> list[tuple[int, ...]]:
    out: list[tuple[int, ...]] = []
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        out.append((*(out[parent] if parent >= 0 else ()), token))
    return out


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, V - 1), min_size=1, max_size=8), st.integers(2, 16), st.integers(1, 4))
def test_a_best_first_tree_is_the_likeliest(ids: list[int], width: int, depth: int) -> None:
    drafter = made(ToySession(V, CAPACITY, 16, 5), tree=(), draft_tokens=depth)
    draft, scores = drafter.propose_scored(Context(ids, RNG), width)
    assert 0 < len(draft) <= width - 1 and draft.depths.max() <= depth and draft.q is None
    found = paths(draft)
    assert len(set(found)) == len(found)
    for path, score in zip(found, scores, strict=True):
        want = np.prod([law_of([*ids, *path[:i]])[t] for i, t in enumerate(path)])
        assert score == pytest.approx(want, rel=1e-5)
    # Nothing left out under an expanded node is likelier than what was taken; four children are looked at.
    first = np.sort(law_of(ids))[::-1][:4]
    if len(draft) == width - 1 and depth == 1:
        assert sorted(scores, reverse=True) == pytest.approx(list(first[: width - 1]), rel=1e-5)


def test_a_fixed_tree_has_its_branches() -> None:
    draft = made(ToySession(V, CAPACITY, 16, 5), tree=(3, 2, 1)).propose(Context(PROMPT, RNG), 16)
    by_depth = [int((draft.depths == d).sum()) for d in range(4)]
    assert by_depth == [1, 3, 6, 6]
    children = [draft.parents.count(i) for i in range(-1, 3)]
    assert children == [3, 2, 2, 2]


def test_penalties_reach_the_draft_on_each_path() -> None:
    """Self-draft under penalties is still always right: the draft's law has the same history as the target's."""
    options = Sampling(
        repetition_penalty=1.9,
        presence_penalty=0.8,
        frequency_penalty=0.5,
        logit_bias={3: 1.0},
        bad_words=((4, 5), (6,)),
    )
    for tree in (None, (1, 1, 1)):
        drafter = made(ToySession(V, CAPACITY, 8), draft_tokens=3, tree=tree, sampler=Sampler(options, (), V))
        engine = Engine(ToySession(V, CAPACITY, 8), drafter, options, Limits(1 + 6 * 4))
        list(engine.generate(PROMPT))
        assert engine.stats.acceptance_length == 4


def test_a_sampled_self_draft_accepts_everything() -> None:
    """p = q at each row, whatever was drawn."""
    options = Sampling(0.9, top_p=0.9, repetition_penalty=1.3, seed=5)
    drafter = made(ToySession(V, CAPACITY, 8), draft_tokens=4, sampler=Sampler(options, (), V))
    engine = Engine(ToySession(V, CAPACITY, 8), drafter, options, Limits(1 + 8 * 5))
    list(engine.generate(PROMPT))
    assert engine.stats.acceptance_length == 5


class Faulty(ToySession):
    """Fails, or computes NaN, in the run after `left` more of them."""

    left, nan = -1, False

    def _run(self, tokens: list[int], draft: Draft) -> Output:
        output = super()._run(tokens, draft)
        self.left -= 1
        if self.left == 0 and self.nan:
            output.logits[...] = np.nan
        elif self.left == 0:
            raise RuntimeError("device lost")
        return output


@pytest.mark.parametrize("left", range(1, 12))
@pytest.mark.parametrize("tree", [None, ()])
def test_a_failing_run_leaves_the_model_usable(left: int, tree: tuple[int, ...] | None) -> None:
    want = text(plain.create(DrafterOptions())).ids
    session = Faulty(V, CAPACITY, 8)
    session.left = left
    drafter = made(session, tree=tree)
    engine = Engine(ToySession(V, CAPACITY, 8, 0, 0.5), drafter)
    with pytest.raises(RuntimeError, match="device lost"):
        list(engine.generate(PROMPT))
    list(engine.generate(PROMPT, reuse=True))
    assert engine.ids == want


@pytest.mark.parametrize("options", [Sampling(), Sampling(1.0, seed=1)])
def test_nan_is_one_line(options: Sampling) -> None:
    session = Faulty(V, CAPACITY, 8)
    session.left, session.nan = 7, True
    engine = Engine(ToySession(V, CAPACITY, 8), made(session, sampler=Sampler(options, (), V)), options)
    with pytest.raises(SpecError, match="draft model: logit of token 0 is nan") as caught:
        list(engine.generate(PROMPT))
    assert "\n" not in caught.value.message


def test_a_method_without_its_model_is_refused() -> None:
    with pytest.raises(BadUsage, match="--draft"):
        drafting.create(DrafterOptions())


@pytest.mark.parametrize("bad", [{"tree": (0,)}, {"tree": (2, 65)}, {"confidence": -0.1}, {"confidence": float("nan")}])
def test_bad_options(bad: dict[str, object]) -> None:
    with pytest.raises(BadUsage):
        DrafterOptions(**bad)  # type: ignore[arg-type]


def test_ids_of_any_split_are_followed() -> None:
    """`follow` gives the logits of a fresh prefill, whatever was held before."""
    rng = np.random.default_rng(3)
    model = DraftModel(ToySession(V, CAPACITY, 8), V)
    for a, b in itertools.product(range(1, 14, 4), range(1, 14, 4)):
        ids = rng.integers(0, 3, a + b).tolist()
        model.begin()
        for part in (ids[:a], ids):
            got = model.follow(part)
            assert got is not None
            np.testing.assert_array_equal(got, ToySession(V, CAPACITY, 8).prefill(part).logits[-1])
            model.extend(int(rng.integers(0, 3)))
