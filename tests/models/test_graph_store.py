"""The weights file: alignment, one copy per key, the hash, and errors in one line."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from spec_edge.models.contract import SpecError
from spec_edge.models.store import ALIGNMENT, WeightStore

ARRAYS = hnp.arrays(
    st.sampled_from([np.float32, np.float16, np.uint8, np.int64]), hnp.array_shapes(max_dims=3, max_side=9)
)


@given(st.lists(ARRAYS, max_size=6))
def test_every_tensor_comes_back_from_its_region(
    tmp_path_factory: pytest.TempPathFactory, arrays: list[np.ndarray]
) -> None:
    path = tmp_path_factory.mktemp("store") / "weights.bin"
    with WeightStore(path) as store:
        regions = [store.add(f"t{i}", a) for i, a in enumerate(arrays)]
        again = [store.add(f"t{i}", a) for i, a in enumerate(arrays)]
        fact = store.fact()
    raw = path.read_bytes()
    assert again == regions
    assert (fact.file, fact.bytes, fact.sha256) == ("weights.bin", len(raw), hashlib.sha256(raw).hexdigest())
    for region, array in zip(regions, arrays, strict=True):
        assert region.offset % ALIGNMENT == 0
        found = np.frombuffer(raw[region.offset : region.offset + region.length], np.dtype(region.dtype))
        assert found.reshape(region.shape).tobytes() == array.tobytes()


def test_one_key_one_content(tmp_path: Path) -> None:
    with WeightStore(tmp_path / "weights.bin") as store:
        store.add("a", np.zeros(3, np.float32))
        with pytest.raises(SpecError, match="two different tensors are called a"):
            store.add("a", np.zeros(4, np.float32))


def test_a_region_read_under_another_shape(tmp_path: Path) -> None:
    with WeightStore(tmp_path / "weights.bin") as store:
        region = store.add("a", np.zeros((2, 3, 4), np.uint8))
    assert region.viewed((2, 12)).shape == (2, 12)
    assert region.viewed((2, 12)).offset == region.offset
    with pytest.raises(SpecError, match="cannot be read as"):
        region.viewed((5, 5))


def test_what_the_system_says_passes(tmp_path: Path) -> None:
    """The staging of an export says it in one line, with the folder that the user named."""
    with pytest.raises(FileNotFoundError):
        WeightStore(tmp_path / "missing" / "weights.bin")
