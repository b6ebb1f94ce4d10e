# ruff: noqa: ARG002, ARG005 (stand-ins for protocols take what those take)
"""Monte Carlo through the engine: joints of two tokens have the target's law (Pearson chi-square, alpha 1e-6).

The target's logits depend on the tokens of the current pair only, so one long generation of 100,000 tokens is
50,000 independent pairs, and drafts run across their borders.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from spec_edge.runtime.draft import EMPTY, Context, Draft, Output, Verdict
from spec_edge.runtime.engine import Engine, Limits
from spec_edge.runtime.sampling import Sampling

V, PAIRS = 4, 50_000  # enough to see a total variation of 0.02 over 16 cells with power 0.99
CHI_SQUARE_15_1E6 = 56.49  # quantile 1 - 1e-6 at 15 degrees of freedom

LOGITS = np.log(np.random.default_rng(7).dirichlet(np.full(V, 2.0), size=V + 1)).astype(np.float32)
P = np.exp(LOGITS.astype(np.float64))
P /= P.sum(axis=1, keepdims=True)
Q = 0.6 * P + 0.4 * np.random.default_rng(8).dirichlet(np.ones(V), size=V + 1)


def state(position: int, token: int) -> int:
    """Which row of the table follows `token` at `position`; pairs begin at even positions."""
    return V if position % 2 else token


class Pairs:
    """A session whose logits are a table."""

    vocab_size, capacity, max_width, length = V, 10**6, 8, 0

    def prefill(self, ids: Sequence[int]) -> Output:
        self.length += len(ids)
        return Output(LOGITS[[state(self.length - 1, ids[-1])]])

    def verify(self, pending: int, draft: Draft) -> Output:
        depths = draft.depths.tolist()
        rows = [state(self.length + d, t) for d, t in zip(depths, (pending, *draft.tokens), strict=True)]
        return Output(LOGITS[rows])

    def commit(self, rows: Sequence[int]) -> None:
        self.length += len(rows)

    def truncate(self, length: int) -> None:
        self.length = length

    def close(self) -> None: ...


class Proposing:
    """A drafter made of one function."""

    name = "proposing"
    wants: frozenset[str] = frozenset()

    def __init__(self, propose: Callable[[Context], Draft]) -> None:
        self._propose = propose

    def start(self, prompt: Sequence[int]) -> None: ...

    def propose(self, context: Context, width: int) -> Draft:
        return self._propose(context)

    def observe(self, verdict: Verdict, draft: Draft, output: Output) -> None: ...


TREE = Draft((0, 1, 2, 3, 3, 1, 2), (-1, -1, 0, 0, 1, 1, 4), (True, True, True, True, True, True, False))


def drawn(context: Context) -> Draft:
    """Two tokens really drawn from Q."""
    position, token, tokens, q = len(context.ids) - 1, context.ids[-1], [], []
    for _ in range(2):
        row = Q[state(position, token)]
        token = int((row.cumsum() <= context.rng.random() * row.sum()).sum())
        position += 1
        tokens.append(token)
        q.append(row)
    return Draft.chain(tokens, np.stack(q))


CASES: dict[str, Callable[[Context], Draft]] = {
    "plain": lambda context: EMPTY,
    "point-mass tree": lambda context: TREE,
    "ratio chain": drawn,
}


def statistic(tokens: list[int]) -> float:
    pairs = np.array(tokens).reshape(-1, 2)
    counts = np.bincount(pairs[:, 0] * V + pairs[:, 1], minlength=V * V)
    want = (P[V][:, None] * P[:V]).reshape(-1) * len(pairs)
    assert want.min() > 10
    return float(((counts - want) ** 2 / want).sum())


@pytest.mark.parametrize("name", CASES)
def test_joint_of_two_tokens(name: str) -> None:
    values, pairs = [], PAIRS if name != "plain" else PAIRS // 2
    for seed in (11, 12):  # one rerun with a new seed: a false alarm has probability 1e-12
        engine = Engine(Pairs(), Proposing(CASES[name]), Sampling(1.0, seed=seed), Limits(max_new_tokens=2 * pairs))
        list(engine.generate([0, 0]))
        values.append(statistic(engine.tokens))
        if values[-1] < CHI_SQUARE_15_1E6:
            break
    assert values[-1] < CHI_SQUARE_15_1E6, values
    assert (engine.stats.acceptance_length > 1.5) == (name != "plain")


def test_the_statistic_can_fail() -> None:
    """The classic mistake, a fresh draw from p after a rejection, is seen at this sample size."""
    rng = np.random.default_rng(0)
    first = rng.choice(V, PAIRS, p=P[V])
    redrawn = (P[first].cumsum(axis=1) <= rng.random((PAIRS, 1))).sum(axis=1).clip(max=V - 1)
    second = np.where(rng.random(PAIRS) < P[first, 0], 0, redrawn)
    assert statistic(np.stack([first, second], axis=1).reshape(-1).tolist()) > CHI_SQUARE_15_1E6
