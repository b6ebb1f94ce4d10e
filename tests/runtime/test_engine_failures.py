"""Garbage logits, failing devices and bad input: one clear line, and an engine that can go on."""

from __future__ import annotations

import numpy as np
import pytest

from spec_edge.models.contract import BadUsage, SpecError
from spec_edge.runtime.draft import Draft, Output
from spec_edge.runtime.drafters import plain, prompt_lookup
from spec_edge.runtime.drafters.options import DrafterOptions
from spec_edge.runtime.engine import Engine, Limits
from spec_edge.runtime.sampling import Sampling
from spec_edge.runtime.sessions.toy import ToySession

V, CAPACITY = 16, 48
PROMPT = [3, 1, 4, 1, 5]


class Broken(ToySession):
    """Fails, or computes garbage, in chosen verify runs."""

    fail: set[int] = frozenset()  # type: ignore[assignment]
    nan: set[int] = frozenset()  # type: ignore[assignment]
    runs = 0

    def verify(self, pending: int, draft: Draft) -> Output:
        self.runs += 1
        if self.runs in self.fail:
            raise RuntimeError("device lost")
        output = super().verify(pending, draft)
        if self.runs in self.nan:
            output.logits[:, 3] = np.nan
        return output


@pytest.mark.parametrize("options", [Sampling(), Sampling(1.0, seed=0)])
def test_garbage_logits_name_the_step_and_keep_the_text(options: Sampling) -> None:
    session = Broken(V, CAPACITY, 8)
    session.nan = {3}
    engine = Engine(session, plain.create(DrafterOptions()), options, Limits())
    got: list[int] = []
    with pytest.raises(SpecError, match=r"step 3: .*nan") as e:
        for chunk in engine.generate(PROMPT):
            got += chunk
    assert "\n" not in str(e.value)
    assert got == engine.tokens
    assert len(got) == 3
    assert session.length == len(engine.ids) - 1
    fresh = ToySession(V, CAPACITY, 8)
    fresh.prefill(engine.ids[:-1])
    assert np.array_equal(session.cache, fresh.cache)


def test_garbage_at_prefill() -> None:
    session = ToySession(V, CAPACITY, 8)
    session._head[:] = np.nan
    with pytest.raises(SpecError, match="prefill"):
        Engine(session, plain.create(DrafterOptions()), Sampling(), Limits()).generate(PROMPT)


def test_a_failed_step_can_be_taken_again() -> None:
    session = Broken(V, CAPACITY, 8, grain=0.7)
    session.fail = {4}
    engine = Engine(session, prompt_lookup.create(DrafterOptions()), Sampling(), Limits(max_new_tokens=30))
    with pytest.raises(RuntimeError):
        list(engine.generate(PROMPT))
    while not engine.finish_reason:
        engine.step()
    want = Engine(ToySession(V, CAPACITY, 8, grain=0.7), plain.create(DrafterOptions()), Sampling(), Limits(30))
    list(want.generate(PROMPT))
    assert engine.ids == want.ids


@pytest.mark.parametrize(
    ("prompt", "message"),
    [([], "empty"), ([1] * CAPACITY, "48 tokens and the context 48"), ([1, V], "outside 0..15"), ([-1], "outside")],
)
def test_bad_prompts(prompt: list[int], message: str) -> None:
    engine = Engine(ToySession(V, CAPACITY, 8), plain.create(DrafterOptions()))
    with pytest.raises(BadUsage, match=message) as e:
        engine.generate(prompt)
    assert "\n" not in str(e.value)


def test_the_longest_prompt_leaves_one_token() -> None:
    engine = Engine(ToySession(V, CAPACITY, 8), plain.create(DrafterOptions()))
    list(engine.generate([1] * (CAPACITY - 1)))
    assert (len(engine.tokens), engine.finish_reason) == (1, "context")


@pytest.mark.parametrize("limits", [{"max_new_tokens": 0}, {"tokens": 0}, {"width": -1}])
def test_bad_limits(limits: dict[str, int]) -> None:
    with pytest.raises(BadUsage, match="at least 1"):
        Limits(**limits)
