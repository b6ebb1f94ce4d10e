"""The target, any width, through the portable graph: what providers with symbolic shapes run besides the fused one.

Enters: a bundle with one "step" graph out of which the new K/V rows come. Leaves: the same as the fused session. The
cache doubles as the text grows, so that a provider sees few shapes, and every shape is bound once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spec_edge.models.contract import SpecError
from spec_edge.runtime.bundle import Bundle
from spec_edge.runtime.cache import Cache, PortableCache
from spec_edge.runtime.draft import Output
from spec_edge.runtime.providers.provider import Opened, Opener
from spec_edge.runtime.sessions.any_width import CHUNK, AnyWidthSession, step_graph
from spec_edge.runtime.sessions.features import widths
from spec_edge.runtime.sessions.fused import BLOCKED, FIRST, Arrays
from spec_edge.runtime.sessions.rows import rotary

MISSING = "this bundle has no any-width portable graph; export the model again"

Key = tuple[int, int, frozenset[str]]


@dataclass(frozen=True)
class _Run:
    """A call and what it reads and writes. new: [2L, KVH, S, D], the K/V rows that come out."""

    call: Callable[[], None]
    inputs: Arrays
    outputs: Arrays
    new: NDArray[Any]


class PortableSession(AnyWidthSession):
    """The `Session` of protocols.py."""

    def __init__(self, bundle: Bundle, opener: Opener) -> None:
        super().__init__(bundle.manifest.model)
        graph = step_graph(bundle, "portable", MISSING)
        self._dtype = next(t.dtype for t in graph.inputs if t.name == "past_key.0")
        self._opened: Opened | None = opener(graph)
        self.assignment = self._opened.placement
        self._past = PortableCache(self._model, min(FIRST, self.capacity), self._dtype)
        self._widest = max(CHUNK, self.max_width)
        per_row = 2 * self._model.layers * self._model.kv_heads * self._model.head_dim
        self._new = np.zeros(per_row * self._widest, self._dtype)
        self._logits = np.zeros((self.max_width, self.vocab_size), self._dtype)
        self._rebind()

    @property
    def _cache(self) -> Cache:
        return self._past

    def close(self) -> None:
        self._runs.clear()
        if self._opened is not None:
            self._opened.close()
        self._opened = None

    def _reserve(self, rows: int, spare: int = 0) -> None:
        slots = self._slots_for(rows, spare, self._past.slots)
        if slots > self._past.slots:
            self._past.grow(slots)
            self._rebind()

    def _rebind(self) -> None:
        """Start over after the cache moved."""
        self._runs: dict[Key, _Run] = {}
        self._bias = np.full((self._widest, self._past.slots), BLOCKED, self._dtype)
        self._seen = 0

    def _run(
        self, ids: Sequence[int], depths: NDArray[np.int64], mask: NDArray[np.bool_], rows: NDArray[np.int32]
    ) -> Output:
        run = self._bound(len(ids), rows)
        run.inputs["input_ids"][0] = ids
        run.inputs["cos"][0, 0], run.inputs["sin"][0, 0] = rotary(self._model.rope, self.length + depths)
        run.inputs["bias_new"][0, 0] = np.where(mask, 0, BLOCKED)
        self._show_past()
        run.call()
        self._past.stage(run.new)
        wanted = {name: run.outputs[name][0].astype(np.float32, copy=False) for name in self.wants & run.outputs.keys()}
        return Output(run.outputs["logits"][0].astype(np.float32, copy=False), **wanted)

    def _show_past(self) -> None:
        """Open or close the columns between the last run's length and this one's."""
        seen, length = self._seen, self.length
        self._bias[:, seen:length] = 0
        self._bias[:, length:seen] = BLOCKED
        self._seen = length

    def _bound(self, size: int, rows: NDArray[np.int32]) -> _Run:
        """`rows` is a function of the shape: all of them, or the last."""
        key = (size, len(rows), self.wants)
        if key not in self._runs:
            if self._opened is None:
                raise SpecError("this session is closed")
            self._runs[key] = self._bind(self._opened, size, rows)
        return self._runs[key]

    def _bind(self, opened: Opened, size: int, rows: NDArray[np.int32]) -> _Run:
        model, past = self._model, self._past.past
        shape = (*past.shape[:2], size, past.shape[3])
        new = self._new[: np.prod(shape)].reshape(shape)
        slots = [f"{kind}.{i}" for i in range(model.layers) for kind in ("key", "value")]
        inputs: Arrays = {
            "input_ids": np.zeros((1, size), np.int32),
            "rows": rows,
            "cos": np.zeros((1, 1, size, model.head_dim), self._dtype),
            "sin": np.zeros((1, 1, size, model.head_dim), self._dtype),
            "bias_past": self._bias[None, None, :size],
            "bias_new": np.zeros((1, 1, size, size), self._dtype),
        }
        inputs |= {f"past_{name}": past[i][None] for i, name in enumerate(slots)}
        outputs: Arrays = {"logits": self._logits[None, : len(rows)]}
        wanted = (item for item in widths(model).items() if item[0] in self.wants)
        outputs |= {name: np.zeros((1, size, width), self._dtype) for name, width in wanted}
        outputs |= {f"new_{name}": new[i][None] for i, name in enumerate(slots)}
        return _Run(opened.bind(inputs, outputs), inputs, outputs, new)
