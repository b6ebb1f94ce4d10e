"""A run of one shape: the session's arrays and scratch memory behind the pointers that the kernels take.

Enters: a program, its stages and arrays. Leaves: a structure that native_run reads. Arrays are looked at here, once:
what does not have the program's own shape is refused.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spec_edge.runtime.native.mirror import EMBED, GATHER, QUERIES_AT_ONCE, ROPE, Floats, Quantised, Run
from spec_edge.runtime.native.program import Program
from spec_edge.runtime.native.state import BLOCK
from spec_edge.runtime.providers.provider import Array, ProviderFailed

SPARE = 8
"""Numbers behind a row of scores, for a last vector."""

NARROW, WIDE = 64, 256
"""Rows that scratch memory is made for: verify runs and chunks of a prompt have at most as many."""


NEEDED: Mapping[int, tuple[str, ...]] = {
    EMBED: ("input_ids",),
    GATHER: ("rows",),
    ROPE: ("position_ids", "bias", "seqlens_k"),
}
"""Inputs that the stages of a kind read."""


class Scratch:
    """Memory that all runs of a graph share, for up to `rows` rows over a cache of up to `slots`."""

    def __init__(self, program: Program, rows: int, slots: int, threads: int) -> None:
        self.rows, self.slots = rows, slots
        self.own = max(QUERIES_AT_ONCE * (slots + SPARE), *(b.width + SPARE for b in program.floats))
        self.floats = [np.zeros((rows, b.width), np.float32) for b in program.floats]  # memory comes when it is written
        self.quantised = [_quantised(rows, b.width) for b in program.quantised]
        self.scores = np.zeros(threads * self.own, np.float32)
        self.prefix, self.more = np.zeros(rows, np.int32), np.zeros(rows, np.int32)
        self.seen = np.zeros((rows, slots), np.int32)

    def fits(self, rows: int, slots: int) -> bool:
        return rows <= self.rows and slots == self.slots


def rows_of(program: Program, inputs: Mapping[str, Array]) -> int:
    """Rows of a run, by its ids or by the rows that it is given. KeyError: there are neither."""
    name = next((b.input for b in program.floats if b.input), "input_ids")
    return int(inputs[name].shape[1])


def room(rows: int) -> int:
    """Rows of scratch memory for a run of `rows`: few sizes, so that few are ever made."""
    return next((size for size in (NARROW, WIDE) if rows <= size), rows)


def _quantised(rows: int, width: int) -> tuple[Array, ...]:
    """What `Quantised` points at, in its order."""
    scale, total = (np.zeros((rows, width // BLOCK), np.float32) for _ in range(2))
    return np.zeros((rows, width), np.int8), scale, total, np.zeros((rows, 2 * width // BLOCK), np.int32)


class Bound:
    """The structure, and everything that it points at."""

    def __init__(
        self, program: Program, stages: Any, inputs: Mapping[str, Array], outputs: Mapping[str, Array], scratch: Scratch
    ) -> None:
        self._alive: list[object] = [stages, dict(inputs), dict(outputs), scratch]
        needed = {name for step in program.steps for name in NEEDED.get(step.kind, ())}
        if lacking := needed - inputs.keys():
            raise KeyError(min(lacking))
        rows, slots = rows_of(program, inputs), scratch.slots
        asked = program.spread or len(inputs.get("rows", ()))
        self.run = run = Run(count=len(stages), rows=rows, asked=asked, slots=slots, tables=scratch.own)
        run.stages = stages
        run.floats = self._kept(self._floats(program, inputs, outputs, scratch, rows, asked))
        quantised = zip(scratch.quantised, program.quantised, strict=True)
        parts = [Quantised(*(a.ctypes.data for a in arrays), b.width) for arrays, b in quantised]
        run.quantised = self._kept((Quantised * len(parts))(*parts))
        run.ids = _given(inputs, "input_ids", np.int32, 1, rows)
        run.asked_rows = _given(inputs, "rows", np.int32, asked)
        run.positions = _given(inputs, "position_ids", np.int64, 1, rows)
        run.bias = _given(inputs, "bias", np.float32, 1, 1, rows, slots)
        run.past = ctypes.addressof(self._kept(_past(program, inputs, outputs, slots)))
        run.scores, run.seen = scratch.scores.ctypes.data, scratch.seen.ctypes.data
        run.prefix, run.more = scratch.prefix.ctypes.data, scratch.more.ctypes.data
        self.seqlens = inputs.get("seqlens_k")
        _given(inputs, "seqlens_k", np.int32, 1)
        self.reference = ctypes.byref(run)

    def _kept(self, thing: Any) -> Any:
        self._alive.append(thing)
        return thing

    @staticmethod
    def _floats(
        program: Program,
        inputs: Mapping[str, Array],
        outputs: Mapping[str, Array],
        scratch: Scratch,
        rows: int,
        asked: int,
    ) -> Any:
        """An output that nobody wants goes to scratch memory."""
        made = []
        for buffer, array in zip(program.floats, scratch.floats, strict=True):
            wanted = inputs[buffer.input] if buffer.input else outputs.get(buffer.output)
            size, dtype = asked if buffer.asked else rows, np.int32 if buffer.whole else np.float32
            place = array.ctypes.data if wanted is None else _address(wanted, dtype, 1, size, buffer.width)
            made.append(Floats(place, buffer.width, buffer.asked))
        if asked > scratch.rows:
            raise ProviderFailed(f"{asked} rows are asked for of {rows}")
        return (Floats * len(made))(*made)


def _past(program: Program, inputs: Mapping[str, Array], outputs: Mapping[str, Array], slots: int) -> Any:
    """Key and value of each layer, which are read and written in place."""
    heads = {step.heads.layer: step.heads for step in program.steps if step.heads is not None}
    places = (ctypes.c_void_p * (2 * (max(heads, default=-1) + 1)))()
    for layer, of in heads.items():
        for part, kind in enumerate(("key", "value")):
            past = inputs.get(f"past_{kind}.{layer}")
            if past is None:
                raise ProviderFailed(f"the graph reads a cache of layer {layer}, which the model has not")
            if outputs.get(f"present_{kind}.{layer}", past).ctypes.data != past.ctypes.data:
                raise ProviderFailed("the native kernels rewrite the cache in place: past and present are one array")
            places[2 * layer + part] = _address(past, np.float32, 1, of.kv_heads, slots, of.dim)
    return places


def _given(inputs: Mapping[str, Array], name: str, dtype: type[np.generic], *shape: int) -> int | None:
    """Where an input lies; None: the program has none of this name."""
    return _address(inputs[name], dtype, *shape) if name in inputs else None


def _address(array: NDArray[Any], dtype: type[np.generic], *shape: int) -> int:
    """Where it lies. ProviderFailed: it is another type or shape, or has gaps."""
    if array.dtype != dtype or array.shape != shape or not array.flags.c_contiguous:
        wanted = f"{np.dtype(dtype).name} {list(shape)}"
        raise ProviderFailed(f"an array is {array.dtype.name} {list(array.shape)} where the graph has {wanted}")
    return int(array.ctypes.data)
