"""Rows of an EAGLE drafter: what one says (`Level`), where drafted ones lie (`Scratch`), who computes them (`Rows`).

Row t of the drafter's cache pairs the embedding of token t + 1 with the target's feature of row t. Committed rows are
the text's. Drafted ones follow them in the cache, in the order in which they were computed: a row sees the committed
ones, its own ancestors and itself, and stands at the position of its depth. They vanish when the length is reset.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from spec_edge.runtime.draft import ROOT

F32 = NDArray[np.float32]


@dataclass(frozen=True)
class Level:
    """What the drafter says after each of R rows.

    ids       int32 [R, K]: the likeliest next tokens, best first, as ids of the target
    logprobs  float32 [R, K]: of those
    hidden    float32 [R, H]: the feature with which a token below is read
    logits    float32 [R, drafted ids], a view until the next run; None where the graphs do not give them
    """

    ids: NDArray[np.int32]
    logprobs: F32
    hidden: F32
    logits: F32 | None


class Rows(Protocol):
    """A drafter's network with its own cache. `length`: committed rows."""

    @property
    def length(self) -> int: ...

    @property
    def capacity(self) -> int:
        """Most rows that can be committed."""
        ...

    @property
    def room(self) -> int:
        """Drafted rows that still fit."""
        ...

    @property
    def reads(self) -> str:
        """ "hidden" or "taps": the target's output that `extend` takes."""
        ...

    @property
    def vocabulary(self) -> NDArray[np.int64] | None:
        """int64 [drafted ids]: the target's id of each; None where they are the same."""
        ...

    def extend(self, ids: Sequence[int], features: F32) -> Level:
        """Commit rows: token t + 1 and the target's features of row t for each; drafted rows are dropped first. The
        level of the last one. SpecError: no room, or an id that the target does not have."""
        ...

    def expand(self, ids: Sequence[int], hidden: F32, parents: Sequence[int]) -> Level:
        """Draft rows: tokens, the `hidden` of the rows that they follow, and which drafted row that is (ROOT: the last
        committed one), counted from the first since `extend`. Their level."""
        ...

    def truncate(self, length: int) -> None:
        """Forget every committed row from `length` on, and every drafted one."""
        ...

    def close(self) -> None: ...


class Scratch:
    """Which drafted rows see each other, and how deep they are."""

    def __init__(self) -> None:
        self._depths: list[int] = []
        self._seen: NDArray[np.bool_] = np.zeros((0, 0), bool)

    def __len__(self) -> int:
        return len(self._depths)

    def clear(self) -> None:
        self._depths = []
        self._seen = self._seen[:0, :0]

    def add(self, parents: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """(depths [R], mask [R, rows so far + R]) of R new rows; the first below the text has depth 0."""
        kept, new = len(self), len(parents)
        seen = np.zeros((kept + new, kept + new), bool)
        seen[:kept, :kept] = self._seen
        for row, parent in enumerate(parents, kept):
            if parent != ROOT:
                seen[row] = seen[parent]
            seen[row, row] = True
            self._depths.append(0 if parent == ROOT else self._depths[parent] + 1)
        self._seen = seen
        return np.array(self._depths[kept:], np.int64), seen[kept:]
