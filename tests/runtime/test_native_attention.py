"""Attention of the native kernels against numpy in float64, and bit by bit against itself."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from spec_edge.runtime.native.library import instructions, library
from spec_edge.runtime.native.mirror import ATTEND, NONE, QUERIES_AT_ONCE, Floats, Run, Stage

pytestmark = pytest.mark.usefixtures("instruction_set")

F32 = NDArray[np.float32]
SHUT = np.float32(-1e4)


def attend(queries: F32, keys: F32, values: F32, bias: F32, before: int, threads: int = 1) -> F32:
    """[rows, heads * dim]. queries [rows, heads, dim]; keys, values [kv_heads, slots, dim]; bias [rows, slots]."""
    rows, heads, dim = queries.shape
    kv_heads, slots, _ = keys.shape
    out, own = np.full((rows, heads * dim), np.nan, np.float32), QUERIES_AT_ONCE * (slots + 8)
    queries = np.ascontiguousarray(queries)
    floats = (Floats * 2)(Floats(queries.ctypes.data, heads * dim, 0), Floats(out.ctypes.data, heads * dim, 0))
    stage = Stage(kind=ATTEND, f0=0, f1=1, f2=NONE, f3=NONE, q0=NONE, q1=NONE, heads=heads, kv_heads=kv_heads, dim=dim)
    stage.scale = dim**-0.5
    past = (ctypes.c_void_p * 2)(keys.ctypes.data, values.ctypes.data)
    scores = np.zeros(threads * own + 8, np.float32)
    prefix, more, seen = np.zeros(rows, np.int32), np.zeros(rows, np.int32), np.zeros((rows, slots), np.int32)
    run = Run(count=1, rows=rows, slots=slots, before=before, tables=own, bias=bias.ctypes.data)
    run.stages, run.floats, run.past = ctypes.pointer(stage), floats, ctypes.addressof(past)
    run.scores, run.seen = scores.ctypes.data, seen.ctypes.data
    run.prefix, run.more = prefix.ctypes.data, more.ctypes.data
    pool = library().native_pool(threads)
    try:
        assert library().native_run(pool, ctypes.byref(run)) == 0
    finally:
        library().native_free(pool)
    return out


def exact(queries: F32, keys: F32, values: F32, bias: F32) -> NDArray[np.float64]:
    rows, heads, dim = queries.shape
    share = heads // len(keys)
    out = np.zeros((rows, heads, dim))
    for row, head in np.ndindex(rows, heads):
        sees = bias[row] == 0
        scores = keys[head // share][sees].astype(np.float64) @ queries[row, head] * dim**-0.5
        weights = np.exp(scores - scores.max(initial=-np.inf))
        out[row, head] = weights @ values[head // share][sees] / weights.sum() if sees.any() else 0
    return out.reshape(rows, -1)


def case(rows: int, before: int, kv_heads: int, share: int, dim: int, tree: bool, seed: int) -> tuple[F32, ...]:
    """Rows that each see the slots before them and, of the run, those up to themselves or a random part of these."""
    rng = np.random.default_rng(seed)
    slots = before + rows + int(rng.integers(0, 9))
    queries = rng.normal(0, 2, (rows, kv_heads * share, dim)).astype(np.float32)
    keys, values = rng.normal(0, 1, (2, kv_heads, slots, dim)).astype(np.float32)
    sees = np.arange(slots) <= before + np.arange(rows)[:, None]
    if tree:
        sees[:, before:] &= rng.random((rows, slots - before)) < 0.6
        sees[:, :before] &= rng.random((1, before)) < 0.9
        sees[np.arange(rows), before + np.arange(rows)] = True
    return queries, keys, values, np.where(sees, np.float32(0), SHUT).astype(np.float32)


CASE = {
    "rows": st.integers(1, 12), "before": st.integers(0, 70), "kv_heads": st.integers(1, 3), "share": st.integers(1, 9),
    "dim": st.sampled_from([32, 64, 96, 128, 160, 256]), "tree": st.booleans(), "seed": st.integers(0, 99),
}  # fmt: skip


@settings(max_examples=40)
@given(**CASE)
def test_it_is_attention(rows: int, before: int, kv_heads: int, share: int, dim: int, tree: bool, seed: int) -> None:
    made = case(rows, before, kv_heads, share, dim, tree, seed)
    np.testing.assert_allclose(attend(*made, before), exact(*made), rtol=2e-5, atol=2e-6)


@settings(max_examples=40)
@given(**CASE)
def test_every_set_gives_the_same_bits(
    instruction_set: str, rows: int, before: int, kv_heads: int, share: int, dim: int, tree: bool, seed: int
) -> None:
    made = case(rows, before, kv_heads, share, dim, tree, seed)
    found = attend(*made, before, threads=1 + seed % 5)
    instructions("AVX2")
    try:
        np.testing.assert_array_equal(found, attend(*made, before))
    finally:
        instructions(instruction_set)


@settings(max_examples=30)
@given(**CASE)
def test_a_row_is_the_same_alone(
    rows: int, before: int, kv_heads: int, share: int, dim: int, tree: bool, seed: int
) -> None:
    """Whatever rows stand beside it, and wherever the slots lie that it sees."""
    queries, keys, values, bias = case(rows, before, kv_heads, share, dim, tree, seed)
    together = attend(queries, keys, values, bias, before)
    for row in range(rows):
        sees = np.flatnonzero(bias[row] == 0)
        moved = [np.ascontiguousarray(x[:, sees]) for x in (keys, values)]
        alone = attend(queries[row : row + 1], *moved, np.zeros((1, len(sees)), np.float32), len(sees) - 1)
        np.testing.assert_array_equal(alone[0], together[row])


def test_a_row_that_sees_nothing_gives_zeros() -> None:
    queries, keys, values, _ = case(2, 9, 1, 3, 64, False, 0)
    assert not attend(queries, keys, values, np.full((2, keys.shape[1]), SHUT, np.float32), 9).any()
