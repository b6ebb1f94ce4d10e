# ruff: noqa: ARG002, ARG005 (stand-ins for protocols take what those take)
"""Monte Carlo through the engine: joints of consecutive tokens have the target's law (Pearson chi-square, alpha 1e-6).

The target's logits depend on the tokens of the current block only, so one long generation is many independent joints,
and drafts run across their borders. 100,000 joints of two tokens (16 cells) see a total variation of 0.02 with power
0.99 and to spare; and as many of three tokens (64 cells, 75,000 would do).
The law of a row is computed once by the code under test and kept: it is a pure function of the row.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from spec_edge.runtime import sampling
from spec_edge.runtime.draft import EMPTY, UNREAD, Context, Draft, Output, Verdict
from spec_edge.runtime.engine import Engine, Limits
from spec_edge.runtime.law import Law, dense, siblings
from spec_edge.runtime.processors import Past
from spec_edge.runtime.sampling import Sampling

V, JOINTS = 4, 100_000
CHI_SQUARE_1E6 = {15: 56.49, 63: 131.37}  # quantile 1 - 1e-6 by degrees of freedom
PROMPT = [0, 0]


class Table:
    """Laws over V tokens after each prefix of a block of n: state 0 is the empty one."""

    def __init__(self, n: int) -> None:
        prefixes = [p for length in range(n) for p in np.ndindex(*(V,) * length)]
        place = {p: i for i, p in enumerate(prefixes)}
        self.n, self.next = n, [[place.get((*p, t), 0) for t in range(V)] for p in prefixes]
        rng = np.random.default_rng(7)
        self.logits = np.log(rng.dirichlet(np.full(V, 2.0), size=len(prefixes))).astype(np.float32)
        p = np.exp(self.logits.astype(np.float64))
        self.p = p / p.sum(axis=1, keepdims=True)
        q = 0.6 * self.p + 0.4 * np.random.default_rng(8).dirichlet(np.ones(V), size=len(prefixes))
        q[:, 1] *= rng.random(len(prefixes)) < 0.7
        self.q_rows = q / q.sum(axis=1, keepdims=True)
        self.q = [Law(np.arange(V), row) for row in self.q_rows]
        self.ends = [[*row[:-1], 1.0] for row in self.q_rows.cumsum(axis=1).tolist()]

    def after(self, state: int, tokens: Sequence[int]) -> int:
        for token in tokens:
            state = self.next[state][token]
        return state

    def of(self, ids: Sequence[int]) -> int:
        """State after a text."""
        new = (len(ids) - len(PROMPT)) % self.n
        return self.after(0, ids[len(ids) - new :])

    def joint(self) -> np.ndarray:
        """Probability of each block, in the order of its tokens read as a number."""
        blocks = list(np.ndindex(*(V,) * self.n))
        return np.array([np.prod([self.p[self.after(0, b[:i])][b[i]] for i in range(self.n)]) for b in blocks])


class Blocks:
    """A session whose logits are a table."""

    vocab_size, capacity, max_width, length = V, 10**6, 8, 0

    def __init__(self, table: Table) -> None:
        self._table, self._state, self._states = table, 0, [0]

    def prefill(self, ids: Sequence[int]) -> Output:
        self.length, self._state = self.length + len(ids), 0
        return Output(self._table.logits[[0]])

    def verify(self, pending: int, draft: Draft) -> Output:
        step = self._table.next
        states = [step[self._state][pending]]
        for token, parent in zip(draft.tokens, draft.parents, strict=True):
            states.append(step[states[parent + 1]][token])
        self._states = states
        return Output(self._table.logits[states])

    def commit(self, rows: Sequence[int]) -> None:
        self.length, self._state = self.length + len(rows), self._states[rows[-1]]

    def truncate(self, length: int) -> None:
        self.length = length

    def close(self) -> None: ...


class Kept(sampling.Sampler):
    """Each row's law, computed once."""

    def law(self, logits: np.ndarray, past: Past) -> Law:
        key = logits.tobytes()
        if key not in self.known:
            self.known[key] = super().law(logits, past)
        return self.known[key]

    known: dict[bytes, Law]


class Proposing:
    """A drafter made of one function."""

    name = "proposing"
    wants: frozenset[str] = frozenset()

    def __init__(self, propose: Callable[[Table, Context], Draft], table: Table) -> None:
        self._propose, self._table = propose, table

    def start(self, prompt: Sequence[int], read: Output = UNREAD) -> None: ...

    def propose(self, context: Context, width: int) -> Draft:
        return self._propose(self._table, context)

    def observe(self, verdict: Verdict, draft: Draft, output: Output) -> None: ...


TREE = Draft((0, 1, 2, 3, 3, 1, 2), (-1, -1, 0, 0, 1, 1, 4), (True, True, True, True, True, True, False))


def drawn(table: Table, context: Context) -> Draft:
    """Two tokens really drawn from q."""
    state, tokens, states = table.of(context.ids), [], []
    for chance in context.rng.random(2).tolist():
        states.append(state)
        tokens.append(bisect_right(table.ends[state], chance))
        state = table.next[state][tokens[-1]]
    return Draft.chain(tokens, table.q_rows[states])


def drawn_tree(table: Table, context: Context) -> Draft:
    """Two siblings without replacement, and one child of each."""
    state = table.of(context.ids)
    first = siblings(table.q[state], 2, context.rng)
    below = [siblings(table.q[table.next[state][token]], 1, context.rng)[0] for token, _ in first]
    tokens, laws = zip(*first, *below, strict=True)
    parents = (*(-1 for _ in first), *range(len(first)))
    return Draft(tokens, parents, (True,) * len(tokens), np.stack([dense(law, V) for law in laws]))


CASES: dict[str, Callable[[Table, Context], Draft]] = {
    "point-mass tree": lambda table, context: TREE,
    "ratio chain": drawn,
    "ratio siblings": drawn_tree,
    "plain": lambda table, context: EMPTY,
}


def statistic(tokens: Sequence[int], table: Table) -> float:
    blocks = np.array(tokens).reshape(-1, table.n) @ V ** np.arange(table.n)[::-1]
    counts, want = np.bincount(blocks, minlength=V**table.n), table.joint() * len(blocks)
    assert want.min() > 10
    return float(((counts - want) ** 2 / want).sum())


def values(name: str, n: int, joints: int) -> list[float]:
    """The statistic, and once more with a new seed where it is too large: a false alarm has probability 1e-12."""
    found, table = [], Table(n)
    for seed in (11, 12):
        drafter, limits = Proposing(CASES[name], table), Limits(max_new_tokens=n * joints)
        engine = Engine(Blocks(table), drafter, Sampling(1.0, seed=seed), limits)
        engine._sampler = Kept(engine.options, (), V)
        engine._sampler.known = {}
        list(engine.generate(PROMPT))
        found.append(statistic(engine.tokens, table))
        assert (engine.stats.acceptance_length > 1.4) == (name != "plain")
        if found[-1] < CHI_SQUARE_1E6[V**n - 1]:
            break
    return found


@pytest.mark.parametrize("name", CASES)
def test_joint_of_two_tokens(name: str) -> None:
    found = values(name, 2, {"plain": JOINTS // 8, "ratio siblings": JOINTS // 2}.get(name, JOINTS))
    assert found[-1] < CHI_SQUARE_1E6[15], found


@pytest.mark.parametrize("name", CASES)
def test_joint_of_three_tokens(name: str) -> None:
    found = values(name, 3, JOINTS)
    assert found[-1] < CHI_SQUARE_1E6[63], found


def test_the_statistic_can_fail() -> None:
    """The classic mistake, a fresh draw from p after a rejection, is seen at this sample size."""
    table, rng = Table(2), np.random.default_rng(0)
    first = rng.choice(V, JOINTS, p=table.p[0])
    p = table.p[[table.next[0][t] for t in first]]
    redrawn = (p.cumsum(axis=1) <= rng.random((JOINTS, 1))).sum(axis=1).clip(max=V - 1)
    second = np.where(rng.random(JOINTS) < p[:, 0], 0, redrawn)
    assert statistic(np.stack([first, second], axis=1).reshape(-1).tolist(), table) > CHI_SQUARE_1E6[15]
