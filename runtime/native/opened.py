"""A graph on the native kernels.

Enters: a graph file of the fused lowering and the weights file. Leaves: an `Opened`: runs over the session's own
arrays, whose scratch memory all runs share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from spec_edge.models.contract import GraphSpec
from spec_edge.runtime.native.bound import Bound, Scratch, room, rows_of
from spec_edge.runtime.native.mirror import MOST, NONE, Matrix, Stage, Table
from spec_edge.runtime.native.pack import key, pack
from spec_edge.runtime.native.program import Program, Step, names
from spec_edge.runtime.native.state import Untranslatable
from spec_edge.runtime.native.threads import Threads, shared
from spec_edge.runtime.native.translate import translate
from spec_edge.runtime.onnx_nodes import nodes_of
from spec_edge.runtime.onnx_tensors import Tensor, tensors_of
from spec_edge.runtime.providers.provider import Array, ProviderFailed

NAME = "native"
WRONG = {1: "token", 2: "position", 3: "row", 4: "place in the cache"}
"""What native_run says, in words."""


def untranslatable(data: bytes, graph: GraphSpec) -> str:
    """Why a graph has no program, "" where it has one. data: the bytes of its file."""
    try:
        _read(data, graph)
    except Untranslatable as error:
        return str(error)
    return ""


@lru_cache(maxsize=4)
def _read(data: bytes, graph: GraphSpec) -> tuple[Program, Mapping[str, Tensor], int]:
    """(the program, the graph's constants, its number of nodes), kept from the question whether there is one to the
    opening. Untranslatable: it has none."""
    try:
        nodes, tensors = nodes_of(data).nodes, tensors_of(data)
    except (ValueError, IndexError, KeyError) as error:
        raise Untranslatable(f"it cannot be read ({type(error).__name__})") from error
    return translate(nodes, tensors, graph), tensors, len(nodes)


class NativeOpened:
    """The `Opened` of provider.py. One run at a time, of all graphs with as many threads; others wait."""

    def __init__(self, model: Path, weights: Path, graph: GraphSpec, threads: int) -> None:
        """ProviderFailed: the graph holds something that has no kernel, or there is no memory."""
        try:
            self._program, tensors, nodes = _read(model.read_bytes(), graph)
            self.placement: Mapping[str, int] = {NAME: nodes}
            self._stages = self._prepare(tensors, weights)
        except Untranslatable as error:
            raise ProviderFailed(f"{graph.file.file} has no native form: {error}") from None
        except (MemoryError, OSError, ValueError) as error:
            raise ProviderFailed(f"{graph.file.file} cannot be loaded: {error or 'there is no memory'}") from None
        self._scratch: list[Scratch] = []
        self._threads: Threads | None = shared(threads)
        self.threads = self._threads.count

    def bind(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> Callable[[], None]:
        """As provider.py says; past and present of a layer must be one array."""
        if self._threads is None:
            raise ProviderFailed("this graph is closed")
        try:
            slots = inputs["bias"].shape[-1] if "bias" in inputs else 0
            scratch = self._scratch_for(rows_of(self._program, inputs), slots)
            bound = Bound(self._program, self._stages, inputs, outputs, scratch)
        except (KeyError, IndexError) as error:
            raise ProviderFailed(f"the graph lacks an input: {error}") from None
        except MemoryError:
            raise ProviderFailed("there is no memory for a run of this width; close other programs") from None
        bound.run.vocabulary, bound.run.positions_known = self.vocabulary, self.positions
        return lambda: self._run(bound)

    def close(self) -> None:
        if (threads := self._threads) is not None and threads.here:
            with threads.lock:  # after a run that is going on
                self._threads = None
        self._threads = None

    def _run(self, bound: Bound) -> None:
        """ProviderFailed: an input names a token, position, row or place that is not there."""
        if (threads := self._threads) is None:
            raise ProviderFailed("this graph is closed")
        threads.ours()
        with threads.lock:
            if self._threads is None:
                raise ProviderFailed("this graph is closed")
            if bound.seqlens is not None:
                bound.run.before = int(bound.seqlens[0]) + 1 - bound.run.rows
            code = threads.run(bound.reference)
        if code:
            raise ProviderFailed(f"an input names a {WRONG[code]} that is not there")

    def _scratch_for(self, rows: int, slots: int) -> Scratch:
        """Of the present cache's size only: the session binds anew when that grows."""
        self._scratch = [scratch for scratch in self._scratch if scratch.slots == slots]
        for scratch in self._scratch:
            if scratch.fits(rows, slots):
                return scratch
        self._scratch.append(Scratch(self._program, room(rows), slots, self.threads))
        return self._scratch[-1]

    def _prepare(self, tensors: Mapping[str, Tensor], weights: Path) -> Any:
        """The stages with their constants in memory: matrices packed, small ones copied, tables left in the file."""
        steps = self._program.steps
        self._file = np.memmap(weights, np.uint8, "r")
        passing = np.memmap(weights, np.uint8, "r")  # what is packed is mapped apart, so that it leaves memory again
        constants = {name: np.asarray(tensors[name].array(passing)) for name in set(names(self._program))}
        self._packed = pack(self._program, constants)
        tables = {n for s in steps if s.table for n in (s.table.codes, s.table.scale, s.table.offset) if n}
        small = {n for s in steps for n in (s.gamma, s.cos, s.sin, s.ids) if n}
        self._kept = {name: np.asarray(tensors[name].array(self._file)) for name in tables}
        self._kept |= {name: np.array(constants[name]) for name in small}
        self.vocabulary = min((len(self._kept[s.table.codes]) for s in steps if s.table), default=0)
        self.positions = min((len(self._kept[s.cos]) for s in steps if s.cos), default=0)
        stages = (Stage * len(steps))()
        for stage, step in zip(stages, steps, strict=True):
            self._fill(stage, step)
        return stages

    def _fill(self, stage: Stage, step: Step) -> None:
        f, q = (*step.f, *[NONE] * (4 - len(step.f))), (*step.q, *[NONE] * (2 - len(step.q)))
        columns = step.columns or tuple(m.column for m in step.matrices)
        stage.kind, stage.count, stage.width = step.kind, len(step.matrices), step.width
        stage.f0, stage.f1, stage.f2, stage.f3 = f
        stage.q0, stage.q1 = q
        stage.columns, stage.first = (*columns, *[0] * (MOST - len(columns))), step.first
        stage.epsilon, stage.scale = step.epsilon, step.scale
        if (of := step.heads) is not None:
            stage.layer, stage.heads, stage.kv_heads, stage.dim = of.layer, of.heads, of.kv_heads, of.dim
        for field in ("gamma", "cos", "sin", "ids"):
            if name := getattr(step, field):
                setattr(stage, field, self._kept[name].ctypes.data)
        stage.matrices = (Matrix * MOST)(*(self._packed.matrices[key(m)] for m in step.matrices))
        if (table := step.table) is not None:
            arrays = [self._kept[name] if name else None for name in (table.codes, table.scale, table.offset)]
            places = [None if array is None else array.ctypes.data for array in arrays]
            n, bytes_ = self._kept[table.codes].shape
            stage.table = Table(*places, n, bytes_ * 8 // table.bits, table.block, table.bits, 1 << (table.bits - 1))
