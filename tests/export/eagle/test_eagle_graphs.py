"""Signatures of the drafter's graphs as goldens.

To write them again after a wanted change: SPEC_EDGE_REGOLD=1 pytest tests/export/eagle/test_eagle_graphs.py
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import onnx
import pytest

GOLDENS = Path(__file__).parent / "goldens"
PORTABLE = (
    *("Add", "Cast", "Concat", "Div", "Gather", "Gemm", "LogSoftmax", "MatMul", "Mul", "Neg", "Pow", "ReduceMean"),
    *("Reshape", "Sigmoid", "Softmax", "Split", "Sqrt", "Squeeze", "TopK", "Transpose", "Unsqueeze"),
)


@pytest.fixture(scope="module", params=["eagle1", "eagle3.1", "eagle3.1-fp16"])
def made(request: pytest.FixtureRequest, eagle: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("graphs")
    if request.param == "eagle1":
        shape = eagle.Shape(own_head=False, fc_bias=True)
        dialect = eagle.Dialect(eagle.base_config(shape))
    else:
        shape = eagle.Shape(taps=(2, 2, 1), drafted=40, fc_norm=True, norm_output=True)
        more = {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 40}
        dialect = eagle.Dialect(eagle.base_config(shape, fc_norm=True, norm_output=True, **more), eagle.midlayer)
    drafter = eagle.write_drafter(folder / "drafter", shape, eagle.random_state(shape), dialect)
    precision = "fp16" if request.param.endswith("fp16") else "fp32"
    return request.param, eagle.make_bundle(folder / "bundle", eagle.tiny(), drafter, precision)


def test_signatures_are_the_golden_ones(made: Any) -> None:
    name, bundle = made
    graphs = [g for g in bundle.manifest.graphs if g.network == "eagle" and g.past in (None, 64)]
    roles = {"step", "prefill", "catchup", "expand"} | ({"fuse"} if name != "eagle1" else set())
    assert {g.role for g in graphs} == roles
    for graph in graphs:
        nodes = onnx.load(bundle.path(graph.file), load_external_data=False).graph.node
        found = {
            "inputs": {t.name: f"{t.dtype}{list(t.shape)}" for t in graph.inputs},
            "outputs": {t.name: f"{t.dtype}{list(t.shape)}" for t in graph.outputs},
            "borrows": list(graph.borrows),
            "operators": dict(sorted(Counter(f"{n.domain}:{n.op_type}".lstrip(":") for n in nodes).items())),
        }
        file = GOLDENS / f"{name}-{graph.name}.json"
        if os.environ.get("SPEC_EDGE_REGOLD"):
            file.parent.mkdir(exist_ok=True)
            file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        assert json.loads(file.read_text(encoding="utf-8")) == found


def test_portable_graphs_are_plain_operators(made: Any) -> None:
    _, bundle = made
    for graph in bundle.manifest.graphs:
        if graph.network == "eagle" and graph.lowering == "portable":
            path = bundle.path(graph.file)
            onnx.checker.check_model(path, full_check=True)
            model = onnx.load(path, load_external_data=False)
            assert {n.op_type for n in model.graph.node} <= set(PORTABLE) and not any(
                n.domain for n in model.graph.node
            )
            assert all(d.dim_value for t in model.graph.input for d in t.type.tensor_type.shape.dim)


def test_one_weights_file_serves_all(made: Any) -> None:
    _, bundle = made
    for graph in bundle.manifest.graphs:
        model = onnx.load(bundle.path(graph.file), load_external_data=False)
        large = [t for t in model.graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL]
        assert {e.value for t in large for e in t.external_data if e.key == "location"} == {
            bundle.manifest.weights.file
        }
        inline = [t for t in model.graph.initializer if t.data_location != onnx.TensorProto.EXTERNAL]
        assert sum(t.ByteSize() for t in inline) < 4096
