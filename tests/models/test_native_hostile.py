"""Graphs that nobody exported, on the native kernels: refused with one line before memory is given to anything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_edge.models.contract import FileFact, GraphSpec
from spec_edge.models.decoder import build
from spec_edge.models.forms import Form
from spec_edge.models.schemes.scheme import scheme
from spec_edge.models.store import WeightStore
from spec_edge.models.stored import store_model
from spec_edge.runtime.native.opened import NativeOpened
from spec_edge.runtime.native.state import Untranslatable
from spec_edge.runtime.native.translate import translate
from spec_edge.runtime.onnx_nodes import Node, nodes_of
from spec_edge.runtime.onnx_tensors import Tensor, tensors_of
from spec_edge.runtime.providers.provider import ProviderFailed

FORM = Form("step", "fused", None, None, 192, taps=(0, 1))
Graph = tuple[list[Node], dict[str, Tensor], GraphSpec]


@pytest.fixture(scope="module")
def made(lab: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, GraphSpec]:
    folder = tmp_path_factory.mktemp("hostile")
    tiny = lab.quantised("qwen2-bias-tied", 4, 32, True)
    with WeightStore(folder / "weights.bin") as store:
        stored = store_model(tiny.config, tiny.rope, tiny.weights, scheme("keep"), store, FORM.context, ("float32",))
    model, signature = build(tiny.config, stored, FORM)
    file = folder / "step.onnx"
    file.write_bytes(model.SerializeToString())
    return file, signature.spec("target", FileFact(file.name, 0, ""))


@pytest.fixture
def graph(made: tuple[Path, GraphSpec]) -> Graph:
    data = made[0].read_bytes()
    return list(nodes_of(data).nodes), tensors_of(data), made[1]


def change(kind: str, turn: int = 0, **fields: Any) -> Callable[[Graph], None]:
    """The turn-th node of a kind gets other fields; `numbers` are merged."""

    def changed(graph: Graph) -> None:
        at = [i for i, node in enumerate(graph[0]) if node.kind == kind][turn]
        node = graph[0][at]
        own = {k: {**node.numbers, **v} if k == "numbers" else v for k, v in fields.items()}
        graph[0][at] = replace(node, **own)

    return changed


def reshape(name: str, *shape: int) -> Callable[[Graph], None]:
    """Every constant whose name holds `name` gets another shape."""

    def changed(graph: Graph) -> None:
        found = [key for key in graph[1] if name in key]
        assert found
        for key in found:
            graph[1][key] = replace(graph[1][key], shape=shape)

    return changed


def again(graph: Graph) -> None:
    graph[0].append(graph[0][0])


def nothing(graph: Graph) -> None:
    graph[0].clear()


def reverse(graph: Graph) -> None:
    graph[0].reverse()


CHANGES = {
    "K of a matrix": change("MatMulNBits", numbers={"K": 1 << 20}),
    "K of no blocks": change("MatMulNBits", numbers={"K": 0}),
    "N of a matrix": change("MatMulNBits", numbers={"N": 1 << 20}),
    "N below nothing": change("MatMulNBits", numbers={"N": -96}),
    "a block that does not divide": change("MatMulNBits", numbers={"block_size": 128}),
    "a block of nothing": change("MatMulNBits", numbers={"block_size": 0}),
    "bits": change("MatMulNBits", numbers={"bits": 8}),
    "no key heads": change("GroupQueryAttention", numbers={"kv_num_heads": 0}),
    "many key heads": change("GroupQueryAttention", numbers={"kv_num_heads": 512}),
    "negative heads": change("GroupQueryAttention", numbers={"num_heads": -6}),
    "an option of attention": change("GroupQueryAttention", numbers={"local_window_size": 4}),
    "inputs of attention": change("GroupQueryAttention", inputs=("a", "b")),
    "bits of the table": change("GatherBlockQuantized", numbers={"bits": 0}),
    "a table block of nothing": change("GatherBlockQuantized", numbers={"block_size": 0}),
    "what the table is read by": change("GatherBlockQuantized", inputs=("model.embed_tokens:q4", "rows", "x")),
    "axis of the taps": change("Concat", numbers={"axis": 0}),
    "outputs of a norm": change("SkipSimplifiedLayerNormalization", outputs=("a",)),
    "inputs of a sum": change("Add", inputs=("a",)),
    "halves": change("Split", outputs=("a", "b", "c")),
    "norm scales": reshape("input_layernorm", 0),
    "cosines": reshape("cos", 1 << 24, 16, 0),
    "cosines of nothing": reshape("cos", -1, 16),
    "offsets": reshape("mlp.down_proj:offset", 1),
    "table offsets": reshape("offset_rows", 1, 1),
    "scales": reshape("gate_up:scale", 1),
    "codes": reshape("gate_up:q4", -1, 3, 16),
    "biases": reshape("bias", 1),
    "a node twice": again,
    "no node": nothing,
    "the last first": reverse,
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_the_kernels_would_misread_is_refused(graph: Graph, name: str) -> None:
    translate(*graph)
    CHANGES[name](graph)
    with pytest.raises(Untranslatable):
        translate(*graph)


def test_an_output_that_the_manifest_states_otherwise_is_refused(graph: Graph) -> None:
    nodes, tensors, spec = graph
    for name, shape in (
        ("logits", (1, "R", 16)),
        ("logits", (1, "S", 256)),
        ("hidden", (1, "S", 32)),
        ("taps", (1, 1, 2)),
    ):
        outputs = tuple(replace(t, shape=shape) if t.name == name else t for t in spec.outputs)
        with pytest.raises(Untranslatable, match=f"'{name}'"):
            translate(nodes, tensors, replace(spec, outputs=outputs))
    other = replace(spec.outputs[0], name="secret")
    with pytest.raises(Untranslatable, match="secret"):
        translate(nodes, tensors, replace(spec, outputs=(*spec.outputs, other)))


@settings(max_examples=150)
@given(data=st.data())
def test_no_change_ends_in_another_error(made: tuple[Path, GraphSpec], mangle: Any, data: st.DataObject) -> None:
    raw = made[0].read_bytes()
    nodes, tensors = mangle(data, nodes_of(raw).nodes, tensors_of(raw))
    try:
        translate(nodes, tensors, made[1])
    except Untranslatable as error:
        assert str(error) and "\n" not in str(error)


@pytest.mark.usefixtures("native_kernels")
def test_arrays_of_another_shape_are_refused(made: tuple[Path, GraphSpec]) -> None:
    file, spec = made
    opened = NativeOpened(file, file.with_name("weights.bin"), spec, 1)
    sizes = {"S": 3, "R": 1, "M": 64}

    def arrays(tensors: Any) -> dict[str, Any]:
        return {t.name: np.zeros([sizes.get(d, d) for d in t.shape], t.dtype) for t in tensors}

    inputs, outputs = arrays(spec.inputs), arrays(spec.outputs)
    outputs |= {name.replace("past", "present"): a for name, a in inputs.items() if name.startswith("past")}
    opened.bind(inputs, outputs)
    small = {"logits": (1, 1, 8), "hidden": (1, 2, 96), "taps": (1, 3, 96)}
    for name, shape in small.items():
        with pytest.raises(ProviderFailed, match="where the graph has"):
            opened.bind(inputs, outputs | {name: np.zeros(shape, np.float32)})
    for name in ("past_key.0", "past_value.1"):
        for other in (np.zeros((1, 1, 64, 32), np.float32), inputs[name].astype(np.float64)):
            with pytest.raises(ProviderFailed, match=r"where the graph has|in place"):
                opened.bind(inputs | {name: other}, outputs | {name.replace("past", "present"): other})
    with pytest.raises(ProviderFailed, match="lacks an input"):
        opened.bind({k: v for k, v in inputs.items() if k != "bias"}, outputs)
    opened.close()
