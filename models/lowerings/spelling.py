"""A finished graph written in other operators, for compilers whose operator table leaves some out.

Enters: an ONNX model and the operators of ONNX's own domain that may stay. Leaves: the same network, its inputs and
outputs unchanged, in which every other operator that has a recipe in `models/lowerings/<spelling>.py` is replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper, shape_inference

from spec_edge.models.contract import SpecError
from spec_edge.models.graph import CONTRIB
from spec_edge.models.plugins import find

QUANTISES = ("QuantizeLinear", "DequantizeLinear")
Array: TypeAlias = NDArray[Any]


class Respelled:
    """The nodes that take the place of one: they carry its name, and the last of them give its outputs."""

    def __init__(self, node: onnx.NodeProto, model: Known) -> None:
        self.node, self.model = node, model
        self.nodes: list[onnx.NodeProto] = []

    def op(self, kind: str, inputs: Sequence[str], name: str, output: str = "", **attributes: Any) -> str:
        """Add a node; the name of its output, `output` or one of its own."""
        path = f"{self.node.name}/{name}"
        self.nodes.append(helper.make_node(kind, inputs, [output or path], path, **attributes))
        return output or path

    def constant(self, value: Any, dtype: Any, name: str) -> str:
        """A small constant; equal names of all nodes are one."""
        return self.model.constant(np.asarray(value, dtype), name)


Recipe: TypeAlias = Callable[[Respelled], None]


class Known:
    """What is known of a model's values: shapes, types and constants."""

    def __init__(self, model: onnx.ModelProto) -> None:
        inferred = shape_inference.infer_shapes(_readable(model)).graph
        self._types = {v.name: v.type.tensor_type for v in (*inferred.input, *inferred.value_info, *inferred.output)}
        self._held = {tensor.name: tensor for tensor in model.graph.initializer}
        self.made: dict[str, onnx.TensorProto] = {}

    def shape(self, value: str) -> tuple[int, ...]:
        """SpecError where a dimension is not known."""
        if value in self._held:
            return tuple(self._held[value].dims)
        found = self._types[value].shape.dim if value in self._types else []
        if not found or any(not dim.HasField("dim_value") for dim in found):
            raise SpecError(f"the shape of {value} is not known; report this as a bug of spec-export")
        return tuple(dim.dim_value for dim in found)

    def dtype(self, value: str) -> np.dtype[Any]:
        kind = self._held[value].data_type if value in self._held else self._types[value].elem_type
        found: np.dtype[Any] = np.dtype(helper.tensor_dtype_to_np_dtype(kind))
        return found

    def value(self, name: str) -> Array | None:
        """A constant inside the graph file; None: it is computed, or lies in the weights file."""
        tensor = self._held.get(name)
        if tensor is None or tensor.data_location == onnx.TensorProto.EXTERNAL:
            return None
        array: Array = numpy_helper.to_array(tensor)
        return array

    def constant(self, array: Array, name: str) -> str:
        path = f"/spelling/{name}"
        self.made.setdefault(path, numpy_helper.from_array(array, path))
        return path


def _readable(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model for shape inference, which does not know ONNX Runtime's quantisation: it changes no shape."""
    if not any(node.domain == CONTRIB and node.op_type in QUANTISES for node in model.graph.node):
        return model
    out = onnx.ModelProto()
    out.CopyFrom(model)
    for node in out.graph.node:
        if node.domain == CONTRIB and node.op_type in QUANTISES:
            node.domain, node.op_type = "", "Identity"
            del node.input[1:]
            del node.attribute[:]
    return out


def respelled(spelling: str, model: onnx.ModelProto, kept: Collection[str]) -> onnx.ModelProto:
    """The model with every operator outside `kept` replaced that `spelling` has a recipe for."""
    recipes: Mapping[str, Recipe] = find("spec_edge.models.lowerings", "RECIPES", spelling, "spelling").RECIPES
    known = Known(model)
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        if node.domain or node.op_type in kept or node.op_type not in recipes:
            nodes.append(node)
            continue
        instead = Respelled(node, known)
        recipes[node.op_type](instead)
        nodes += instead.nodes
    out = onnx.ModelProto()
    out.CopyFrom(model)
    del out.graph.node[:]
    out.graph.node.extend(nodes)
    out.graph.initializer.extend(known.made.values())
    read = {name for node in nodes for name in node.input}
    unread = [tensor for tensor in out.graph.initializer if tensor.name not in read]
    for tensor in unread:
        out.graph.initializer.remove(tensor)
    return out
