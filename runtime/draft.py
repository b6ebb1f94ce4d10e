"""The values that pass between the phases of a step: Context, Draft, Output, Verdict.

A draft is data. Positions and mask are derived from `parents` here and nowhere else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from spec_edge.models.contract import SpecError

ROOT = -1
"""Parent of a drafted token that follows the pending token (row 0 of the verify graph)."""


@dataclass(frozen=True)
class Draft:
    """n drafted tokens, a tree in topological order; token i is row i + 1 of the verify graph.

    tokens     ids
    parents    parents[i] in [-1, i): the drafted token that i follows, -1 for the pending token
    candidate  False for rows that are computed but never accepted (lookahead's window)
    q          float [n, V]: the law each token was really drawn from, after its transforms and given the siblings
               before it (drawn without replacement: 0 at theirs, renormalised); None for a deterministic proposal and
               for every tree that was merged, ranked or deduplicated (point mass)
    sources    names of the drafters whose tokens these are, where the proposing drafter is made of several
    grade      how far the drafter trusts this draft, in steps of its own (the length of a match): drafts of one grade
               are expected to be accepted alike
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    candidate: tuple[bool, ...]
    q: NDArray[np.floating] | None = None
    sources: tuple[str, ...] = ()
    grade: int = 0

    def __post_init__(self) -> None:
        n = len(self.tokens)
        if len(self.parents) != n or len(self.candidate) != n:
            raise SpecError(f"a draft of {n} tokens needs {n} parents and {n} candidate flags")
        if any(not ROOT <= p < i for i, p in enumerate(self.parents)):
            raise SpecError(f"a draft's parents must come before their children: {self.parents}")
        if self.q is not None and (self.q.ndim != 2 or self.q.shape[0] != n):
            raise SpecError(f"a draft of {n} tokens needs q of shape [{n}, V], not {list(self.q.shape)}")

    @classmethod
    def chain(cls, tokens: Sequence[int], q: NDArray[np.floating] | None = None, grade: int = 0) -> Draft:
        """Each token follows the one before it."""
        n = len(tokens)
        return cls(tuple(tokens), tuple(range(-1, n - 1)), (True,) * n, q, grade=grade)

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def is_chain(self) -> bool:
        return self.parents == tuple(range(-1, len(self) - 1))

    @cached_property
    def depths(self) -> NDArray[np.int64]:
        """int64 [n + 1]: position of each verify row relative to the pending token (row 0)."""
        depth = np.zeros(len(self) + 1, np.int64)
        for i, parent in enumerate(self.parents):
            depth[i + 1] = depth[parent + 1] + 1
        return depth

    @cached_property
    def levels(self) -> tuple[int, ...]:
        """[d]: candidates at depth d + 1, down to the deepest."""
        count = Counter(int(d) for d, c in zip(self.depths[1:], self.candidate, strict=True) if c)
        return tuple(count[d] for d in range(1, max(count, default=0) + 1))

    @cached_property
    def mask(self) -> NDArray[np.bool_]:
        """bool [n + 1, n + 1]: verify row r sees verify row c (its ancestors and itself)."""
        seen = np.eye(len(self) + 1, dtype=bool)
        for i, parent in enumerate(self.parents):
            seen[i + 1] |= seen[parent + 1]
        return seen


EMPTY = Draft((), (), ())


@dataclass(frozen=True)
class Output:
    """What a verify or prefill run gives. The arrays are views, valid until the session runs again.

    logits  float32 [rows, V] of a verify run, [1, V] of a prefill run
    hidden  float32 [rows, H], the last normed hidden state, or None if no drafter wants it
    taps    float32 [rows, T * H], or None
    """

    logits: NDArray[np.float32]
    hidden: NDArray[np.float32] | None = None
    taps: NDArray[np.float32] | None = None


UNREAD = Output(np.empty((0, 0), np.float32))
"""Of a text that was not prefilled here: a drafter is told of no features."""


@dataclass(frozen=True)
class Verdict:
    """path: indices into the draft that were accepted, root to leaf. tokens: those tokens and the bonus token."""

    path: tuple[int, ...]
    tokens: tuple[int, ...]

    @property
    def rows(self) -> tuple[int, ...]:
        """Verify rows whose K/V are committed: the pending token's and the accepted ones'."""
        return (0, *(i + 1 for i in self.path))


@dataclass(frozen=True)
class Context:
    """What a drafter may look at: every token so far (the last one is pending) and the random generator."""

    ids: Sequence[int]
    rng: np.random.Generator
