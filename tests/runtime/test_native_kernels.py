"""The native kernels one by one against numpy in float64."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_edge.runtime.native import pack as packing
from spec_edge.runtime.native.library import instructions, library
from spec_edge.runtime.native.mirror import (
    MATMUL,
    S8_BLOCK,
    U4_MIDDLE,
    U4_OFFSET,
    U5_MIDDLE,
    U5_OFFSET,
    U6_SIXTEEN,
    Quantised,
)
from spec_edge.runtime.native.program import Linear, Program, Step
from spec_edge.runtime.native.state import Untranslatable

pytestmark = pytest.mark.usefixtures("instruction_set")

Case = tuple[int, int, int, bool]
"""bits, block, n where codes lie within [middle - n, middle + n), offset."""

CASES: dict[int, Case] = {
    U4_OFFSET: (4, 32, 8, True),
    U4_MIDDLE: (4, 32, 8, False),
    U5_OFFSET: (8, 32, 16, True),
    U5_MIDDLE: (8, 32, 16, False),
    U6_SIXTEEN: (8, 16, 32, False),
    S8_BLOCK: (8, 32, 128, False),
}


def half(rng: np.random.Generator, low: float, high: float, *shape: int) -> np.ndarray:
    return rng.uniform(low, high, shape).astype(np.float16).astype(np.float32)


def matrix(
    case: Case, n: int, k: int, seed: int, bias: bool = False, whole: bool = False
) -> tuple[Any, Any, np.ndarray]:
    """(its constants, what packing made of it, its values [n, k]); scales are float16 ones. whole: every number is."""
    bits, block, reach, offset = case
    rng, middle = np.random.default_rng(seed), 1 << (bits - 1)
    top = middle + reach - 1
    q = rng.integers(middle - reach, top + 1, (n, k // block, block)).astype(np.uint8)
    q[0, 0, :2] = middle - reach, top
    scale = rng.choice(np.float32([1, 2, 4]), (n, k // block)) if whole else half(rng, 1e-4, 3e-4, n, k // block)
    constants = {"codes": q, "scale": scale}
    values = (q.astype(np.float64) - middle) * constants["scale"][..., None]
    if offset:
        # what the kernel keeps is the value of code 0, which is float16 in the files
        zero = rng.integers(-99, 100, scale.shape) if whole else half(rng, -1e-3, 1e-3, *scale.shape)
        shift = zero + reach * scale
        constants["offset"] = np.ascontiguousarray(shift.T.astype(np.float32))
        values += constants["offset"].T.astype(np.float64)[..., None]
    if bits == 4:
        constants["codes"] = q[..., 0::2] | q[..., 1::2] << 4
    linear = Linear(n, k, bits, block, "codes", "scale", "offset" if offset else "")
    if bias:
        constants["bias"], linear.bias = rng.normal(0, 1, n).astype(np.float32), "bias"
    packed = packing.pack(Program([Step(MATMUL, [0], [0], matrices=[linear])]), constants)
    return constants, packed, values.reshape(n, k)


def quantised(x: np.ndarray) -> tuple[Quantised, tuple[np.ndarray, ...]]:
    rows, k = x.shape
    scale, total = (np.zeros((rows, k // 32), np.float32) for _ in range(2))
    parts = (np.zeros((rows, k), np.int8), scale, total, np.zeros((rows, k // 16, 2), np.int16))
    made = Quantised(*(p.ctypes.data for p in parts), k)
    made.parts = parts  # what it points at
    library().native_quantise(np.ascontiguousarray(x).ctypes.data, ctypes.byref(made), rows)
    return made, parts


def product(packed: Any, x: Quantised, rows: int, n: int) -> np.ndarray:
    y = np.full((rows, n + 3), np.nan, np.float32)
    (m,) = packed.matrices.values()
    library().native_product(ctypes.byref(m), ctypes.byref(x), rows, y.ctypes.data, n + 3)
    assert np.isnan(y[:, n:]).all()  # nothing is written past a row's end
    return y[:, :n]


@settings(max_examples=60)
@given(
    form=st.sampled_from(sorted(CASES)),
    rows=st.integers(1, 9) | st.sampled_from([32, 50]),
    n=st.integers(1, 40),
    blocks=st.integers(1, 9),
    seed=st.integers(0, 99),
    bias=st.booleans(),
)
def test_products_are_those_of_the_values(form: int, rows: int, n: int, blocks: int, seed: int, bias: bool) -> None:
    constants, packed, values = matrix(CASES[form], n, 32 * blocks, seed, bias)
    assert [m.form for m in packed.matrices.values()] == [form]
    x = np.random.default_rng(seed).normal(0, 2, (rows, 32 * blocks)).astype(np.float32)
    made, (q, scale, *_) = quantised(x)
    exact = q.reshape(rows, -1, 32) * scale[..., None].astype(np.float64)
    want = exact.reshape(rows, -1) @ values.T + (constants["bias"] if bias else 0)
    room = 1e-6 * (np.abs(exact).reshape(rows, -1) @ np.abs(values).T) + 1e-6
    assert (np.abs(product(packed, made, rows, n) - want) <= 4 * room).all()


@pytest.mark.parametrize("k", [32, 96])
@pytest.mark.parametrize("form", sorted(CASES))
def test_products_of_whole_numbers_are_exact(form: int, k: int) -> None:
    _, packed, values = matrix(CASES[form], 45, k, k, whole=True)
    rng = np.random.default_rng(form)
    for rows in (*range(1, 10), 40):
        x = rng.integers(-127, 128, (rows, k)).astype(np.float32)
        x[:, ::32] = 127  # so that a step of the quantised row is one
        np.testing.assert_array_equal(product(packed, quantised(x)[0], rows, 45), x @ values.T)


@pytest.mark.parametrize("form", sorted(CASES))
def test_a_row_is_the_same_in_every_company(form: int) -> None:
    _, packed, _ = matrix(CASES[form], 44, 96, 3)
    x = np.random.default_rng(1).normal(0, 1, (41, 96)).astype(np.float32)
    together = product(packed, quantised(x)[0], 41, 44)
    for rows, row in [(r, at) for r in range(1, 6) for at in range(12 - r)] + [(9, 30), (31, 7), (32, 0), (33, 8)]:
        made, _parts = quantised(x[row : row + rows])
        np.testing.assert_array_equal(product(packed, made, rows, 44), together[row : row + rows])


@settings(max_examples=40)
@given(
    form=st.sampled_from(sorted(CASES)),
    rows=st.integers(1, 17) | st.sampled_from([31, 32, 33, 64, 67]),
    n=st.sampled_from([8, 19, 32, 61]),
    blocks=st.integers(1, 9) | st.sampled_from([18, 19, 40]),
    seed=st.integers(0, 99),
)
def test_every_set_of_instructions_gives_the_same_bits(
    instruction_set: str, form: int, rows: int, n: int, blocks: int, seed: int
) -> None:
    """Many rows and groups too: AVX-512 takes their codes apart first."""
    _, packed, _ = matrix(CASES[form], n, 32 * blocks, seed, True)
    made, _parts = quantised(np.random.default_rng(seed).normal(0, 2, (rows, 32 * blocks)).astype(np.float32))
    found = product(packed, made, rows, n)
    instructions("AVX2")
    try:
        np.testing.assert_array_equal(found, product(packed, made, rows, n))
    finally:
        instructions(instruction_set)


@pytest.mark.parametrize("form", sorted(CASES))
def test_the_largest_codes_and_activations_do_not_overflow(form: int) -> None:
    bits, block, reach, offset = CASES[form]
    middle, k = 1 << (bits - 1), 64
    for code in (middle - reach, middle + reach - 1):
        q = np.full((40, k // block, block), code, np.uint8)
        constants = {"codes": q if bits == 8 else q[..., 0::2] | q[..., 1::2] << 4}
        constants["scale"] = np.ones((40, k // block), np.float32)
        if offset:
            constants["offset"] = np.zeros((k // block, 40), np.float32)
        if form == S8_BLOCK:
            constants["codes"][0, 0, 0] = 0  # so that packing sees the whole range
        linear = Linear(40, k, bits, block, "codes", "scale", "offset" if offset else "")
        packed = packing.pack(Program([Step(MATMUL, [0], [0], matrices=[linear])]), constants)
        for sign in (-1.0, 1.0):
            for rows in (1, 2, 40):
                got = product(packed, quantised(np.full((rows, k), sign, np.float32))[0], rows, 40)[:, 1:]
                np.testing.assert_allclose(got, sign * k * (code - middle), rtol=1e-5)


def test_codes_that_no_kernel_takes_are_refused() -> None:
    with pytest.raises(Untranslatable, match="reach 128"):
        matrix((8, 16, 128, False), 8, 32, 0)
    with pytest.raises(Untranslatable, match="reach 100"):
        matrix((8, 32, 100, True), 8, 32, 0)
    with pytest.raises(Untranslatable, match="reach 17"):
        matrix((8, 32, 17, True), 8, 32, 0)


@given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=32, max_size=32))
def test_quantising_keeps_a_block_within_half_a_step(numbers: list[float]) -> None:
    x = np.array([numbers], np.float32)
    _, (q, scale, total, minus32) = quantised(x)
    assert np.abs(q * scale - x).max() <= 0.5001 * scale[0, 0] + 1e-30
    q = q.astype(np.int64)
    np.testing.assert_allclose(total[0, 0], scale[0, 0] * q.sum(), rtol=1e-6)
    # 16 bits that wrap: where a step is subnormal, q may be -128 and eight of them leave the range
    assert not ((minus32[0] + 32 * q.reshape(2, 4, 2, 2).sum((1, 3))) % (1 << 16)).any()


def test_a_block_of_zeros_is_zeros() -> None:
    _, parts = quantised(np.zeros((1, 32), np.float32))
    assert not any(part.any() for part in parts)


def best(x: np.ndarray, count: int, names: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """(log-probabilities, ids) of a law's best."""
    found, ids, spare = np.full(count, 7, "f4"), np.full(count, 7, "i4"), np.zeros(len(x) + 8, "f4")
    table = None if names is None else names.ctypes.data
    library().native_top(x.ctypes.data, len(x), table, count, found.ctypes.data, ids.ctypes.data, spare.ctypes.data)
    return found, ids


@given(
    st.lists(
        st.sampled_from([-9.0, -1.5, 0.0, 0.25, 3.0, 80.0, -np.inf]) | st.floats(-90, 90, width=32),
        min_size=1,
        max_size=70,
    ),
    st.integers(1, 16),
)
def test_a_laws_best_are_those_of_a_stable_sort(numbers: list[float], count: int) -> None:
    """Equals stand in the order of their columns, as ONNX Runtime's TopK leaves them."""
    x = np.array(numbers, np.float32)
    x[0] = max(x[0], -90)  # a law without a possible token is none
    count = min(count, len(x))
    names = np.random.default_rng(0).permutation(len(x)).astype(np.int32)
    order = np.argsort(-x, kind="stable")[:count]
    wide = x.astype(np.float64)
    law = wide - wide.max() - np.log(np.exp(wide - wide.max()).sum())
    for table in (None, names):
        values, ids = best(x, count, table)
        possible = np.isfinite(x[order])  # an impossible token may be any
        assert (ids[possible] == (order if table is None else table[order])[possible]).all()
        np.testing.assert_allclose(values, law[order], rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("at", [0, 5, 8, 40])
def test_a_law_with_what_is_no_number_is_none(at: int) -> None:
    x = np.zeros(41, np.float32)
    x[at] = np.nan
    assert np.isnan(best(x, 4)[0]).all()
