"""The graph builder: nodes, constants and stored weights become one ONNX model.

Enters: operators by name, regions of the weights file, and the inputs and outputs of the graph.
Leaves: an `onnx.ModelProto`, opset 17 or 21 plus com.microsoft 1, whose large tensors lie in the shared weights file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import ArrayLike, DTypeLike
from onnx import helper, numpy_helper

from spec_edge.models.contract import TensorSpec
from spec_edge.models.store import INT4, Region

OPSET = 17
LISTED_AXES = 18
"""From this opset on ReduceMean reads its axes as an input, and Split wants the number of equal parts."""
CONTRIB = "com.microsoft"
IR_VERSION = 10
"""Opset 17 needs IR 8 at least; ONNX Runtime 1.24 reads up to 12, OpenVINO 2026 up to 11."""

_LISTED = 120
"""Longest list of values that names a constant; beyond it their hash does."""

Attributes: TypeAlias = Mapping[str, Any]


class Graph:
    """One graph under construction. Values are named by strings; a node's only output has the node's own name."""

    def __init__(self, weights_file: str, opset: int = OPSET) -> None:
        self._weights_file = weights_file
        self._opset = opset
        self._nodes: list[onnx.NodeProto] = []
        self._tensors: dict[str, onnx.TensorProto] = {}
        self._shared: dict[tuple[object, ...], str] = {}
        self._renames: dict[str, str] = {}

    def op(
        self, kind: str, inputs: Sequence[str], name: str, attributes: Attributes | None = None, domain: str = ""
    ) -> str:
        """Add a node with one output; the output's name. An empty input name leaves that input out."""
        return self.ops(kind, inputs, name, (name,), attributes, domain)[0]

    def ops(
        self,
        kind: str,
        inputs: Sequence[str],
        name: str,
        outputs: Sequence[str],
        attributes: Attributes | None = None,
        domain: str = "",
    ) -> tuple[str, ...]:
        """Add a node with these outputs (an empty name leaves one out)."""
        node = onnx.NodeProto(op_type=kind, name=name, domain=domain, input=inputs, output=outputs)
        node.attribute.extend(helper.make_attribute(k, v) for k, v in (attributes or {}).items())
        self._nodes.append(node)
        return tuple(outputs)

    def split(self, x: str, parts: int, axis: int, name: str) -> tuple[str, ...]:
        """`parts` equal pieces along `axis`; x itself where there is one part."""
        if parts == 1:
            return (x,)
        count = {"num_outputs": parts} if self._opset >= LISTED_AXES else {}
        return self.ops("Split", (x,), name, [f"{name}/{i}" for i in range(parts)], {"axis": axis, **count})

    def mean(self, x: str, name: str) -> str:
        """Mean along the last axis, which stays with length 1."""
        if self._opset < LISTED_AXES:
            return self.op("ReduceMean", (x,), name, {"axes": [-1], "keepdims": 1})
        return self.op("ReduceMean", (x, self.constant([-1], np.int64)), name, {"keepdims": 1})

    def concat(self, pieces: Sequence[str], axis: int, name: str) -> str:
        """The pieces joined along `axis`; a single piece passes through."""
        return pieces[0] if len(pieces) == 1 else self.op("Concat", pieces, name, {"axis": axis})

    def constant(self, value: ArrayLike, dtype: DTypeLike) -> str:
        """A small constant inside the graph file; equal ones are one initializer."""
        array = np.asarray(value, dtype)
        listed = ",".join(str(x) for x in array.ravel())
        content = listed if len(listed) <= _LISTED else hashlib.sha256(listed.encode()).hexdigest()[:16]
        name = f"/constants/{array.dtype.name}{list(array.shape)}/{content}"
        if name not in self._tensors:
            self._tensors[name] = numpy_helper.from_array(array, name)
        return name

    def stored(self, region: Region) -> str:
        """A tensor of the weights file. One region read under two shapes is two initializers over the same bytes."""
        name = region.key
        if name in self._tensors and tuple(self._tensors[name].dims) != region.shape:
            name = f"{region.key}:{'x'.join(map(str, region.shape))}"
        if name not in self._tensors:
            self._tensors[name] = self._external(name, region)
        return name

    def once(self, key: tuple[object, ...], make: Callable[[], str]) -> str:
        """The value of `make`, built at the first call with this key and shared after it."""
        if key not in self._shared:
            self._shared[key] = make()
        return self._shared[key]

    def rename(self, names: Mapping[str, str]) -> None:
        """Give values other names in the finished model: how a value becomes a graph output."""
        self._renames.update(names)

    def model(self, name: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> onnx.ModelProto:
        """The finished model."""
        for node in self._nodes:
            for values in (node.input, node.output):
                for i, value in enumerate(values):
                    if value in self._renames:
                        values[i] = self._renames[value]
        graph = helper.make_graph(
            self._nodes, name, [_value(t) for t in inputs], [_value(t) for t in outputs], list(self._tensors.values())
        )
        opsets = [helper.make_opsetid("", self._opset), helper.make_opsetid(CONTRIB, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="spec-edge")

    def _external(self, name: str, region: Region) -> onnx.TensorProto:
        packed = region.dtype == INT4
        kind = onnx.TensorProto.INT4 if packed else helper.np_dtype_to_tensor_dtype(np.dtype(region.dtype))
        tensor = onnx.TensorProto(name=name, data_type=kind, dims=region.shape)
        tensor.data_location = onnx.TensorProto.EXTERNAL
        facts = {"location": self._weights_file, "offset": str(region.offset), "length": str(region.length)}
        for key, value in facts.items():
            tensor.external_data.add(key=key, value=value)
        return tensor


def _value(spec: TensorSpec) -> onnx.ValueInfoProto:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(spec.dtype))
    return helper.make_tensor_value_info(spec.name, kind, list(spec.shape))
