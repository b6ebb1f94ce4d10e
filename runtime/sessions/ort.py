"""The target on ONNX Runtime, any width, through the fused graph: what the CPU runs.

Enters: a bundle with one "step" graph whose past is its present buffer. Leaves: logits of the rows that are needed.
One session; one IO binding per shape, made once over persistent numpy buffers, so that a step rewrites a few numbers
and copies neither the cache nor logits. Buffers are the CPU's: another provider that takes this graph copies them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spec_edge.models.contract import SpecError
from spec_edge.runtime.bundle import Bundle
from spec_edge.runtime.cache import FusedCache
from spec_edge.runtime.draft import Draft, Output
from spec_edge.runtime.sessions.features import features, joined, widths
from spec_edge.runtime.sessions.opening import assignment, guarded, open_graph

WIDEST = 64
"""Rows of the widest verify run; wider drafts have not paid anywhere."""

CHUNK = 256
"""Rows of a prefill run: larger ones are no faster here and need more scratch memory."""

FIRST = 256
"""Slots of a fresh cache."""

BLOCKED = -1e4
"""Bias of a key that a row must not see: finite, and its softmax weight is exactly 0 in fp32 and fp16."""


@dataclass(frozen=True)
class _Run:
    """A binding and the numbers to rewrite before it runs. features: by name, those that are wanted."""

    binding: Any
    ids: NDArray[np.int32]
    positions: NDArray[np.int64]
    seqlens: NDArray[np.int32]
    logits: NDArray[np.float32]
    features: dict[str, NDArray[np.float32]]
    held: tuple[NDArray[Any], ...]


class OrtSession:
    """The `Session` of protocols.py."""

    _runs: dict[tuple[int, int, frozenset[str]], _Run]
    _bias: NDArray[np.float32]
    _dirty: NDArray[np.float32]

    def __init__(self, bundle: Bundle, threads: int | None = None, provider: str = "cpu") -> None:
        graphs = [g for g in bundle.graphs("target", "step") if g.lowering == "fused"]
        if not graphs:
            raise SpecError("this bundle has no any-width graph for ONNX Runtime; export it again for the target 'cpu'")
        self.wants: frozenset[str] = frozenset()
        self._model = bundle.manifest.model
        self._session = open_graph(bundle, graphs[0], provider, threads)
        self.assignment = assignment(self._session)
        self._cache = FusedCache(self._model, min(FIRST, self.capacity))
        self._logits = np.empty((self.max_width, self.vocab_size), np.float32)
        self._rebind()

    @property
    def vocab_size(self) -> int:
        return self._model.vocab_size

    @property
    def capacity(self) -> int:
        return self._model.context

    @property
    def max_width(self) -> int:
        return min(WIDEST, self.capacity)

    @property
    def length(self) -> int:
        return self._cache.length

    def prefill(self, ids: Sequence[int]) -> Output:
        """Run and commit `ids` in chunks; logits [1, V] of the last one, features of all that are wanted."""
        if not ids:
            raise SpecError("there is nothing to prefill")
        self._reserve(len(ids), spare=self.max_width)
        parts = []
        for start in range(0, len(ids), CHUNK):
            chunk = ids[start : start + CHUNK]
            size = len(chunk)
            output = self._run(chunk, np.arange(size), np.tri(size, dtype=bool), np.array([size - 1], np.int32))
            self._cache.commit(range(size))
            parts.append({name: part.copy() for name, part in features(output).items()})
        return Output(output.logits, **joined(parts))

    def verify(self, pending: int, draft: Draft) -> Output:
        """Run the pending token and the draft; logits [len(draft) + 1, V]. Commits nothing."""
        size = len(draft) + 1
        if size > self.max_width:
            raise SpecError(f"a draft of {len(draft)} tokens is wider than {self.max_width} rows")
        self._reserve(size)
        return self._run((pending, *draft.tokens), draft.depths, draft.mask, np.arange(size, dtype=np.int32))

    def commit(self, rows: Sequence[int]) -> None:
        self._cache.commit(rows)

    def truncate(self, length: int) -> None:
        self._cache.truncate(length)

    def close(self) -> None:
        self._runs.clear()
        self._session = None

    def _run(
        self, ids: Sequence[int], depths: NDArray[np.int64], mask: NDArray[np.bool_], rows: NDArray[np.int32]
    ) -> Output:
        if self._session is None:
            raise SpecError("this session is closed")
        if min(ids) < 0 or max(ids) >= self.vocab_size:
            raise SpecError(f"token ids must be within 0..{self.vocab_size - 1}")
        run = self._bound(len(ids), rows)
        run.ids[0] = ids
        np.add(depths, self.length, out=run.positions[0])
        run.seqlens[0] = self.length + len(ids) - 1
        self._write_bias(mask)
        guarded("ONNX Runtime failed", lambda: self._session.run_with_iobinding(run.binding))
        self._cache.stage(len(ids))
        return Output(run.logits, **run.features)

    def _write_bias(self, mask: NDArray[np.bool_]) -> None:
        """Bias of the new columns; committed ones and those behind are 0 (the kernel reads none behind)."""
        self._dirty[...] = 0
        size, start = len(mask), self.length
        self._dirty = self._bias[:size, start : start + size]
        self._dirty[mask == 0] = BLOCKED

    def _reserve(self, rows: int, spare: int = 0) -> None:
        """Room for `rows` more; the buffer doubles, up to the context."""
        need = self.length + rows
        if need > self.capacity:
            raise SpecError(f"{need} tokens do not fit into the context of {self.capacity}")
        slots = self._cache.slots
        if need <= slots:
            return
        while slots < need + spare:
            slots *= 2
        self._cache.grow(min(slots, self.capacity))
        self._rebind()

    def _rebind(self) -> None:
        """Start over after the buffers moved."""
        self._runs = {}
        self._bias = np.zeros((max(CHUNK, self.max_width), self._cache.slots), np.float32)
        self._dirty = self._bias[:0, :0]

    def _bound(self, size: int, rows: NDArray[np.int32]) -> _Run:
        key = (size, len(rows), self.wants)
        if key not in self._runs:
            self._runs[key] = self._bind(size, rows)
        return self._runs[key]

    def _bind(self, size: int, rows: NDArray[np.int32]) -> _Run:
        """All inputs and outputs by address. The rows are a function of the shape: all of them, or the last."""
        slots = self._cache.slots
        ids, positions = np.zeros((1, size), np.int32), np.zeros((1, size), np.int64)
        seqlens, total = np.zeros(1, np.int32), np.array([slots], np.int32)
        bias = self._bias[:size].reshape(1, 1, size, slots)
        logits = self._logits[: len(rows)]
        features = {n: np.zeros((size, w), np.float32) for n, w in widths(self._model).items() if n in self.wants}
        inputs: dict[str, NDArray[Any]] = {
            "input_ids": ids,
            "position_ids": positions,
            "seqlens_k": seqlens,
            "total_len": total,
        }
        inputs |= {"bias": bias, "rows": rows}
        outputs: dict[str, NDArray[Any]] = {"logits": logits[None]}
        outputs |= {name: array[None] for name, array in features.items()}
        for i in range(self._model.layers):
            for kind, part in (("key", self._cache.past[2 * i]), ("value", self._cache.past[2 * i + 1])):
                inputs[f"past_{kind}.{i}"] = outputs[f"present_{kind}.{i}"] = part[None]
        binding = self._session.io_binding()
        for name, array in inputs.items():
            binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
        for name, array in outputs.items():
            binding.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
        held = (*inputs.values(), *outputs.values())
        return _Run(binding, ids, positions, seqlens, logits, features, held)
