"""A float32 graph as hardware computes it that rounds every value: the check of such a target's quality on a CPU.

Enters: an ONNX model. Leaves: the same network in which each float32 input, weight and result of arithmetic passes
through a Cast to the narrow type and back. Sums inside an operator stay float32, as in the hardware's accumulators.
"""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper

from spec_edge.models.lowerings.spelling import QUANTISES, Known

NARROW = {"bfloat16": TensorProto.BFLOAT16}
MOVES = frozenset(
    {"Concat", "Expand", "Gather", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze", "Where"}
)
"""They only move values, which were rounded before."""
EXACT = MOVES | set(QUANTISES)
"""What has been quantised is in integers there."""


def rounded(model: onnx.ModelProto, to: str) -> onnx.ModelProto:
    """The rounding model. Its file must lie beside the weights file, like the model's own."""
    known, graph, narrow = Known(model), model.graph, NARROW[to]
    nodes: list[onnx.NodeProto] = []

    def round_(value: str, result: str) -> None:
        nodes.append(helper.make_node("Cast", [value], [f"{value}/{to}"], f"{value}/{to}/Cast", to=narrow))
        nodes.append(helper.make_node("Cast", [f"{value}/{to}"], [result], f"{value}/back/Cast", to=TensorProto.FLOAT))

    entering = [value.name for value in graph.input if value.type.tensor_type.elem_type == TensorProto.FLOAT]
    entering += [tensor.name for tensor in graph.initializer if tensor.data_type == TensorProto.FLOAT]
    for name in entering:
        round_(name, f"{name}/rounded")
    for node in graph.node:
        own = onnx.NodeProto()
        own.CopyFrom(node)
        scaled = own.op_type in QUANTISES  # the scale behind the value stays as it is
        for i, name in enumerate(own.input[:1] if scaled else own.input):
            own.input[i] = f"{name}/rounded" if name in entering else name
        results = [] if own.op_type in EXACT else [n for n in own.output if n and known.dtype(n) == "float32"]
        for i, name in enumerate(own.output):
            own.output[i] = f"{name}/exact" if name in results else name
        nodes.append(own)
        for name in results:
            round_(f"{name}/exact", name)
    out = onnx.ModelProto()
    out.CopyFrom(model)
    del out.graph.node[:]
    out.graph.node.extend(nodes)
    return out
