"""The target's K/V cache: where rows live, and how accepted rows are kept.

Enters: rows of the last run that were accepted. Leaves: buffers that the session binds. All layers are slices of one
array [2L, KVH, slots, D] (key and value of layer i are 2i and 2i + 1), so a commit is one copy whatever the depth.
Two layouts behind one interface: in the fused one the graph writes new rows behind the committed ones in the same
buffer, in the portable one the new rows come out of the graph in an array of their own.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from spec_edge.models.contract import CacheFacts, ModelFacts, SpecError

Array = NDArray[Any]


class Committed(Protocol):
    """`length`: committed rows."""

    length: int

    def commit(self, rows: Sequence[int]) -> None:
        """Keep these rows of the last run, in order (ascending)."""
        ...

    def truncate(self, length: int) -> None:
        """Forget every committed row from `length` on."""
        ...


class Cache(Committed, Protocol):
    """In one buffer of this process. `slots`: rows it has now."""

    past: Array

    @property
    def slots(self) -> int: ...

    def grow(self, slots: int, kept: int = 0) -> None:
        """A larger buffer with the committed rows, and `kept` behind them; what binds `past` must bind again."""
        ...


def check_rows(rows: Sequence[int], staged: int) -> None:
    """SpecError: they are not rows of a run of `staged` rows, ascending."""
    ordered = all(a < b for a, b in itertools.pairwise(rows))
    if not rows or not ordered or rows[0] < 0 or rows[-1] >= staged:
        raise SpecError(f"cannot commit rows {list(rows)} of a run of {staged} rows")


def check_truncated(now: int, length: int) -> None:
    """SpecError: a cache of `now` rows cannot be cut to `length`."""
    if not 0 <= length <= now:
        raise SpecError(f"cannot truncate a cache of {now} rows to {length}")


class _Buffer:
    """What both layouts share. The buffer starts zeroed: rows that no run wrote must be finite."""

    def __init__(self, model: ModelFacts | CacheFacts, slots: int, dtype: str) -> None:
        self._shape = (2 * model.layers, model.kv_heads, model.head_dim)
        self.past = self._empty(slots, dtype)
        self.length = 0
        self._staged = 0

    def _empty(self, slots: int, dtype: str) -> Array:
        layers, heads, dim = self._shape
        return np.zeros((layers, heads, slots, dim), dtype)

    @property
    def slots(self) -> int:
        return int(self.past.shape[2])

    def truncate(self, length: int) -> None:
        check_truncated(self.length, length)
        self.length, self._staged = length, 0

    def grow(self, slots: int, kept: int = 0) -> None:
        past = self._empty(slots, self.past.dtype.name)
        past[:, :, : self.length + kept] = self.past[:, :, : self.length + kept]
        self.past, self._staged = past, 0

    def _take(self, rows: Sequence[int]) -> int:
        """Check `rows` against the last run and end it: rows of a run are committed once."""
        check_rows(rows, self._staged)
        self._staged = 0
        return len(rows)


class FusedCache(_Buffer):
    """The graph's present is its past: row r of a run lies at slot length + r."""

    def __init__(self, model: ModelFacts | CacheFacts, slots: int) -> None:
        super().__init__(model, slots, "float32")

    def stage(self, rows: int) -> None:
        """A run has written `rows` rows behind the committed ones."""
        self._staged = rows

    def commit(self, rows: Sequence[int]) -> None:
        count = self._take(rows)
        # A chain's rows are in place. A tree's move down; numpy reads all of them before it writes.
        if rows[-1] != count - 1:
            self.past[:, :, self.length : self.length + count] = self.past[:, :, self.length + np.asarray(rows)]
        self.length += count


class PortableCache(_Buffer):
    """New rows come out of the graph as [2L, KVH, S, D]; only accepted ones enter the cache."""

    def __init__(self, model: ModelFacts | CacheFacts, slots: int, dtype: str) -> None:
        super().__init__(model, slots, dtype)
        self._new: Array = self.past[:, :, :0]

    def stage(self, new: Array) -> None:
        """A run has given these rows (a view is enough: pads cut off)."""
        self._new, self._staged = new, int(new.shape[2])

    def commit(self, rows: Sequence[int]) -> None:
        count = self._take(rows)
        source = self._new[:, :, :count] if rows[-1] == count - 1 else self._new[:, :, np.asarray(rows)]
        self.past[:, :, self.length : self.length + count] = source
        self.length += count
