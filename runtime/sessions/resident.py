"""The target, any width, with its cache in the device's memory: what a GPU runs.

Enters: a bundle with a portable "step" graph and the cache's "keep" graph, on a provider whose graphs are `Resident`.
Leaves: the same as the portable session. A run sends ids, positions and masks to the device and takes logits back; keys
and values stay there. Every array of a verify run is placed, so that a provider which records runs can replay it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spec_edge.models.contract import GraphSpec, SpecError
from spec_edge.runtime.bundle import Bundle
from spec_edge.runtime.cache import Committed
from spec_edge.runtime.device_cache import DeviceCache, New
from spec_edge.runtime.draft import Output
from spec_edge.runtime.providers.provider import Opener, Placed, Resident
from spec_edge.runtime.sessions.any_width import AnyWidthSession, step_graph
from spec_edge.runtime.sessions.features import widths
from spec_edge.runtime.sessions.fused import BLOCKED, FIRST
from spec_edge.runtime.sessions.portable import MISSING
from spec_edge.runtime.sessions.rows import rotary

Key = tuple[int, int, frozenset[str]]
KEPT = 16
"""Shapes of verify runs that keep their buffers on the device."""


@dataclass(frozen=True)
class _Run:
    """A call, what it reads besides the cache, what the CPU takes of it, and where its K/V rows are left."""

    call: Callable[[], None]
    inputs: dict[str, Placed]
    outputs: dict[str, Placed]
    new: New


class ResidentSession(AnyWidthSession):
    """The `Session` of protocols.py."""

    def __init__(self, bundle: Bundle, opener: Opener) -> None:
        super().__init__(bundle.manifest.model)
        graph = step_graph(bundle, "portable", MISSING)
        self._dtype = next(t.dtype for t in graph.inputs if t.name == "past_key.0")
        self._graphs: list[Resident] = []
        try:
            for spec in (graph, bundle.graphs("cache", "keep")[0]):
                self._graphs.append(_resident(opener, spec))
            self._past = DeviceCache(self._graphs[1], self._model, min(FIRST, self.capacity), self._dtype)
        except BaseException:
            self._close_graphs()
            raise
        self.assignment = _sum([opened.placement for opened in self._graphs])
        self._rebind()

    @property
    def _cache(self) -> Committed:
        return self._past

    def close(self) -> None:
        """Runs hold their graphs: they go first."""
        self._rebind()
        self._past.close()
        self._close_graphs()

    def _close_graphs(self) -> None:
        for opened in self._graphs:
            opened.close()
        self._graphs = []

    def _reserve(self, rows: int, spare: int = 0) -> None:
        slots = self._slots_for(rows, spare, self._past.slots)
        if slots > self._past.slots:
            self._rebind()  # their memory first
            self._past.grow(slots)

    def _rebind(self) -> None:
        """Forget every run: the cache moves."""
        self._runs: dict[Key, _Run] = {}
        self._prefill: tuple[Key, _Run] | None = None

    def _run(
        self, ids: Sequence[int], depths: NDArray[np.int64], mask: NDArray[np.bool_], rows: NDArray[np.int32]
    ) -> Output:
        run, size, dtype = self._bound(len(ids), rows), len(ids), self._dtype
        cos, sin = rotary(self._model.rope, self.length + depths)
        past = np.full((1, 1, size, self._past.slots), BLOCKED, dtype)
        past[..., : self.length] = 0
        written = {
            "input_ids": np.array([ids], np.int32),
            "rows": rows,
            "cos": cos[None, None].astype(dtype),
            "sin": sin[None, None].astype(dtype),
            "bias_past": past,
            "bias_new": np.where(mask, 0, BLOCKED)[None, None].astype(dtype),
        }
        for name, array in written.items():
            run.inputs[name].write(array)
        run.call()
        self._past.stage(run.new)
        wanted = {name: run.outputs[name].read()[0].astype(np.float32) for name in self.wants & run.outputs.keys()}
        return Output(run.outputs["logits"].read()[0].astype(np.float32), **wanted)

    def _bound(self, size: int, rows: NDArray[np.int32]) -> _Run:
        """`rows` is a function of the shape: all of them (a verify run), or the last. Of the latter one is kept: a
        prompt has any length, and each has buffers of its own."""
        if not self._graphs:
            raise SpecError("this session is closed")
        key = (size, len(rows), self.wants)
        if key in self._runs:
            self._runs[key] = self._runs.pop(key)  # the last used is the last to go
            return self._runs[key]
        if self._prefill is not None and self._prefill[0] == key:
            return self._prefill[1]
        verify = len(rows) == size
        if not verify:
            self._prefill = None  # its memory first
        elif len(self._runs) == KEPT:
            del self._runs[next(iter(self._runs))]
        run = self._bind(self._graphs[0], size, len(rows), verify)
        if verify:
            self._runs[key] = run
        else:
            self._prefill = key, run
        return run

    def _bind(self, graph: Resident, size: int, asked: int, verify: bool) -> _Run:
        model, slots = self._model, self._past.slots
        new = self._past.rows(size)
        inputs = {
            "input_ids": graph.place((1, size), "int32"),
            "rows": graph.place((asked,), "int32"),
            "cos": graph.place((1, 1, size, model.head_dim), self._dtype),
            "sin": graph.place((1, 1, size, model.head_dim), self._dtype),
            "bias_past": graph.place((1, 1, size, slots), self._dtype),
            "bias_new": graph.place((1, 1, size, size), self._dtype),
        }
        outputs = {"logits": graph.place((1, asked, model.vocab_size), self._dtype)}
        wanted = (item for item in widths(model).items() if item[0] in self.wants)
        outputs |= {name: graph.place((1, size, width), self._dtype) for name, width in wanted}
        past: dict[str, Any] = {f"past_{name}": part for name, part in self._past.past.items()}
        left: dict[str, Any] = {f"new_{name}": part for name, part in new.parts.items()}
        return _Run(graph.bind_placed(inputs | past, outputs | left, again=verify), inputs, outputs, new)


def _resident(opener: Opener, graph: GraphSpec) -> Resident:
    """SpecError: the provider said that its graphs keep arrays on the device, and this one does not."""
    opened = opener(graph)
    if not isinstance(opened, Resident):
        opened.close()
        raise SpecError(f"{graph.name} was opened without access to the device's memory")
    return opened


def _sum(placements: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Nodes by what runs them, of several graphs."""
    names = dict.fromkeys(name for placement in placements for name in placement)
    return {name: sum(placement.get(name, 0) for placement in placements) for name in names}
