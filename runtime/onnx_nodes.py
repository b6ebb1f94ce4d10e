"""What a graph's nodes are and what they cost, without the `onnx` package.

Enters: the bytes of a graph file that check_graph has passed, and its `GraphSpec`. Leaves: its nodes, each with an
estimate of the arithmetic of its constant matrices: 2 * rows * elements of the matrix. Attention over the cache is not
counted, since it depends on how full that is. Format: onnx.proto (field numbers).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from spec_edge.models.contract import GraphSpec
from spec_edge.runtime.onnx_file import ATTRIBUTE, GRAPH, MODEL, NODE, TENSOR
from spec_edge.runtime.wire import fields, integers, message, string

MATRICES = frozenset({"MatMul", "Gemm", "Conv", "MatMulNBits", "MatMulInteger", "QLinearMatMul", "QLinearConv"})
"""Operators that multiply by a matrix."""

PACKED = ("K", "N")
"""Attributes of MatMulNBits that tell its matrix, whose tensor is packed."""

KEEPING = frozenset({"DequantizeLinear", "QuantizeLinear", "Cast", "Transpose", "Reshape", "Squeeze", "Unsqueeze"})
"""Operators that keep the number of elements of their first input."""


@dataclass(frozen=True)
class Node:
    """One node. numbers, reals: its attributes that are one whole number or one real number, by name."""

    name: str
    kind: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    numbers: Mapping[str, int] = field(default_factory=dict)
    reals: Mapping[str, float] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Its name, or that of its first output where it has none."""
        return self.name or next(iter(self.outputs), "")


@dataclass(frozen=True)
class Nodes:
    """nodes  in the file's order. constants: number of elements of each initializer by name."""

    nodes: tuple[Node, ...]
    constants: Mapping[str, int]


def nodes_of(data: bytes) -> Nodes:
    """The nodes of a model. ValueError or IndexError: it is none (see onnx_file.check_graph)."""
    found: list[Node] = []
    constants: dict[str, int] = {}
    for number, value in fields(data, MODEL, "model"):
        if number == 7:
            for part, content in fields(message(value), GRAPH, "graph"):
                if part == 1:
                    found.append(_node(message(content)))
                if part == 5:
                    name, shape = _constant(message(content))
                    constants[name] = prod(shape)
    return Nodes(tuple(found), constants)


def operations(graph: GraphSpec, found: Nodes) -> dict[str, int]:
    """Estimated floating-point operations of one run by node (`Node.key`), of one row where the width is symbolic."""
    sizes = dict(found.constants)
    for node in found.nodes:
        if node.kind in KEEPING and node.inputs[:1] and node.inputs[0] in sizes:
            sizes[node.outputs[0]] = sizes[node.inputs[0]]
    width = _rows(graph, graph.inputs[0].name)
    last = _makes(found.nodes, "logits")
    cost: dict[str, int] = {}
    for node in found.nodes:
        elements = _elements(node, sizes)
        rows = _rows(graph, "logits") if node.key in last else width
        cost[node.key] = 2 * rows * elements
    return cost


def _elements(node: Node, sizes: Mapping[str, int]) -> int:
    """Of the constant matrix that it multiplies by; 0 where there is none."""
    if node.kind not in MATRICES:
        return 0
    packed = [node.numbers[name] for name in PACKED if name in node.numbers]
    if len(packed) == len(PACKED):
        return prod(packed)
    return max((sizes[name] for name in node.inputs[:4] if name in sizes), default=0)


def _makes(nodes: Sequence[Node], output: str) -> frozenset[str]:
    """Keys of the nodes from the last matrix to this output: they run on its rows, which may be fewer."""
    source = {name: node for node in nodes for name in node.outputs}
    names: set[str] = set()
    node = source.get(output)
    while node is not None and node.key not in names:
        names.add(node.key)
        node = None if node.kind in MATRICES or not node.inputs else source.get(node.inputs[0])
    return frozenset(names)


def _rows(graph: GraphSpec, name: str) -> int:
    """Rows of an input or output [1, rows, ...]; 1 where they are symbolic."""
    for tensor in (*graph.inputs, *graph.outputs):
        if tensor.name == name and len(tensor.shape) > 1:
            return tensor.shape[1] if isinstance(tensor.shape[1], int) else 1
    return graph.width or 1


def _node(data: bytes) -> Node:
    texts = {3: "", 4: "", 7: ""}
    inputs: list[str] = []
    outputs: list[str] = []
    numbers: dict[str, int] = {}
    reals: dict[str, float] = {}
    for number, value in fields(data, NODE, "node"):
        if number in texts:
            texts[number] = string(value)
        if number in (1, 2):
            (inputs if number == 1 else outputs).append(string(value))
        if number == 5:
            _attribute(message(value), numbers, reals)
    return Node(texts[3], texts[4], texts[7], tuple(inputs), tuple(outputs), numbers, reals)


def _attribute(data: bytes, numbers: dict[str, int], reals: dict[str, float]) -> None:
    """Adds an attribute that is one whole number or one real number."""
    name, held, real = "", list[int](), b""
    for number, value in fields(data, ATTRIBUTE, "attribute"):
        if number == 1:
            name = string(value)
        if number == 2:
            real = message(value)
        if number == 3:
            held = integers(value)
    numbers.update((name, value) for value in held)
    if len(real) == 4:
        reals[name] = struct.unpack("<f", real)[0]


def _constant(data: bytes) -> tuple[str, list[int]]:
    name, shape = "", list[int]()
    for number, value in fields(data, TENSOR, "tensor"):
        if number == 1:
            shape += integers(value)
        if number == 8:
            name = string(value)
    return name, shape
