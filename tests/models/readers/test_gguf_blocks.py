"""Every GGUF type: our quantised form against the gguf package's own dequantisation."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from spec_edge.models import gguf_blocks
from spec_edge.models.contract import SpecError

EXACT = ("Q4_0", "Q5_0", "Q8_0", "Q6_K")
CENTRED = ("Q4_1", "Q5_1", "Q4_K", "Q5_K")
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q6_K": [208]}
"""Byte offsets of the float16 values of a block."""


def random_rows(kind: str, rows: int = 24, blocks: int = 3) -> NDArray[np.uint8]:
    """Random bytes, so that every bit pattern of the packed parts occurs; scales are finite."""
    rng = np.random.default_rng(7)
    size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][1]
    raw = rng.integers(0, 256, (rows, blocks, size), dtype=np.uint8)
    for at in HALVES.get(kind, [0, 2]):
        scales = (rng.standard_normal((rows, blocks, 1)) * 0.02).astype(np.float16)
        raw[:, :, at : at + 2] = scales.view(np.uint8)
    return raw.reshape(rows, -1)


def dequantised(raw: NDArray[np.uint8], kind: str) -> NDArray[np.float32]:
    return np.asarray(gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind]), np.float32)


@pytest.mark.parametrize("kind", EXACT)
def test_symmetric_types_are_bit_equal(kind: str) -> None:
    raw = random_rows(kind)
    found = gguf_blocks.blocks(raw, kind)
    assert found is not None
    np.testing.assert_array_equal(found.dense(), dequantised(raw, kind))
    assert found.offset is None
    assert found.bits == (4 if kind == "Q4_0" else 8)
    assert found.block == (16 if kind == "Q6_K" else 32)


@pytest.mark.parametrize("kind", CENTRED)
def test_types_with_a_minimum_agree_to_one_unit_of_the_largest_term(kind: str) -> None:
    raw = random_rows(kind)
    found = gguf_blocks.blocks(raw, kind)
    assert found is not None and found.offset is not None
    want = dequantised(raw, kind)
    largest = np.maximum(np.abs(found.offset), np.abs(found.scale) * (1 << found.bits - 1))
    unit = np.spacing(np.repeat(largest, found.block, axis=1))
    assert (np.abs(found.dense() - want) <= unit).all()
    assert (found.dense() == want).mean() > 0.8
    assert found.bits == (4 if kind.startswith("Q4") else 8)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_real_quantisation_round_trips(kind: str) -> None:
    values = np.random.default_rng(1).standard_normal((16, 128)).astype(np.float32)
    raw = gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind])
    found = gguf_blocks.blocks(raw, kind)
    assert found is not None and found.shape == (16, 128)
    assert np.abs(found.dense() - values).max() < (0.35 if kind.startswith("Q4") else 0.2)
    np.testing.assert_allclose(found.dense(), dequantised(raw, kind), rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", gguf_blocks.SUPPORTED)
def test_dense_is_the_gguf_package(kind: str) -> None:
    if kind in gguf_blocks.PLAIN:
        values = np.random.default_rng(2).standard_normal((8, 256)).astype(np.float32)
        raw = np.ascontiguousarray(gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind])).view(np.uint8)
        assert gguf_blocks.blocks(raw, kind) is None
    else:
        raw = random_rows(kind)
    np.testing.assert_array_equal(gguf_blocks.dense(raw, kind), dequantised(raw, kind))


def test_rows_are_reordered_with_their_scales() -> None:
    raw = random_rows("Q4_K")
    found = gguf_blocks.blocks(raw, "Q4_K")
    assert found is not None
    order = np.random.default_rng(3).permutation(len(raw))
    np.testing.assert_array_equal(found.rows(order).dense(), found.dense()[order])


@pytest.mark.parametrize("kind", ["Q4_1", "Q6_K", "F16"])
def test_a_weight_that_is_not_finite_is_an_error(kind: str) -> None:
    raw = random_rows(kind) if kind != "F16" else np.zeros((2, 64), np.uint8)
    at = 208 if kind == "Q6_K" else 0
    raw[0, at : at + 2] = np.frombuffer(np.float16(np.inf).tobytes(), np.uint8)
    with pytest.raises(SpecError, match="not a finite number"):
        gguf_blocks.dense(raw, kind)
    if kind != "F16":
        with pytest.raises(SpecError, match="not a finite number"):
            gguf_blocks.blocks(raw, kind)


def test_another_type_is_refused_by_name() -> None:
    with pytest.raises(SpecError, match=r"'x' is of type IQ4_XS, which is not supported\. Supported: F32, F16"):
        gguf_blocks.check_kind("IQ4_XS", "x")
