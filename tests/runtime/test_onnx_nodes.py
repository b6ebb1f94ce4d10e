"""Nodes and their arithmetic, beside what the `onnx` package reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from spec_edge.models.contract import FileFact, GraphSpec, TensorSpec
from spec_edge.runtime.bundle import open_bundle
from spec_edge.runtime.onnx_nodes import nodes_of, operations


def test_every_node_of_a_bundle(tiny: Path) -> None:
    bundle = open_bundle(tiny)
    for graph in bundle.manifest.graphs:
        data = bundle.path(graph.file).read_bytes()
        found, model = nodes_of(data), onnx.load_from_string(data)
        assert [(n.name, n.kind, n.domain, n.inputs, n.outputs) for n in found.nodes] == [
            (n.name, n.op_type, n.domain, tuple(n.input), tuple(n.output)) for n in model.graph.node
        ]
        assert found.constants == {t.name: int(np.prod(t.dims)) for t in model.graph.initializer}


def spec(rows: int | str, last: int | str, name: str = "logits") -> GraphSpec:
    inputs = (TensorSpec("x", "float32", (1, rows, 8)),)
    width = rows if isinstance(rows, int) else None
    outputs = (TensorSpec(name, "float32", (1, last, 5)),)
    return GraphSpec("g", "target", "verify", "portable", width, 64, inputs, outputs, FileFact("g.onnx", 1, "0" * 64))


def model(*nodes: onnx.NodeProto, **constants: np.ndarray) -> bytes:
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("x", "logits")]
    data = [numpy_helper.from_array(a, n) for n, a in constants.items()]
    return helper.make_model(helper.make_graph(list(nodes), "g", info[:1], info[1:], data)).SerializeToString()


def test_a_matrix_behind_its_quantisation_counts_its_elements() -> None:
    data = model(
        helper.make_node("DequantizeLinear", ["w", "s"], ["a"], "dq"),
        helper.make_node("Transpose", ["a"], ["b"], "t"),
        helper.make_node("MatMul", ["x", "b"], ["h"], "body"),
        helper.make_node("MatMul", ["h", "h"], ["hh"], "attention"),
        helper.make_node("Gather", ["hh", "last"], ["r"], "rows"),
        helper.make_node("MatMul", ["r", "head"], ["y"], "head"),
        helper.make_node("Unsqueeze", ["y", "last"], ["logits"], "out"),
        w=np.zeros((8, 8), np.int8),
        s=np.zeros(8, np.float32),
        last=np.zeros(1, np.int64),
        head=np.zeros((8, 5), np.float32),
    )
    cost = operations(spec(16, 1), nodes_of(data))
    assert {name: c for name, c in cost.items() if c} == {"body": 2 * 16 * 64, "head": 2 * 1 * 40}
    assert {"dq", "t", "attention", "rows", "out"} <= cost.keys()
    per_row = operations(spec("S", "R"), nodes_of(data))
    assert per_row["body"] == 2 * 64 and per_row["head"] == 2 * 40


def test_a_packed_matrix_counts_what_it_stands_for() -> None:
    node = helper.make_node("MatMulNBits", ["x", "q", "s"], ["logits"], "m", domain="com.microsoft", K=8, N=5, bits=4)
    data = model(node, q=np.zeros((5, 1, 4), np.uint8), s=np.zeros(5, np.float32))
    assert operations(spec(4, 4), nodes_of(data)) == {"m": 2 * 4 * 40}
