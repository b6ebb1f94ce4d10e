"""Matrices of the weights file in the kernels' layout.

Enters: a program and the bytes of the weights file. Leaves: one block of memory that holds every matrix, once. Scales
and offsets become float16 behind a power of two of each matrix: float16 ones stay what they are, products of two keep
11 bits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spec_edge.runtime.native.library import library
from spec_edge.runtime.native.mirror import (
    BYTES,
    MATMUL,
    S8_BLOCK,
    SWIGLU,
    U4_MIDDLE,
    U4_OFFSET,
    U5_MIDDLE,
    U5_OFFSET,
    U6_SIXTEEN,
    Matrix,
)
from spec_edge.runtime.native.program import Linear, Program
from spec_edge.runtime.native.state import BLOCK, LANES, Untranslatable

FIVE, SIX = 16, 32
"""Codes of 5- and 6-bit types lie within [middle - n, middle + n)."""

TOP = 13
"""The largest scale of a matrix lies below 2 ** (TOP + 1); float16 ends at 65504."""

FARTHEST = 100
"""Powers of two that fp32 holds with room to spare."""

ALIGNED = 64
Constants = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Packed:
    """memory: of every matrix. matrices: by the names of their constants; biases is what they point at."""

    memory: NDArray[np.uint8]
    matrices: Mapping[tuple[str, ...], Matrix]
    biases: tuple[NDArray[np.float32], ...]


def key(m: Linear) -> tuple[str, ...]:
    return (m.codes, m.scale, m.offset, m.bias, f"{m.n} {m.k} {m.bits} {m.block}")


def pack(program: Program, constants: Constants) -> Packed:
    """Every matrix of the program. Untranslatable: one has codes that no form takes."""
    wanted = {key(m): m for step in program.steps if step.kind in (MATMUL, SWIGLU) for m in step.matrices}
    forms = {name: _form(m, constants[m.codes]) for name, m in wanted.items()}
    sizes = {name: _bytes(m, forms[name]) for name, m in wanted.items()}
    memory = np.empty(sum(sizes.values()) + ALIGNED, np.uint8)
    at = memory.ctypes.data + -memory.ctypes.data % ALIGNED
    matrices: dict[tuple[str, ...], Matrix] = {}
    biases: list[NDArray[np.float32]] = []
    for name, m in wanted.items():
        bias = None
        if m.bias:
            biases.append(np.zeros(-(-m.n // LANES) * LANES, np.float32))
            biases[-1][: m.n] = constants[m.bias]
            bias = biases[-1].ctypes.data
        unscale = _put(m, forms[name], constants, at)
        matrices[name] = Matrix(at, bias, m.n, m.k, forms[name], unscale)
        at += sizes[name]
    return Packed(memory, matrices, tuple(biases))


def _form(m: Linear, codes: NDArray[np.uint8]) -> int:
    if m.bits == 4:
        return U4_OFFSET if m.offset else U4_MIDDLE
    reach = library().native_reach(codes.ctypes.data, codes.size)
    if m.block >= BLOCK and reach <= FIVE:
        return U5_OFFSET if m.offset else U5_MIDDLE
    if m.offset or (m.block < BLOCK and reach > SIX):
        raise Untranslatable(f"'{m.codes}': its 8-bit codes reach {reach}, which no kernel takes here")
    return U6_SIXTEEN if m.block < BLOCK else S8_BLOCK


def _bytes(m: Linear, form: int) -> int:
    size = -(-m.n // LANES) * (m.k // BLOCK) * BYTES[form]
    return -(-size // ALIGNED) * ALIGNED


def _put(m: Linear, form: int, constants: Constants, at: int) -> float:
    """Writes one matrix at an address; what its results must be multiplied by."""
    scale = constants[m.scale]
    offset = constants[m.offset] if m.offset else None
    most = float(np.abs(scale).max(initial=0.0))
    if offset is not None:
        # what is kept is the value of code 0
        most = (8 if m.bits == 4 else FIVE) * most + float(np.abs(offset).max(initial=0.0))
    exponent = TOP - math.frexp(most)[1] if most > 0 and math.isfinite(most) else 0
    exponent = max(-FARTHEST, min(FARTHEST, exponent))
    times = math.ldexp(1.0, exponent)
    codes = constants[m.codes].ctypes.data
    place = None if offset is None else offset.ctypes.data
    library().native_pack(form, codes, scale.ctypes.data, place, m.n, m.k, m.block, times, at)
    return math.ldexp(1.0, -exponent)
