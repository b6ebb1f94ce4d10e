# ruff: noqa: ARG002 (stand-ins for protocols take what those take)
"""Methods and their hybrids: the plain text at every width, the target's law, known acceptance, how members join."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_edge.models.contract import BadUsage
from spec_edge.runtime import hybrid
from spec_edge.runtime.draft import EMPTY, UNREAD, Context, Draft, Output, Verdict
from spec_edge.runtime.drafters.options import DrafterOptions
from spec_edge.runtime.engine import Engine, Limits
from spec_edge.runtime.protocols import Drafter
from spec_edge.runtime.sampling import Sampling
from spec_edge.runtime.sessions.toy import ToySession
from spec_edge.runtime.trie import Scores

METHODS = (
    "lookahead",
    "suffix",
    "lookahead+prompt-lookup",
    "suffix+prompt-lookup",
    "lookahead+suffix",
    "prompt-lookup+lookahead+suffix",
)
RNG = np.random.default_rng(0)


class Table:
    """A target whose logits depend on the position and the token before: `logits(position, token)`."""

    capacity, max_width, length = 10**6, 32, 0

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def row(self, position: int, token: int) -> np.ndarray:
        """float32 [V]: every stand-in has its own."""
        raise AssertionError(position, token)

    def prefill(self, ids: Sequence[int]) -> Output:
        self.length += len(ids)
        return Output(self.row(self.length - 1, ids[-1])[None])

    def verify(self, pending: int, draft: Draft) -> Output:
        pairs = zip(draft.depths.tolist(), (pending, *draft.tokens), strict=True)
        return Output(np.stack([self.row(self.length + d, t) for d, t in pairs]))

    def commit(self, rows: Sequence[int]) -> None:
        self.length += len(rows)

    def truncate(self, length: int) -> None:
        self.length = length

    def close(self) -> None: ...


class Script(Table):
    """Writes a given text."""

    def __init__(self, text: Sequence[int]) -> None:
        super().__init__(max(text) + 1)
        self.text = text

    def row(self, position: int, token: int) -> np.ndarray:
        logits = np.zeros(self.vocab_size, np.float32)
        logits[self.text[(position + 1) % len(self.text)]] = 1
        return logits


def replay(text: Sequence[int], prompt: int, drafter: Drafter, new: int, width: int = 16) -> Engine:
    engine = Engine(Script(text), drafter, Sampling(), Limits(max_new_tokens=new, width=width))
    list(engine.generate(text[:prompt]))
    assert engine.ids == list(text[: prompt + new])
    return engine


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


@pytest.mark.parametrize("width", [4, 8, 16, 32])
@pytest.mark.parametrize("mode", ["merge", "cascade"])
@settings(max_examples=3, deadline=None)
@given(st.integers(0, 10**6), st.lists(st.integers(0, 8), min_size=1, max_size=30), st.sampled_from([0.0, 0.5, 2.0]))
def test_greedy_text_is_the_plain_one(width: int, mode: str, seed: int, prompt: list[int], grain: float) -> None:
    toy = ToySession(9, 60, width, seed, grain)
    plain = Engine(toy, hybrid.create("plain", DrafterOptions()))
    list(plain.generate(prompt))
    for method in METHODS:
        engine = Engine(toy, hybrid.create(method, DrafterOptions(hybrid=mode)))
        list(engine.generate(prompt))
        assert engine.ids == plain.ids, method


class Pairs(Table):
    """Logits of the current pair's tokens only, so that one long generation is many independent pairs."""

    def __init__(self) -> None:
        super().__init__(4)
        self.logits = np.log(np.random.default_rng(7).dirichlet(np.full(4, 2.0), size=5)).astype(np.float32)

    def row(self, position: int, token: int) -> np.ndarray:
        return self.logits[4 if position % 2 else token]


CHI_SQUARE_15_1E6 = 56.49  # quantile 1 - 1e-6 at 15 degrees of freedom


@pytest.mark.parametrize("method", ["lookahead", "suffix", "lookahead+suffix"])
def test_sampled_law(method: str) -> None:
    """3,000 pairs at width 8: a total variation of 0.08 over the 16 cells is seen with power 0.99."""
    pairs = 3_000
    target = Pairs()
    engine = Engine(target, hybrid.create(method, DrafterOptions()), Sampling(1.0, seed=3), Limits(2 * pairs, width=8))
    list(engine.generate([0, 1, 2, 3, 0, 0]))
    got = np.array(engine.tokens).reshape(-1, 2)
    counts = np.bincount(got[:, 0] * 4 + got[:, 1], minlength=16)
    p = np.exp(target.logits.astype(np.float64))
    p /= p.sum(axis=1, keepdims=True)
    want = (p[4][:, None] * p[:4]).reshape(-1) * pairs
    assert want.min() > 10
    assert ((counts - want) ** 2 / want).sum() < CHI_SQUARE_15_1E6
    assert engine.stats.acceptance_length > 1.4


@pytest.mark.parametrize(
    ("method", "steps", "drafted", "accepted"),
    [
        ("lookahead", 269, 1341, 230),
        ("suffix", 316, 2402, 183),
        ("suffix+prompt-lookup", 316, 2402, 183),
        ("lookahead+suffix", 254, 1397, 245),
    ],
)
def test_known_acceptance_on_a_pseudo_text(method: str, steps: int, drafted: int, accepted: int) -> None:
    stats = replay(pseudo_text(700), 200, hybrid.create(method, DrafterOptions(min_ngram=2)), 500).stats
    assert (stats.steps, stats.drafted, stats.accepted) == (steps, drafted, accepted)


class Fixed:
    """Proposes one draft, notes what it observes."""

    wants = frozenset({"hidden"})

    def __init__(self, name: str, draft: Draft) -> None:
        self.name, self.draft, self.seen, self.started = name, draft, [], 0

    def start(self, prompt: Sequence[int], read: Output = UNREAD) -> None:
        self.started += 1

    def propose(self, context: Context, width: int) -> Draft:
        return self.draft

    def observe(self, verdict: Verdict, draft: Draft, output: Output) -> None:
        self.seen.append((verdict, draft))


class Sure(Fixed):
    """The same with estimates."""

    def propose_scored(self, context: Context, width: int) -> tuple[Draft, Scores]:
        return self.draft, [0.9] * len(self.draft)


WINDOW = Draft((7, 8), (-1, 0), (False, False))
HERE = Context([1], RNG)


def test_merge_shares_rows_by_estimate() -> None:
    a, b = Fixed("a", Draft.chain([1, 2, 3])), Sure("b", Draft.chain([1, 5, 6]))
    assert hybrid.compose([a, b], "merge").propose(HERE, 5).tokens == (1, 5, 6, 2)
    assert hybrid.compose([a, b], "merge").propose(HERE, 3).tokens == (1, 5)
    window = Fixed("w", WINDOW)
    found = hybrid.compose([window, a, b], "merge").propose(HERE, 5)
    assert (found.tokens, found.candidate) == ((1, 5, 7, 8), (True, True, False, False))


def test_a_merged_draft_names_whose_rows_it_has() -> None:
    a, b, none = Fixed("a", Draft.chain([1, 2, 3])), Sure("b", Draft.chain([1, 5, 6])), Fixed("n", EMPTY)
    assert hybrid.compose([none, a, b], "merge").propose(HERE, 5).sources == ("a", "b")
    low, high = Fixed("low", Draft.chain([2, 2])), Sure("high", Draft.chain([1, 5, 6]))
    assert hybrid.compose([low, high], "merge").propose(HERE, 3).sources == ("high",)
    assert hybrid.compose([none, Fixed("m", EMPTY)], "merge").propose(HERE, 3).sources == ()


def test_cascade_takes_the_first_candidates() -> None:
    none, window, a = Fixed("n", EMPTY), Fixed("w", WINDOW), Fixed("a", Draft.chain([1, 2]))
    for members, taken in (((none, window, a), a), ((none, window), window), ((a, window), a)):
        found = hybrid.compose(members, "cascade").propose(HERE, 8)
        assert found == replace(taken.draft, sources=(taken.name,))
    assert hybrid.compose([none, Fixed("m", EMPTY)], "cascade").propose(HERE, 8) is EMPTY


@pytest.mark.parametrize("mode", ["merge", "cascade"])
def test_every_member_observes_every_step(mode: str) -> None:
    a, b = Fixed("a", Draft.chain([1, 2])), Fixed("b", Draft.chain([3]))
    both = hybrid.compose([a, b], mode)
    both.enable("b", False)
    engine = Engine(ToySession(9, 40, 8), both, Sampling(), Limits(12))
    list(engine.generate([1, 2]))
    assert len(a.seen) == len(b.seen) == engine.stats.steps > 0
    assert a.seen == b.seen
    assert all(3 not in draft.tokens for _, draft in a.seen)
    assert (a.started, b.started) == (1, 1)
    assert (both.name, both.wants) == ("a+b", {"hidden"})


def test_members_on_and_off() -> None:
    a, b = Fixed("a", Draft.chain([1])), Fixed("b", Draft.chain([3]))
    both = hybrid.compose([a, b], "merge")
    assert both.propose(HERE, 8).tokens == (1, 3)
    both.enable("a", False)
    assert both.propose(HERE, 8).tokens == (3,)
    both.enable("b", False)
    assert both.propose(HERE, 8) is EMPTY
    both.enable("a", True)
    assert both.propose(HERE, 8).tokens == (1,)
    with pytest.raises(BadUsage, match="no member of a\\+b"):
        both.enable("c", True)


def test_names() -> None:
    assert hybrid.create("suffix", DrafterOptions()).name == "suffix"
    found = hybrid.create("lookahead+prompt_lookup", DrafterOptions(off=("lookahead",)))
    assert found.name == "lookahead+prompt-lookup"
    found.start([1, 2, 3, 1, 2])
    assert found.propose(Context([1, 2, 3, 1, 2], RNG), 3).tokens == (3, 1)
    for bad in ("sufix", "suffix+", "suffix+suffix", "suffix+sufix"):
        with pytest.raises(BadUsage):
            hybrid.create(bad, DrafterOptions())
    with pytest.raises(BadUsage, match="no member"):
        hybrid.create("suffix+plain", DrafterOptions(off=("lookahead",)))
    with pytest.raises(BadUsage, match="merge, cascade"):
        DrafterOptions(hybrid="both")
    with pytest.raises(BadUsage, match="merge, cascade"):
        hybrid.compose([Fixed("a", EMPTY), Fixed("b", EMPTY)], "both")
