"""What a translation knows at a node: values by name, the stages so far, and who reads what.

Enters: nodes, constants and the graph's outputs. Leaves: a `State`, which the operators' functions in rows.py and
products.py read and extend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from spec_edge.models.contract import GraphSpec
from spec_edge.runtime.native.mirror import NONE, QUANTISE
from spec_edge.runtime.native.program import Buffer, Program, Step, View
from spec_edge.runtime.onnx_nodes import Node
from spec_edge.runtime.onnx_tensors import Tensor

BLOCK, LANES = 32, 8


class Untranslatable(Exception):
    """Says which node has no stage, and why."""


MANY = 1 << 13
"""Nodes of the largest graph: about 27 for each layer are usual."""


@dataclass(frozen=True)
class Ids:
    """The input of token ids."""


@dataclass(frozen=True)
class BlockSums:
    """Sums of a value over blocks of columns: what offsets are multiplied by."""

    of: str


@dataclass(frozen=True)
class Gate:
    """A view's sigmoid, or its product with that."""

    view: View
    silu: bool


@dataclass(frozen=True)
class TableOffsets:
    """Offsets of the embedded rows."""

    constant: str


@dataclass(frozen=True)
class Law:
    """Log-probabilities of logits."""

    logits: View


@dataclass(frozen=True)
class Part:
    """What a law needs on the way to its best log-probabilities (laws.py). step: the stage that gives them."""

    kind: str
    step: Step


@dataclass(frozen=True)
class Places:
    """Columns of a law's best."""

    step: Step


Value: TypeAlias = "View | Ids | BlockSums | Gate | TableOffsets | Law | Part | Places"

ROWS = ("features", "taps", "hidden")
"""Inputs that are rows of numbers."""


class State:
    """nodes, tensors  of the graph
    values     what each value's name stands for
    quantised  the 8-bit form of a buffer, by its number
    reshaped   what each reshaped value was
    node       the one that is being translated
    """

    def __init__(self, nodes: Sequence[Node], tensors: Mapping[str, Tensor], graph: GraphSpec) -> None:
        self.nodes, self.tensors = nodes, tensors
        self.values: dict[str, Value] = {}
        self.quantised: dict[int, int] = {}
        self.program = Program()
        self.node = nodes[0] if nodes else Node("", "", "", (), ())
        self._outputs = {tensor.name for tensor in graph.outputs}
        self._readers: dict[str, list[Node]] = {}
        for node in nodes:
            for name in node.inputs:
                self._readers.setdefault(name, []).append(node)
        self.reshaped = {node.outputs[0]: node.inputs[0] for node in nodes if node.kind == "Reshape"}
        made = [name for node in nodes for name in node.outputs if name]
        if not nodes or len(nodes) > MANY or len(set(made)) < len(made):
            raise Untranslatable(f"{len(nodes)} nodes, or some that write the same value")
        self._enter(graph)

    def _enter(self, graph: GraphSpec) -> None:
        """What the graph is given. one_row: its runs have a single row."""
        self.one_row = False
        for tensor in graph.inputs:
            if tensor.name == "input_ids":
                self.values[tensor.name] = Ids()
            if tensor.name in ROWS:
                width = tensor.shape[-1]
                if len(tensor.shape) != 3 or tensor.dtype != "float32" or not isinstance(width, int):
                    raise Untranslatable(f"the input '{tensor.name}' has another form")
                self.one_row = tensor.shape[1] == 1
                self.program.floats.append(Buffer(width, input=tensor.name))
                self.values[tensor.name] = View(len(self.program.floats) - 1, 0, width)

    def refused(self, why: str) -> Untranslatable:
        return Untranslatable(f"{self.node.kind} '{self.node.key}': {why}")

    def view(self, name: str) -> View:
        value = self.values.get(name)
        if not isinstance(value, View):
            raise self.refused(f"'{name}' is nothing that a stage reads")
        return value

    def constant(self, name: str, dtype: str, *shape: int) -> str:
        tensor = self.tensors.get(name)
        if tensor is None or tensor.dtype != dtype or (shape and tensor.shape != shape):
            raise self.refused(f"'{name}' is no constant of {dtype} {list(shape) if shape else ''}")
        return name

    def small(self, name: str, count: int) -> list[int]:
        """A constant of `count` whole numbers inside the graph file."""
        tensor = self.tensors.get(name)
        if tensor is None or tensor.dtype != "int64" or not tensor.whole or len(tensor.inline) != 8 * count:
            raise self.refused(f"'{name}' is no constant of {count} numbers")
        return [int(n) for n in np.frombuffer(tensor.inline, "<i8")]

    def floats(self, width: int, asked: bool = False) -> int:
        self.program.floats.append(Buffer(width, asked))
        return len(self.program.floats) - 1

    def whole(self, name: str) -> View:
        view = self.view(name)
        if view.column or view.width != self.program.floats[view.buffer].width:
            raise self.refused(f"'{name}' is a part of a row")
        return view

    def uses(self, name: str) -> set[str]:
        """Kinds of the operators that read a value, whatever axis they see it with; "output" where it leaves."""
        found = {"output"} if name in self._outputs else set[str]()
        for node in self._readers.get(name, ()):
            if node.kind in ("Squeeze", "Unsqueeze"):
                found |= self.uses(node.outputs[0])
            elif not self._feeds_sums(node):
                found.add(node.kind)
        return found

    def _feeds_sums(self, node: Node) -> bool:
        readers = self._readers.get(node.outputs[0], ())
        return node.kind == "Reshape" and bool(readers) and all(n.kind == "ReduceSum" for n in readers)

    def quantised_of(self, name: str) -> int:
        """The quantised form of a value; a stage of its own where the one that made the value gave none."""
        view = self.whole(name)
        if view.buffer not in self.quantised:
            buffer = self.program.floats[view.buffer]
            if view.width % BLOCK:
                raise self.refused(f"its rows of {view.width} are no multiple of {BLOCK}")
            self.quantised[view.buffer] = self.new_quantised(view.width, buffer.asked)
            self.program.steps.append(Step(QUANTISE, [view.buffer], [self.quantised[view.buffer]]))
        return self.quantised[view.buffer]

    def new_quantised(self, width: int, asked: bool = False) -> int:
        if width % BLOCK:
            raise self.refused(f"its rows of {width} are no multiple of {BLOCK}")
        self.program.quantised.append(Buffer(width, asked))
        return len(self.program.quantised) - 1

    def made(self, name: str, width: int, asked: bool = False) -> tuple[int, int]:
        """(floats, quantised) for a stage that can make either form of a value: those that are read."""
        uses = self.uses(name)
        view = View(self.floats(width, asked), 0, width)
        self.values[name] = view
        q = NONE
        if "MatMulNBits" in uses:
            q = self.quantised[view.buffer] = self.new_quantised(width, asked)
        return (view.buffer if uses - {"MatMulNBits"} else NONE), q
