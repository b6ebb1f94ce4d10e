"""Medusa heads on the native kernels: the heads of PyTorch but for rounding; what has no kernel is left to others."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_edge.models.contract import FileFact, GraphSpec
from spec_edge.runtime.native.opened import NativeOpened, untranslatable
from spec_edge.runtime.native.state import Untranslatable
from spec_edge.runtime.native.translate import translate
from spec_edge.runtime.onnx_nodes import nodes_of
from spec_edge.runtime.onnx_tensors import tensors_of

pytestmark = pytest.mark.usefixtures("native_kernels")
ONE_LAYER = ("B", "vLLM-shipped")
OTHERS = ("A", "B-two-layers", "MLP", "vLLM", "vLLM-map-over-targets")


@pytest.fixture(scope="module")
def cases() -> ModuleType:
    """The checkpoints of test_medusa_graph.py."""
    spec = importlib.util.spec_from_file_location("medusa_cases", Path(__file__).with_name("test_medusa_graph.py"))
    assert spec is not None and spec.loader is not None
    module = sys.modules["medusa_cases"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def written(bundle: Any) -> tuple[Path, GraphSpec]:
    graph = bundle.graphs["fused"]
    file: Path = bundle.folder / "medusa.onnx"
    file.write_bytes(graph.model.SerializeToString())
    return file, graph.spec("medusa", FileFact(file.name, 0, ""))


@pytest.mark.parametrize("name", ONE_LAYER)
@pytest.mark.parametrize("threads", [1, 2])
def test_heads_are_those_of_pytorch(lab: Any, cases: Any, tmp_path: Path, name: str, threads: int) -> None:
    torch.manual_seed(0)
    case = cases.CASES[name]()
    bundle = cases.made(lab, tmp_path, case, precision="int8")
    file, spec = written(bundle)
    opened = NativeOpened(file, tmp_path / "weights.bin", spec, threads)
    hidden = np.zeros((1, 1, cases.H), np.float32)
    ids, values = np.zeros((1, case.count, 10), np.int32), np.zeros((1, case.count, 10), np.float32)
    run = opened.bind({"hidden": hidden}, {"top_ids": ids, "top_logprobs": values})
    for x in cases.hidden_states():
        hidden[0, 0] = x
        run()
        want = cases.laws(case, x, bundle.table)
        at = np.take_along_axis(want, ids[0].astype(np.int64), 1)
        np.testing.assert_allclose(values[0], at, atol=0.15)
        theirs = bundle.run("fused", {"hidden": hidden})
        assert (ids == theirs["top_ids"]).mean() > 0.8  # both round: neighbours may change places
        np.testing.assert_allclose(values, theirs["top_logprobs"], atol=0.05)
    opened.close()


@pytest.mark.parametrize("name", OTHERS)
def test_what_has_no_kernel_is_said(lab: Any, cases: Any, tmp_path: Path, name: str) -> None:
    torch.manual_seed(0)
    file, spec = written(cases.made(lab, tmp_path, cases.CASES[name](), precision="int8"))
    assert untranslatable(file.read_bytes(), spec)


@pytest.fixture(scope="module")
def shipped(lab: Any, cases: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, GraphSpec]:
    torch.manual_seed(0)
    made = cases.made(lab, tmp_path_factory.mktemp("shipped"), cases.CASES["vLLM-shipped"](), precision="int8")
    file, spec = written(made)
    return file.read_bytes(), spec


@settings(max_examples=150)
@given(data=st.data())
def test_no_change_ends_in_another_error(shipped: tuple[bytes, GraphSpec], mangle: Any, data: st.DataObject) -> None:
    raw, spec = shipped
    nodes, tensors = mangle(data, nodes_of(raw).nodes, tensors_of(raw))
    try:
        translate(nodes, tensors, spec)
    except Untranslatable as error:
        assert str(error) and "\n" not in str(error)
