"""Whether a graph keeps to its target's rules, before anything is published.

Enters: a finished graph, its place in the bundle and the rules of targets/target.py. Leaves: nothing, or one line that
names the graph, the node or tensor, and the rule that it breaks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from spec_edge.models.contract import Dim, SpecError
from spec_edge.targets.target import Rules

ZERO_POINTS = {
    "DequantizeLinear": (2,),
    "QuantizeLinear": (2,),
    "QLinearMatMul": (2, 5, 7),
    "QLinearConv": (2, 5, 7),
    "MatMulInteger": (2, 3),
    "MatMulNBits": (3,),
    "GatherBlockQuantized": (3,),
}
"""Operator -> which of its inputs are zero points."""
CENTRED = ("MatMulNBits", "GatherBlockQuantized")
"""Their values are unsigned, so no zero point means the middle, and one that is given is another."""
ASYMMETRIC = ("DynamicQuantizeLinear",)
"""They make zero points of their own."""
INDEXED = ("Gather", "GatherElements", "GatherND")


@dataclass(frozen=True)
class Place:
    """A graph in its bundle, as `GraphSpec` has it."""

    name: str
    network: str
    role: str
    width: int | None
    past: int | None


def check(model: onnx.ModelProto, place: Place, rules: Rules, target: str) -> None:
    """SpecError: the first rule that the graph breaks."""
    broken = next(breaches(model, place, rules), None)
    if broken is not None:
        raise SpecError(f"graph {place.name} does not suit target {target}: {broken}; nothing was written")


def breaches(model: onnx.ModelProto, place: Place, rules: Rules) -> Iterator[str]:
    """Every rule that the graph breaks, in words."""
    yield from _sizes(place, rules)
    yield from _shapes(model, rules)
    yield from _opset(model, rules)
    held = {tensor.name: tensor for tensor in model.graph.initializer}
    held |= {node.output[0]: node.attribute[0].t for node in model.graph.node if node.op_type == "Constant"}
    for node in model.graph.node:
        yield from _operator(node, rules)
        if not rules.zero_points:
            yield from _zero_points(node, held)
        if not rules.negative_index:
            yield from _indices(node, held)


def _sizes(place: Place, rules: Rules) -> Iterator[str]:
    if place.past is not None and place.past % rules.past_multiple:
        yield f"P = {place.past} is no multiple of {rules.past_multiple}"
    if place.network != "target" or place.width is None:
        return
    allowed = {"verify": rules.widths, "prefill": rules.prefills}.get(place.role)
    if allowed is not None and place.width not in allowed:
        yield f"a {place.role} width of {place.width} is not one of {', '.join(map(str, allowed))}"


def _shapes(model: onnx.ModelProto, rules: Rules) -> Iterator[str]:
    graph = model.graph
    for side, values in (("input", graph.input), ("output", graph.output), ("value", graph.value_info)):
        for value in values:
            shape = _shape(value)
            if not rules.symbolic and any(isinstance(dim, str) for dim in shape):
                yield f"{side} {value.name} {_text(shape)} has a symbolic dimension"
            if 0 in shape:
                yield f"{side} {value.name} {_text(shape)} is empty"
            if side != "value" and len(shape) > 1 and shape[0] != 1:
                yield f"{side} {value.name} {_text(shape)} has another batch than 1"


def _shape(value: onnx.ValueInfoProto) -> tuple[Dim, ...]:
    dims = value.type.tensor_type.shape.dim
    return tuple(dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "?" for dim in dims)


def _text(shape: Sequence[Dim]) -> str:
    return f"[{','.join(map(str, shape))}]"


def _opset(model: onnx.ModelProto, rules: Rules) -> Iterator[str]:
    for opset in model.opset_import:
        if opset.domain in ("", "ai.onnx") and opset.version > rules.opset:
            first = model.graph.node[0].name if model.graph.node else "none"
            yield f"node {first} and all others are of opset {opset.version}, the target takes {rules.opset} at most"
    if model.functions:
        yield f"function {model.functions[0].name} is not written out in operators"


def _operator(node: onnx.NodeProto, rules: Rules) -> Iterator[str]:
    if any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute):
        yield f"{_node(node)} is control flow"
    if rules.operators is None:
        return
    domain = "" if node.domain == "ai.onnx" else node.domain
    allowed: frozenset[str] = dict(rules.operators).get(domain, frozenset())
    if node.op_type not in allowed:
        yield f"{_node(node)} is not an operator that the target takes"


def _zero_points(node: onnx.NodeProto, held: dict[str, onnx.TensorProto]) -> Iterator[str]:
    if node.op_type in ASYMMETRIC:
        yield f"{_node(node)} makes zero points"
    for at in ZERO_POINTS.get(node.op_type, ()):
        name = node.input[at] if at < len(node.input) else ""
        if not name:
            continue
        value = _constant(held, name)
        if value is None or value.any() or node.op_type in CENTRED:
            yield f"{_node(node)} has a zero point, {name}"


def _indices(node: onnx.NodeProto, held: dict[str, onnx.TensorProto]) -> Iterator[str]:
    if node.op_type not in INDEXED or len(node.input) < 2:
        return
    value = _constant(held, node.input[1])
    if value is not None and value.size and value.min() < 0:
        yield f"{_node(node)} has the negative index {int(value.min())}"


def _constant(held: dict[str, onnx.TensorProto], name: str) -> NDArray[Any] | None:
    """A constant in the graph file; None: it is computed, or lies in the weights file."""
    tensor = held.get(name)
    if tensor is None or tensor.data_location == onnx.TensorProto.EXTERNAL:
        return None
    array: NDArray[Any] = numpy_helper.to_array(tensor)
    return array


def _node(node: onnx.NodeProto) -> str:
    domain = f"{node.domain}." if node.domain else ""
    return f"node {node.name or node.output[0]} ({domain}{node.op_type})"
