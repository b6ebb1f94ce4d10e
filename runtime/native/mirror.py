"""The structures of `src/native.h`, field by field."""

from __future__ import annotations

from ctypes import POINTER, Structure, c_float, c_int32, c_void_p, sizeof

EMBED, NORM, QUANTISE, GATHER, MATMUL, SWIGLU, ROPE, ATTEND, JOIN, SPREAD, TOP = range(11)
"""What a stage does."""

U4_OFFSET, U4_MIDDLE, U5_OFFSET, U5_MIDDLE, U6_SIXTEEN, S8_BLOCK = range(6)
"""How a matrix is packed."""

WIDEST_HEAD, QUERIES_AT_ONCE, MOST_BEST = 256, 8, 16
"""Numbers of the widest head; queries that attention takes together; the most that a TOP stage gives."""

MOST = 4
"""Matrices of one stage."""

NONE = -1
"""No buffer."""


class Matrix(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("bias", c_void_p),
        ("n", c_int32),
        ("k", c_int32),
        ("form", c_int32),
        ("unscale", c_float),
    ]


class Quantised(Structure):
    _fields_ = [
        ("q", c_void_p),
        ("scale", c_void_p),
        ("sum", c_void_p),
        ("minus32", c_void_p),
        ("k", c_int32),
    ]


class Table(Structure):
    _fields_ = [
        ("codes", c_void_p),
        ("scale", c_void_p),
        ("offset", c_void_p),
        ("n", c_int32),
        ("k", c_int32),
        ("block", c_int32),
        ("bits", c_int32),
        ("middle", c_int32),
    ]


class Stage(Structure):
    _fields_ = [
        ("kind", c_int32),
        ("count", c_int32),
        ("layer", c_int32),
        ("width", c_int32),
        ("f0", c_int32),
        ("f1", c_int32),
        ("f2", c_int32),
        ("f3", c_int32),
        ("q0", c_int32),
        ("q1", c_int32),
        ("columns", c_int32 * 4),
        ("first", c_int32 * 2),
        ("heads", c_int32),
        ("kv_heads", c_int32),
        ("dim", c_int32),
        ("epsilon", c_float),
        ("scale", c_float),
        ("gamma", c_void_p),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("ids", c_void_p),
        ("matrices", Matrix * MOST),
        ("table", Table),
    ]


class Floats(Structure):
    _fields_ = [("data", c_void_p), ("width", c_int32), ("asked", c_int32)]


class Run(Structure):
    _fields_ = [
        ("stages", POINTER(Stage)),
        ("floats", POINTER(Floats)),
        ("quantised", POINTER(Quantised)),
        ("ids", c_void_p),
        ("asked_rows", c_void_p),
        ("positions", c_void_p),
        ("past", c_void_p),
        ("bias", c_void_p),
        ("scores", c_void_p),
        ("prefix", c_void_p),
        ("more", c_void_p),
        ("seen", c_void_p),
        ("count", c_int32),
        ("rows", c_int32),
        ("asked", c_int32),
        ("slots", c_int32),
        ("before", c_int32),
        ("tables", c_int32),
        ("vocabulary", c_int32),
        ("positions_known", c_int32),
    ]


VERSION = 4
"""Of what Python and the kernels agree on; a change of either side's meaning makes it another."""

BYTES = {U4_OFFSET: 160, U4_MIDDLE: 144, U5_OFFSET: 192, U5_MIDDLE: 176, U6_SIXTEEN: 224, S8_BLOCK: 272}
"""Of a block of 8 rows, by form."""

FACTS = (
    VERSION,
    *(sizeof(kind) for kind in (Run, Stage, Matrix, Table, Floats, Quantised)),
    WIDEST_HEAD,
    QUERIES_AT_ONCE,
    MOST_BEST,
    *BYTES.values(),
)
"""What native_facts says, in its order."""
