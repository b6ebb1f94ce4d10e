"""A graph of the fused lowering to a program.

Enters: nodes, constants and the graph's signature. Leaves: a `Program`, or `Untranslatable` naming the first node that
has no stage. Nodes become stages in the graph's order: an operator that only shapes another's result (its offsets, its
bias, its batch axis) changes the stage that is there, and SwiGLU takes the place of the product before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from spec_edge.models.contract import GraphSpec
from spec_edge.runtime.native import products, rows
from spec_edge.runtime.native.program import Program
from spec_edge.runtime.native.state import State
from spec_edge.runtime.onnx_nodes import Node
from spec_edge.runtime.onnx_tensors import Tensor

OPERATORS: Mapping[str, Callable[[State, Node], None]] = {
    "Squeeze": rows.alias,
    "Unsqueeze": rows.alias,
    "Reshape": rows.alias,
    "GatherBlockQuantized": rows.embed,
    "Gather": rows.gather,
    "SimplifiedLayerNormalization": rows.norm,
    "SkipSimplifiedLayerNormalization": rows.skip_norm,
    "GroupQueryAttention": rows.attend,
    "Concat": rows.concat,
    "MatMulNBits": products.matmul,
    "ReduceSum": products.block_sums,
    "Gemm": products.offsets,
    "Add": products.add,
    "Split": products.split,
    "Sigmoid": products.sigmoid,
    "Mul": products.mul,
}

LEAVING = ("logits", "hidden", "taps")
"""Outputs besides the cache."""


def translate(nodes: Sequence[Node], tensors: Mapping[str, Tensor], graph: GraphSpec) -> Program:
    """The program of a graph of the fused lowering. Untranslatable: an operator, or a use of it, has no stage."""
    outputs = {t.name for t in graph.outputs}
    state = State(nodes, tensors, outputs)
    for node in nodes:
        state.node = node
        if node.kind not in OPERATORS:
            raise state.refused("there is no kernel for it")
        OPERATORS[node.kind](state, node)
    for name in LEAVING:
        if name in outputs:
            buffer = state.program.floats[state.whole(name).buffer]
            if buffer.output:
                raise state.refused(f"'{name}' and '{buffer.output}' are the same")
            buffer.output = name
    return state.program.packed()
