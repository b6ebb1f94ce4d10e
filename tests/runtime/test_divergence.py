"""Which differences between two greedy texts are the target's own, and which are faults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from spec_edge.models.contract import SpecError
from spec_edge.runtime.divergence import Recorded, Shape, divergence, margin_noise, replay
from spec_edge.runtime.draft import UNREAD, Context, Draft, Output, Verdict
from spec_edge.runtime.engine import Engine, Limits
from spec_edge.runtime.protocols import Drafter
from spec_edge.runtime.sessions.toy import ToySession

VOCAB, NEW = 12, 40
PROMPT = [1, 2, 3]


class TwoKernels(ToySession):
    """Rounds the logits of a run of one row to another grid than those of several, as quantised kernels do."""

    def verify(self, pending: int, draft: Draft) -> Output:
        output = super().verify(pending, draft)
        grain = 0.5 if len(draft) else 0.3
        return Output(np.round(output.logits / grain) * grain)


class Leaky(ToySession):
    """A fault: a rejected sibling changes the row before it."""

    def verify(self, pending: int, draft: Draft) -> Output:
        output = super().verify(pending, draft)
        logits = output.logits.copy()
        if len(draft):
            logits[0, draft.tokens[0]] += 50.0
        return Output(logits)


class Random:
    """Drafts a tree of noise at most steps, none at others."""

    name, wants = "random", frozenset[str]()

    def start(self, prompt: Sequence[int], read: Output = UNREAD) -> None:  # noqa: ARG002
        self._rng = np.random.default_rng(len(prompt))

    def propose(self, context: Context, width: int) -> Draft:  # noqa: ARG002
        n = int(self._rng.integers(0, min(width, 5)))
        parents = tuple(int(self._rng.integers(-1, i)) if i else -1 for i in range(n))
        return Draft(tuple(int(t) for t in self._rng.integers(0, VOCAB, n)), parents, (True,) * n)

    def observe(self, verdict: Verdict, draft: Draft, output: Output) -> None: ...


class Plain(Random):
    def propose(self, context: Context, width: int) -> Draft:  # noqa: ARG002
        return Draft((), (), ())


def text(session: Any, drafter: Drafter) -> list[int]:
    engine = Engine(session, drafter, limits=Limits(NEW))
    for _ in engine.generate(PROMPT):
        pass
    return engine.ids[len(PROMPT) :]


def judged(kind: type[ToySession], seed: int) -> Any:
    session = Recorded(kind(VOCAB, 64, 8, seed))
    plain = text(session, Plain())
    other = text(session, Random())
    return divergence(session, PROMPT, plain, other, (2, 4, 8), list(session.shapes))


def test_kernels_that_differ_by_width_are_told_from_faults() -> None:
    """Every difference that two kernels make is reproduced without drafts; none that leaking rows make is."""
    found = {kind: [d for d in (judged(kind, seed) for seed in range(40)) if d] for kind in (TwoKernels, Leaky)}
    assert len(found[TwoKernels]) >= 10
    assert len(found[Leaky]) >= 10
    assert all(d.replayed and d.near_tie for d in found[TwoKernels])
    assert not any(d.near_tie for d in found[Leaky])


def test_an_exact_session_never_parts() -> None:
    assert not any(judged(ToySession, seed) for seed in range(10))


def test_the_shapes_of_a_generation() -> None:
    session = Recorded(ToySession(VOCAB, 64, 8))
    tokens = text(session, Random())
    assert sum(len(shape.kept) for shape in session.shapes) == len(tokens) - 1
    assert all(shape.kept[0] == 0 and max(shape.kept) <= len(shape.parents) for shape in session.shapes)
    rows = replay(session, PROMPT, tokens[:-1], list(session.shapes))
    assert int(rows.argmax()) == tokens[-1]


def test_too_few_shapes_are_an_error() -> None:
    with pytest.raises(SpecError, match="1 of 3 tokens"):
        replay(ToySession(VOCAB), PROMPT, [4, 5, 6], [Shape((), (0,))])


def test_margin_noise_is_the_movement_of_the_gap() -> None:
    tokens = [4, 5, 6, 7]
    assert not margin_noise(ToySession(VOCAB), PROMPT, tokens).any()
    moved = margin_noise(TwoKernels(VOCAB, seed=3), PROMPT, tokens)
    assert moved.shape == (3,)
    assert 0 < moved.max() <= 0.8 + 1e-6
