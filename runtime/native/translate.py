"""A graph of the fused lowering to a program.

Enters: nodes, constants and the graph's signature. Leaves: a `Program`, or `Untranslatable` naming the first node that
has no stage. Nodes become stages in the graph's order: an operator that only shapes another's result (its offsets, its
bias, its batch axis) changes the stage that is there, and SwiGLU takes the place of the product before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from spec_edge.models.contract import GraphSpec
from spec_edge.runtime.native import laws, products, rows
from spec_edge.runtime.native.check import check
from spec_edge.runtime.native.program import Program
from spec_edge.runtime.native.state import State, Untranslatable
from spec_edge.runtime.onnx_nodes import Node
from spec_edge.runtime.onnx_tensors import Tensor

OPERATORS: Mapping[str, tuple[Callable[[State, Node], None], int, int]] = {
    "Squeeze": (rows.alias, 2, 1),
    "Unsqueeze": (rows.alias, 2, 1),
    "Reshape": (rows.alias, 2, 1),
    "GatherBlockQuantized": (rows.embed, 3, 1),
    "Gather": (rows.gather, 2, 1),
    "SimplifiedLayerNormalization": (rows.norm, 2, 1),
    "SkipSimplifiedLayerNormalization": (rows.skip_norm, 3, 4),
    "GroupQueryAttention": (rows.attend, 11, 3),
    "Concat": (rows.concat, 0, 1),
    "MatMulNBits": (products.matmul, 3, 1),
    "ReduceSum": (products.block_sums, 2, 1),
    "Gemm": (products.offsets, 3, 1),
    "Add": (products.add, 2, 1),
    "Split": (products.split, 1, 2),
    "Sigmoid": (products.sigmoid, 1, 1),
    "Mul": (products.mul, 2, 1),
    "LogSoftmax": (laws.log_softmax, 1, 1),
    "TopK": (laws.top, 2, 2),
    "Cast": (laws.cast, 1, 1),
    "Sub": (laws.part, 2, 1),
    "Exp": (laws.part, 1, 1),
    "Log": (laws.part, 1, 1),
}
"""What translates an operator, and how many inputs (0: any number) and outputs it has in our graphs."""

CACHE = "present_"
"""What outputs that are the cache begin with."""


def translate(nodes: Sequence[Node], tensors: Mapping[str, Tensor], graph: GraphSpec) -> Program:
    """The program of a graph of the fused lowering, checked. Untranslatable: an operator or use of it has no stage."""
    try:
        program = _translated(nodes, tensors, graph)
        check(program, tensors, graph)
    except Untranslatable:
        raise
    except Exception as error:  # a graph may be wrong in more ways than anybody lists
        raise Untranslatable(f"it is no graph that spec-edge writes ({type(error).__name__})") from error
    return program


def _translated(nodes: Sequence[Node], tensors: Mapping[str, Tensor], graph: GraphSpec) -> Program:
    state = State(nodes, tensors, graph)
    for node in nodes:
        state.node = node
        how, inputs, leaving = OPERATORS.get(node.kind, (None, 0, 0))
        if how is None:
            raise state.refused("there is no kernel for it")
        if len(node.inputs) != (inputs or len(node.inputs)) or len(node.outputs) != leaving:
            raise state.refused("it has other inputs or outputs than spec-edge writes")
        how(state, node)
    for name in (tensor.name for tensor in graph.outputs if not tensor.name.startswith(CACHE)):
        laws.leave(state, name)
        buffer = state.program.floats[state.whole(name).buffer]
        if buffer.foreign:
            raise state.refused(f"'{name}' and '{buffer.output or buffer.input}' are the same")
        buffer.output = name
    return state.program.packed()
