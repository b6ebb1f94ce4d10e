"""Any sequence of generate, leave, stop, failure and truncate leaves the cache equal to a fresh prefill."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from spec_edge.runtime.draft import Draft, Output
from spec_edge.runtime.drafters import prompt_lookup
from spec_edge.runtime.drafters.options import DrafterOptions
from spec_edge.runtime.engine import Engine, Limits
from spec_edge.runtime.sampling import Sampling
from spec_edge.runtime.sessions.toy import ToySession

V, CAPACITY = 8, 40


class Failing(ToySession):
    """Raises in the verify or prefill run after `left` more of them."""

    left: int | None = None

    def _count(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                self.left = None
                raise RuntimeError("device lost")

    def verify(self, pending: int, draft: Draft) -> Output:
        self._count()
        return super().verify(pending, draft)

    def prefill(self, ids: Sequence[int]) -> Output:
        if len(ids) > 1:
            super().prefill(ids[:1])  # a failing prefill leaves a part behind
            self._count()
            ids = ids[1:]
        return super().prefill(ids)


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.session = Failing(V, CAPACITY, 8, seed=2, grain=0.6)
        self.engine = Engine(self.session, prompt_lookup.create(DrafterOptions()), Sampling(), Limits(eos_ids=(7,)))

    def _run(self, prompt: list[int], reuse: bool, chunks: int) -> None:
        got: list[int] = []
        try:
            for n, chunk in enumerate(self.engine.generate(prompt, reuse), 1):
                got += chunk
                if n == chunks:
                    break
        except RuntimeError:
            return
        finally:
            self.session.left = None
        assert got == self.engine.tokens
        assert self.session.length == len(self.engine.ids) - 1
        session = ToySession(V, CAPACITY, 8, 2, 0.6)
        fresh = Engine(session, prompt_lookup.create(DrafterOptions()), limits=Limits(eos_ids=(7,)))
        list(fresh.generate(prompt))
        assert fresh.tokens[: len(got)] == got
        assert got == fresh.tokens or len(got) >= chunks

    @rule(prompt=st.lists(st.integers(0, V - 1), min_size=1, max_size=8), chunks=st.integers(1, 30))
    def generate(self, prompt: list[int], chunks: int) -> None:
        self._run(prompt, False, chunks)

    @precondition(lambda self: 0 < len(self.engine.ids) < CAPACITY - 6)
    @rule(more=st.lists(st.integers(0, V - 1), max_size=5), chunks=st.integers(1, 30), cut=st.integers(0, 6))
    def append(self, more: list[int], chunks: int, cut: int) -> None:
        kept = self.engine.ids[: max(1, len(self.engine.ids) - cut)]
        self._run([*kept, *more], True, chunks)

    @rule(left=st.integers(0, 6))
    def break_soon(self, left: int) -> None:
        self.session.left = left

    @precondition(lambda self: self.engine.tokens)
    @rule(share=st.floats(0, 1))
    def stop(self, share: float) -> None:
        self.engine.stop(int(share * len(self.engine.tokens)))
        assert self.session.length < len(self.engine.ids)

    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        self.session.truncate(int(share * self.session.length))

    @invariant()
    def cache_is_a_fresh_prefill(self) -> None:
        known = min(self.session.length, len(self.engine.ids))
        fresh = ToySession(V, CAPACITY, 8, 2, 0.6)
        if known:
            fresh.prefill(self.engine.ids[:known])
        assert np.array_equal(self.session.cache[:, :, :known], fresh.cache)


Machine.TestCase.settings = settings(max_examples=25, stateful_step_count=12, deadline=None)
TestEngineStates = Machine.TestCase
