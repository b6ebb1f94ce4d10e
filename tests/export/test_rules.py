"""Graphs made by hand that break one rule each: the line names the graph, the node and the rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from spec_edge.export.rules import Place, breaches, check
from spec_edge.export.suited import suited
from spec_edge.models.contract import SpecError
from spec_edge.targets.operators import operators
from spec_edge.targets.target import Rules, target, targets

F32, I64, U8, I8 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.UINT8, TensorProto.INT8
PLACE = Place("verify-portable-s8-p64", "target", "verify", 8, 64)
STRICT = Rules(
    operators=operators(
        frozenset({"Add", "Gather", "DequantizeLinear", "QuantizeLinear", "Constant", "If"}), frozenset({"MatMulNBits"})
    ),
    opset=17,
    zero_points=False,
    widths=(1, 8),
    prefills=(128,),
)


def value(name: str, *shape: Any, kind: int = F32) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, list(shape))


def constant(name: str, array: Any, dtype: Any) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(array, dtype), name)


def node(kind: str, inputs: Sequence[str], domain: str = "", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(kind, inputs, ["y"], f"/layers.0/{kind}", domain=domain, **attributes)


def model(
    *nodes: onnx.NodeProto,
    inputs: Sequence[onnx.ValueInfoProto] | None = None,
    outputs: Sequence[onnx.ValueInfoProto] | None = None,
    held: Sequence[onnx.TensorProto] = (),
    opset: int = 17,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes or (node("Add", ["x", "x"]),),
        "g",
        inputs or [value("x", 1, 8)],
        outputs or [value("y", 1, 8)],
        list(held),
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def external(name: str) -> onnx.TensorProto:
    tensor = TensorProto(name=name, data_type=U8, dims=[1], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="weights.bin")
    return tensor


def broken(proto: onnx.ModelProto, place: Place = PLACE, rules: Rules = STRICT) -> list[str]:
    return list(breaches(proto, place, rules))


def test_a_graph_that_keeps_them() -> None:
    assert broken(model()) == []
    check(model(), PLACE, STRICT, "mine")


DEQUANTIZE = node("DequantizeLinear", ["x", "scale", "zero"])
BRANCH = helper.make_graph([], "then", [], [])
CASES = {
    "symbolic input": (model(inputs=[value("x", 1, "S")]), "input x [1,S] has a symbolic dimension"),
    "unknown dimension": (model(inputs=[value("x", 1, None)]), "input x [1,?] has a symbolic dimension"),
    "symbolic output": (model(outputs=[value("y", 1, "S")]), "output y [1,S] has a symbolic dimension"),
    "empty": (model(inputs=[value("x", 1, 0)]), "input x [1,0] is empty"),
    "batch": (model(inputs=[value("x", 2, 8)]), "input x [2,8] has another batch than 1"),
    "opset": (model(opset=21), "node /layers.0/Add and all others are of opset 21, the target takes 17 at most"),
    "operator": (model(node("Erf", ["x"])), "node /layers.0/Erf (Erf) is not an operator that the target takes"),
    "domain": (
        model(node("GroupQueryAttention", ["x"], "com.microsoft")),
        "node /layers.0/GroupQueryAttention (com.microsoft.GroupQueryAttention) is not an operator that the target "
        "takes",
    ),
    "control flow": (
        model(node("If", ["x"], then_branch=BRANCH, else_branch=BRANCH)),
        "node /layers.0/If (If) is control flow",
    ),
    "zero point": (
        model(DEQUANTIZE, held=[constant("scale", 1, np.float32), constant("zero", 3, np.uint8)]),
        "node /layers.0/DequantizeLinear (DequantizeLinear) has a zero point, zero",
    ),
    "zero point that is computed": (
        model(DEQUANTIZE, inputs=[value("x", 1, 8, kind=U8), value("zero", 1, kind=U8)]),
        "node /layers.0/DequantizeLinear (DequantizeLinear) has a zero point, zero",
    ),
    "zero point among the weights": (
        model(DEQUANTIZE, held=[external("zero")]),
        "node /layers.0/DequantizeLinear (DequantizeLinear) has a zero point, zero",
    ),
    "zero point of blocks": (
        model(
            node("MatMulNBits", ["x", "q", "scale", "zero"], "com.microsoft"), held=[constant("zero", [0], np.uint8)]
        ),
        "node /layers.0/MatMulNBits (com.microsoft.MatMulNBits) has a zero point, zero",
    ),
    "zero points made at run time": (
        model(node("DynamicQuantizeLinear", ["x"])),
        "node /layers.0/DynamicQuantizeLinear (DynamicQuantizeLinear) makes zero points",
    ),
    "negative index": (
        model(node("Gather", ["x", "i"]), held=[constant("i", [0, -1], np.int64)]),
        "node /layers.0/Gather (Gather) has the negative index -1",
    ),
    "negative index of a Constant": (
        model(helper.make_node("Constant", [], ["i"], value=constant("v", -2, np.int64)), node("Gather", ["x", "i"])),
        "node /layers.0/Gather (Gather) has the negative index -2",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_rule(case: str) -> None:
    proto, said = CASES[case]
    assert said in broken(proto)
    line = f"graph {PLACE.name} does not suit target mine: "
    with pytest.raises(SpecError) as raised:
        check(proto, PLACE, STRICT, "mine")
    assert raised.value.message.startswith(line) and "\n" not in raised.value.message


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"past": 1000}, "P = 1000 is no multiple of 64"),
        ({"width": 5}, "a verify width of 5 is not one of 1, 8"),
        ({"role": "prefill", "width": 96}, "a prefill width of 96 is not one of 128"),
    ],
)
def test_sizes(changes: dict[str, Any], said: str) -> None:
    assert broken(model(), replace(PLACE, **changes)) == [said]


def test_a_drafters_widths_are_its_own() -> None:
    """An EAGLE level has ten rows; the rule is about verify runs."""
    assert broken(model(), replace(PLACE, network="eagle", role="expand", width=10)) == []


def test_what_is_allowed() -> None:
    """A zero point of 0 (QuantizeLinear needs one to know its type), and all of it where a target takes everything."""
    zero = [constant("scale", 1, np.float32), constant("zero", 0, np.uint8)]
    assert broken(model(node("QuantizeLinear", ["x", "scale", "zero"]), held=zero)) == []
    free = Rules(symbolic=True, negative_index=True)
    symbolic = model(
        node("Gather", ["x", "i"]), inputs=[value("x", 1, "S")], held=[constant("i", -1, np.int64)], opset=21
    )
    assert broken(symbolic, rules=free) == []


def test_the_any_width_graph_of_an_npu_bundle_has_rules_of_its_own() -> None:
    """It runs on the providers behind the NPU: any operator and width, but no opset past theirs."""
    lake, step = target("meteor-lake"), Place("step-portable", "target", "step", None, None)
    wide = model(node("Shape", ["x"]), inputs=[value("x", 1, "S")])
    assert suited(wide, step, lake, "fp16")
    with pytest.raises(SpecError, match=r"graph verify-portable-s8-p64 does not suit target meteor-lake: .*symbolic"):
        suited(wide, PLACE, lake, "fp16")
    with pytest.raises(SpecError, match="opset 23"):
        suited(model(inputs=[value("x", 1, "S")], opset=23), step, lake, "fp16")


@pytest.mark.parametrize("profile", [t for t in targets() if t.device == "npu" and not t.refuses], ids=lambda t: t.name)
@pytest.mark.parametrize("case", ["symbolic input", "batch", "control flow", "zero point", "negative index"])
def test_every_npu_refuses_the_common_traps(profile: Any, case: str) -> None:
    assert CASES[case][1] in broken(CASES[case][0], rules=profile.rules)
