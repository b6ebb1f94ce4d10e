"""A K/V cache in a device's memory: rows enter it there, and never cross to the CPU.

Enters: the bundle's "keep" graph (models/keep_graph.py), opened on the device. Leaves: placed arrays that a session
binds, one [1, KVH, slots, D] for each key and value, and rows of the last run kept by a run of that graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spec_edge.models.contract import ModelFacts
from spec_edge.runtime.cache import check_rows, check_truncated
from spec_edge.runtime.providers.provider import Placed, Resident

Parts = dict[str, Placed]
"""By "key.0", "value.0", "key.1" and so on."""


@dataclass(frozen=True)
class _Keep:
    """A call of the graph for so many rows, and the two arrays that say which go where."""

    call: Callable[[], None]
    rows: NDArray[np.int64]
    at: NDArray[np.int64]


class New:
    """K/V rows that a run of `size` rows leaves on the device."""

    def __init__(self, parts: Parts, size: int) -> None:
        self.parts, self.size = parts, size
        self.keeps: dict[int, _Keep] = {}


class DeviceCache:
    """The `Committed` of cache.py. `slots`: rows it has room for now."""

    def __init__(self, graph: Resident, model: ModelFacts, slots: int, dtype: str) -> None:
        self._graph, self._model, self._dtype = graph, model, dtype
        self._names = [f"{kind}.{i}" for i in range(model.layers) for kind in ("key", "value")]
        self.slots, self.length = slots, 0
        self.past = self._parts(slots)
        self._staged: New | None = None

    def rows(self, size: int) -> New:
        """A place for the rows of runs of this size. Drop it when the cache has grown."""
        return New(self._parts(size), size)

    def stage(self, new: New) -> None:
        """A run has left its rows there."""
        self._staged = new

    def commit(self, rows: Sequence[int]) -> None:
        """Keep these rows of the last run, in order (ascending)."""
        check_rows(rows, self._staged.size if self._staged else 0)
        assert self._staged is not None
        self._keep(self._staged, rows, self.length)
        self._staged = None
        self.length += len(rows)

    def truncate(self, length: int) -> None:
        check_truncated(self.length, length)
        self.length, self._staged = length, None

    def grow(self, slots: int) -> None:
        """New arrays with the committed rows; what binds the old ones must bind again."""
        old, self.past, self.slots, self._staged = New(self.past, self.slots), self._parts(slots), slots, None
        if self.length:
            self._keep(old, range(self.length), 0)

    def close(self) -> None:
        """Give the device's memory back."""
        self.past, self._staged = {}, None

    def _parts(self, rows: int) -> Parts:
        shape = (1, self._model.kv_heads, rows, self._model.head_dim)
        return {name: self._graph.place(shape, self._dtype) for name in self._names}

    def _keep(self, new: New, rows: Sequence[int], start: int) -> None:
        """Write `rows` of `new` to the slots from `start` on."""
        count = len(rows)
        if count not in new.keeps:
            new.keeps[count] = self._bound(new, count)
        keep = new.keeps[count]
        keep.rows[...] = rows
        keep.at[..., 2] = np.arange(start, start + count)
        keep.call()

    def _bound(self, new: New, count: int) -> _Keep:
        heads = self._model.kv_heads
        rows, at = np.zeros(count, np.int64), np.zeros((1, heads, count, 3), np.int64)
        at[..., 1] = np.arange(heads)[:, None]
        inputs: dict[str, Any] = {"rows": rows, "at": at}
        inputs |= {f"past_{name}": part for name, part in self.past.items()}
        inputs |= {f"new_{name}": part for name, part in new.parts.items()}
        outputs: dict[str, Any] = {f"kept_{name}": part for name, part in self.past.items()}
        return _Keep(self._graph.bind_placed(inputs, outputs, again=False), rows, at)
