"""A graph on the native kernels.

Enters: a graph file of the fused lowering and the weights file. Leaves: an `Opened`: runs over the session's own
arrays, whose scratch memory all runs share.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spec_edge.models.contract import GraphSpec
from spec_edge.runtime.native.library import library
from spec_edge.runtime.native.mirror import MOST, NONE, Floats, Matrix, Quantised, Run, Stage, Table
from spec_edge.runtime.native.pack import key, pack
from spec_edge.runtime.native.program import Program, Step, names
from spec_edge.runtime.native.state import BLOCK, Untranslatable
from spec_edge.runtime.native.translate import translate
from spec_edge.runtime.onnx_nodes import nodes_of
from spec_edge.runtime.onnx_tensors import Tensor, tensors_of
from spec_edge.runtime.providers.provider import Array, ProviderFailed

NAME = "native"
WRONG = {1: "token", 2: "position", 3: "row", 4: "place in the cache"}
"""What native_run says, in words."""

QUERIES_AT_ONCE, SPARE = 4, 8
"""Queries that share a thread's scores, and numbers behind those of each, for a last vector."""


def untranslatable(data: bytes, graph: GraphSpec) -> str:
    """Why a graph has no program, "" where it has one. data: the bytes of its file."""
    try:
        translate(nodes_of(data).nodes, tensors_of(data), graph)
    except Untranslatable as error:
        return str(error)
    return ""


class NativeOpened:
    """The `Opened` of provider.py."""

    def __init__(self, model: Path, weights: Path, graph: GraphSpec, threads: int) -> None:
        """ProviderFailed: the graph holds something that has no kernel, or there is no memory."""
        data = model.read_bytes()
        found, tensors = nodes_of(data), tensors_of(data)
        self._graph = graph
        self.placement: Mapping[str, int] = {NAME: len(found.nodes)}
        try:
            self._program = translate(found.nodes, tensors, graph)
            self._stages = self._prepare(tensors, weights)
        except Untranslatable as error:
            raise ProviderFailed(f"{graph.file.file} has no native form: {error}") from None
        except MemoryError:
            raise ProviderFailed(f"there is no memory for {graph.file.file}; close other programs") from None
        self._scratch = _Scratch(self._program)
        self._pool = library().native_pool(threads, len(self._program.steps))
        if not self._pool:
            raise ProviderFailed("the system gives no memory for threads")
        self.threads = library().native_threads(self._pool)

    def bind(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> Callable[[], None]:
        """As provider.py says; past and present of a layer must be one array."""
        if not self._pool:
            raise ProviderFailed("this graph is closed")
        return _Bound(self, inputs, outputs, self._scratch.of(inputs["input_ids"].shape[1])).run

    def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool:
            library().native_free(pool)

    def _prepare(self, tensors: Mapping[str, Tensor], weights: Path) -> Any:
        """The stages with their constants in memory: matrices packed, small ones copied, tables left in the file."""
        tables = {
            n for s in self._program.steps if s.table for n in (s.table.codes, s.table.scale, s.table.offset) if n
        }
        wanted = set(names(self._program))
        self._file = np.memmap(weights, np.uint8, "r")
        kept = {name: np.asarray(tensors[name].array(self._file)) for name in tables}
        passing = np.memmap(weights, np.uint8, "r")  # what is packed is mapped apart, so that it leaves memory again
        constants = {name: np.asarray(tensors[name].array(passing)) for name in wanted}
        self._packed = pack(self._program, constants)
        small = {n for s in self._program.steps for n in (s.gamma, s.cos, s.sin) if n}
        kept |= {name: np.array(constants[name]) for name in small}
        self._kept = kept
        self.vocabulary = min((len(kept[s.table.codes]) for s in self._program.steps if s.table), default=0)
        self.positions = min((len(kept[s.cos]) for s in self._program.steps if s.cos), default=0)
        stages = (Stage * len(self._program.steps))()
        for stage, step in zip(stages, self._program.steps, strict=True):
            self._fill(stage, step)
        return stages

    def _fill(self, stage: Stage, step: Step) -> None:
        f, q = (*step.f, *[NONE] * (4 - len(step.f))), (*step.q, *[NONE] * (2 - len(step.q)))
        columns = step.columns or tuple(m.column for m in step.matrices)
        stage.kind, stage.count, stage.width = step.kind, len(step.matrices), step.width
        stage.f0, stage.f1, stage.f2, stage.f3 = f
        stage.q0, stage.q1 = q
        stage.columns = (*columns, *[0] * (MOST - len(columns)))
        stage.first = step.first
        if (of := step.heads) is not None:
            stage.layer, stage.heads, stage.kv_heads, stage.dim = of.layer, of.heads, of.kv_heads, of.dim
        stage.epsilon, stage.scale = step.epsilon, step.scale
        for field in ("gamma", "cos", "sin"):
            if name := getattr(step, field):
                setattr(stage, field, self._kept[name].ctypes.data)
        matrices = [self._packed.matrices[key(m)] for m in step.matrices]
        stage.matrices = (Matrix * MOST)(*matrices)
        if (table := step.table) is not None:
            places = [
                self._kept[name].ctypes.data if name else None for name in (table.codes, table.scale, table.offset)
            ]
            n, columns_ = self._kept[table.codes].shape
            middle = 1 << (table.bits - 1)
            stage.table = Table(*places, n, columns_ * 8 // table.bits, table.block, table.bits, middle)


class _Scratch:
    """Memory of the program's buffers for runs of up to some rows; a wider run gets new memory."""

    def __init__(self, program: Program) -> None:
        self._program, self._rows = program, 0
        self._floats: list[NDArray[np.float32]] = []
        self._quantised: list[tuple[Array, ...]] = []

    def of(self, rows: int) -> _Scratch:
        """One with room for `rows`: itself, or a copy of its lists with new arrays."""
        if rows > self._rows:
            self._rows = rows
            self._floats = [np.zeros((0 if b.output else rows, b.width), np.float32) for b in self._program.floats]
            self._quantised = [_quantised(rows, b.width) for b in self._program.quantised]
        return self

    def floats(self, outputs: Mapping[str, Array], rows: int) -> tuple[Any, list[Array]]:
        """(the structures, what they point at): an output that nobody wants still needs memory."""
        arrays: list[Array] = []
        for buffer, array in zip(self._program.floats, self._floats, strict=True):
            wanted = outputs.get(buffer.output) if buffer.output else array
            arrays.append(np.zeros((rows, buffer.width), np.float32) if wanted is None else wanted)
        pairs = zip(arrays, self._program.floats, strict=True)
        return (Floats * len(arrays))(*(Floats(a.ctypes.data, b.width, b.asked) for a, b in pairs)), arrays

    def quantised(self) -> tuple[Any, list[tuple[Array, ...]]]:
        pairs = zip(self._quantised, self._program.quantised, strict=True)
        made = (Quantised * len(self._quantised))(*(Quantised(*(a.ctypes.data for a in p), b.width) for p, b in pairs))
        return made, list(self._quantised)


def _quantised(rows: int, width: int) -> tuple[Array, ...]:
    blocks = (rows, width // BLOCK)
    return np.zeros((rows, width), np.int8), np.zeros(blocks, np.float32), np.zeros(blocks, np.float32)


class _Bound:
    """One shape of run. What it points at stays alive with it."""

    def __init__(
        self, opened: NativeOpened, inputs: Mapping[str, Array], outputs: Mapping[str, Array], scratch: _Scratch
    ) -> None:
        self._opened = opened
        self._alive: list[object] = [dict(inputs), dict(outputs)]
        self._rows, self._asked = inputs["input_ids"].shape[1], len(inputs["rows"])
        bias = inputs["bias"]
        slots = bias.shape[-1]
        self._run = Run(count=len(opened._stages), rows=self._rows, asked=self._asked, slots=slots)
        self._run.stages = opened._stages
        floats, arrays = scratch.floats(outputs, self._rows)
        quantised, parts = scratch.quantised()
        self._run.floats, self._run.quantised = floats, quantised
        self._alive += [floats, quantised, arrays, parts]
        self._run.ids = self._address(inputs["input_ids"], np.int32)
        self._run.asked_rows = self._address(inputs["rows"], np.int32)
        self._run.positions = self._address(inputs["position_ids"], np.int64)
        self._run.bias = self._address(bias, np.float32)
        self._run.past = self._past(inputs, outputs, slots)
        own = max(QUERIES_AT_ONCE * (slots + SPARE), *(b.width for b in opened._program.floats))
        self._run.tables = own
        self._run.scores = self._new(np.zeros(opened.threads * own, np.float32))
        self._run.prefix = self._new(np.zeros(self._rows, np.int32))
        self._run.more = self._new(np.zeros(self._rows, np.int32))
        self._run.seen = self._new(np.zeros((self._rows, slots), np.int32))
        self._run.vocabulary, self._run.positions_known = opened.vocabulary, opened.positions
        self._reference = ctypes.byref(self._run)
        self._seqlens, self._call = inputs["seqlens_k"], library().native_run

    def run(self) -> None:
        """ProviderFailed: an input names a token, position, row or place that is not there."""
        if not self._opened._pool:
            raise ProviderFailed("this graph is closed")
        self._run.before = int(self._seqlens[0]) + 1 - self._rows
        if code := self._call(self._opened._pool, self._reference):
            raise ProviderFailed(f"an input names a {WRONG[code]} that is not there")

    def _past(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array], slots: int) -> int:
        heads = {step.heads for step in self._opened._program.steps if step.heads is not None}
        layers, shapes = {of.layer for of in heads}, {(1, of.kv_heads, slots, of.dim) for of in heads}
        places = (ctypes.c_void_p * (2 * (max(layers, default=-1) + 1)))()
        for layer in layers:
            for part, kind in enumerate(("key", "value")):
                past = inputs[f"past_{kind}.{layer}"]
                present = outputs.get(f"present_{kind}.{layer}", past)
                if past.shape not in shapes or present.ctypes.data != past.ctypes.data:
                    raise ProviderFailed("the native kernels rewrite the cache in place, in one array per layer")
                places[2 * layer + part] = self._address(past, np.float32)
        self._alive.append(places)
        return ctypes.addressof(places)

    def _address(self, array: Array, dtype: Any) -> int:
        if array.dtype != dtype or not array.flags.c_contiguous:
            raise ProviderFailed(f"an array is {array.dtype}, or has gaps, where the native kernels take {dtype}")
        return int(array.ctypes.data)

    def _new(self, array: Array) -> int:
        self._alive.append(array)
        return int(array.ctypes.data)
