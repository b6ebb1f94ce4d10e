"""What sessions over a fused any-width graph share: one past = present buffer, one mask, bindings kept by shape.

Enters: an opened graph and the shape of its cache. Leaves: runs over persistent numpy buffers, bound once per shape, so
that a run rewrites a few numbers and copies neither the cache nor what comes out. Buffers are the CPU's: another
provider that takes such a graph copies them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spec_edge.models.contract import CacheFacts, ModelFacts, SpecError
from spec_edge.runtime.cache import FusedCache
from spec_edge.runtime.providers.provider import Opened

FIRST = 256
"""Slots of a fresh cache."""

BLOCKED = -1e4
"""Bias of a key that a row must not see: finite, and its softmax weight is exactly 0 in fp32 and fp16."""

Array = NDArray[Any]
Arrays = dict[str, Array]


@dataclass(frozen=True)
class FusedRun:
    """A call and the buffers that it reads and writes, by the graph's names, in the graph's shapes."""

    call: Callable[[], None]
    inputs: Arrays
    outputs: Arrays


class FusedGraph:
    """One graph with its cache.

    capacity  most slots; the buffer begins small and doubles
    widest    most rows of a run
    """

    runs: dict[Hashable, FusedRun]
    _bias: NDArray[np.float32]
    _dirty: NDArray[np.float32]

    def __init__(self, opened: Opened, shape: ModelFacts | CacheFacts, capacity: int, widest: int) -> None:
        self._opened: Opened | None = opened
        self._layers, self._capacity, self._widest = shape.layers, capacity, widest
        self.cache = FusedCache(shape, min(FIRST, capacity))
        self._rebind()

    def reserve(self, rows: int, spare: int = 0, kept: int = 0) -> None:
        """Room for `rows` behind the committed ones, of which the first `kept` hold something. SpecError: too many."""
        need = self.cache.length + rows
        if need > self._capacity:
            raise SpecError(f"{need} tokens do not fit into the context of {self._capacity}")
        slots = self.cache.slots
        if need <= slots:
            return
        while slots < need + spare:
            slots *= 2
        self.cache.grow(min(slots, self._capacity), kept)
        self._rebind()

    def bound(self, key: Hashable, size: int, make: Callable[[], tuple[Arrays, Arrays]]) -> FusedRun:
        """The run of `size` rows known by `key`; `make` gives inputs and outputs that are not every such graph's."""
        run = self.runs.get(key)
        if run is None:
            if self._opened is None:  # closing forgets every run
                raise SpecError("this session is closed")
            run = self.runs[key] = self._bind(self._opened, size, *make())
        return run

    def run(self, run: FusedRun, mask: NDArray[np.bool_], kept: int = 0) -> None:
        """mask [rows, kept + rows]: which columns behind the committed ones each row sees; the first `kept` of them
        hold rows of earlier runs. The new rows lie behind those."""
        rows, columns = mask.shape
        run.inputs["seqlens_k"][0] = self.cache.length + columns - 1
        self._write_bias(mask, rows, columns)
        run.call()
        self.cache.stage(0 if kept else rows)

    def close(self) -> None:
        self.runs.clear()
        if self._opened is not None:
            self._opened.close()
        self._opened = None

    def _write_bias(self, mask: NDArray[np.bool_], rows: int, columns: int) -> None:
        """Bias of the new columns; committed ones and those behind are 0 (the kernel reads none behind)."""
        if self._dirty.size:
            self._dirty[...] = 0
        start = self.cache.length
        self._dirty = self._bias[: 0 if mask.all() else rows, start : start + columns]
        if self._dirty.size:
            self._dirty[~mask] = BLOCKED

    def _rebind(self) -> None:
        """Start over after the buffers moved."""
        self.runs = {}
        self._bias = np.zeros((self._widest, self.cache.slots), np.float32)
        self._dirty = self._bias[:0, :0]

    def _bind(self, opened: Opened, size: int, inputs: Arrays, outputs: Arrays) -> FusedRun:
        slots = self.cache.slots
        inputs = inputs | {
            "position_ids": np.zeros((1, size), np.int64),
            "seqlens_k": np.zeros(1, np.int32),
            "total_len": np.array([slots], np.int32),
            "bias": self._bias[:size].reshape(1, 1, size, slots),
        }
        for i in range(self._layers):
            for kind, part in (("key", self.cache.past[2 * i]), ("value", self.cache.past[2 * i + 1])):
                inputs[f"past_{kind}.{i}"] = outputs[f"present_{kind}.{i}"] = part[None]
        return FusedRun(opened.bind(inputs, outputs), inputs, outputs)
