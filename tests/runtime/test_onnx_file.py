"""A graph that spec-edge does not write is refused before ONNX Runtime sees it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from spec_edge.models.contract import FileFact, SpecError
from spec_edge.runtime import onnx_file
from spec_edge.runtime.onnx_file import check_graph

WEIGHTS = FileFact("weights.bin", 4096, "0" * 64)


def external(kind: int = TensorProto.FLOAT, dims: tuple[int, ...] = (4, 8), **place: object) -> TensorProto:
    tensor = TensorProto(name="w", data_type=kind, dims=dims, data_location=TensorProto.EXTERNAL)
    for key, value in ({"location": "weights.bin", "offset": 64, "length": 128} | place).items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def model(tensor: TensorProto | None = None, *more: onnx.NodeProto) -> onnx.ModelProto:
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, s]) for n, s in (("x", 4), ("y", 8)))
    axes = numpy_helper.from_array(np.array([0], np.int64), "axes")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"]), *more]
    graph = helper.make_graph(nodes, "g", [x], [y], [tensor or external(), axes])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def check(made: onnx.ModelProto) -> None:
    check_graph(made.SerializeToString(), "step.onnx", WEIGHTS)


def test_what_we_write_passes() -> None:
    check(model())
    check(model(external(TensorProto.UINT4, (3, 3), length=5)))
    check(model(None, helper.make_node("MatMulNBits", ["x", "w"], ["z"], domain="com.microsoft", bits=4)))


def test_every_graph_of_a_bundle_passes(tiny: Path) -> None:
    for path in tiny.glob("*.onnx"):
        check_graph(path.read_bytes(), path.name, WEIGHTS)


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (external(location="tokenizer.json"), "reads tensors from 'tokenizer.json', not from weights.bin"),
        (external(location="../../etc/passwd"), "reads tensors from '../../etc/passwd'"),
        (external(location="/etc/passwd"), "reads tensors from '/etc/passwd'"),
        (external(offset=4000), "a tensor that ends 32 bytes past the weights file"),
        (external(offset=-64), "without a place in the weights file"),
        (external(length=""), "without a place in the weights file"),
        (external(length=127), "shape [4, 8] and type 1 in 127 bytes"),
        (external(dims=(4, 9)), "shape [4, 9] and type 1 in 128 bytes"),
        (external(dims=(-4, -8)), "shape [-4, -8] and type 1"),
        (external(dims=(1 << 40, 1 << 40)), "in 128 bytes"),
        (external(TensorProto.STRING), "and type 8 in"),
        (external(checksum="x"), "an external tensor with 'checksum'"),
        (TensorProto(name="w", data_type=1, dims=[1], data_location=1), "reads tensors from ''"),
        (TensorProto(name="w", data_type=8, dims=[1], string_data=[b"x"]), "in its tensor a field 6"),
    ],
)
def test_tensors_that_lie_elsewhere(tensor: TensorProto, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        check(model(tensor))
    assert message in caught.value.message and caught.value.message.startswith("graph step.onnx ")


def branch() -> onnx.GraphProto:
    return helper.make_graph([helper.make_node("Identity", ["x"], ["b"])], "branch", [], [])


def functions(made: onnx.ModelProto) -> None:
    made.functions.add(name="f", domain="")


def training(made: onnx.ModelProto) -> None:
    made.training_info.add()


def sparse(made: onnx.ModelProto) -> None:
    made.graph.sparse_initializer.add()


def subgraph(made: onnx.ModelProto) -> None:
    made.graph.node.append(helper.make_node("If", ["c"], ["z"], then_branch=branch(), else_branch=branch()))


def constant(made: onnx.ModelProto) -> None:
    made.graph.node.append(helper.make_node("Constant", [], ["z"], value=external(location="secret")))


def foreign_set(made: onnx.ModelProto) -> None:
    made.opset_import.append(helper.make_opsetid("my.ops", 1))


def foreign(made: onnx.ModelProto) -> None:
    made.graph.node.append(helper.make_node("Run", ["x"], ["z"], domain="my.ops"))


def context(made: onnx.ModelProto) -> None:
    made.graph.node.append(helper.make_node("EPContext", ["x"], ["z"], domain="com.microsoft", ep_cache_context="/x"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (functions, "in its model a field 25"),
        (training, "in its model a field 20"),
        (sparse, "in its graph a field 15"),
        (subgraph, "in its attribute a field 6"),
        (constant, "reads tensors from 'secret'"),
        (foreign_set, "operators of 'my.ops'"),
        (foreign, "the operator 'Run' of 'my.ops'"),
        (context, "the operator 'EPContext' of 'com.microsoft'"),
    ],
)
def test_what_we_never_write(change: Callable[[onnx.ModelProto], None], message: str) -> None:
    made = model()
    change(made)
    with pytest.raises(SpecError) as caught:
        check(made)
    assert message in caught.value.message


def test_a_second_name_of_an_operator() -> None:
    """A reader takes the last of two, so a check of the first would mean nothing."""
    node = helper.make_node("MatMulNBits", ["x"], ["z"], domain="com.microsoft").SerializeToString()
    data = model().SerializeToString()
    twice = node + b"\x22\x09EPContext"
    inner = b"\x0a" + bytes([len(twice)]) + twice
    with pytest.raises(SpecError, match="says something twice"):
        check_graph(data + b"\x3a" + bytes([len(inner)]) + inner, "step.onnx", WEIGHTS)


def test_a_graph_that_is_no_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    for data in (b"not a graph", b"\x3a\xff\xff\xff\xff\x0f", b"\x3b", b"\x80" * 20):
        with pytest.raises(SpecError, match="graph x "):
            check_graph(data, "x", WEIGHTS)
    monkeypatch.setattr(onnx_file, "LIMIT", 3)
    with pytest.raises(SpecError, match="has 11 bytes, more than 3"):
        check_graph(b"not a graph", "x", WEIGHTS)


@given(at=st.integers(0, 10_000), value=st.integers(0, 255), cut=st.integers(0, 400))
def test_damage_is_one_line(at: int, value: int, cut: int) -> None:
    data = bytearray(model().SerializeToString())
    data[at % len(data)] = value
    try:
        check_graph(bytes(data[: len(data) - cut]), "x", WEIGHTS)
    except SpecError as error:
        assert "\n" not in error.message
