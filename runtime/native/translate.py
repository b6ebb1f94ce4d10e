"""A graph of the fused lowering to a program.

Enters: nodes, constants and the graph's signature. Leaves: a `Program`, or `Untranslatable` naming the first node that
has no stage. Nodes become stages in the graph's order: an operator that only shapes another's result (its offsets, its
bias, its batch axis) changes the stage that is there, and SwiGLU takes the place of the product before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from spec_edge.models.contract import GraphSpec
from spec_edge.runtime.native.mirror import (
    ATTEND,
    EMBED,
    GATHER,
    JOIN,
    MATMUL,
    MOST,
    NONE,
    NORM,
    QUANTISE,
    ROPE,
    SWIGLU,
)
from spec_edge.runtime.native.program import Buffer, Linear, Program, Rows, Step, View
from spec_edge.runtime.onnx_nodes import Node
from spec_edge.runtime.onnx_tensors import Tensor

BLOCK, LANES = 32, 8

WIDEST_HEAD = 256
"""Of src/attention.c."""


class Untranslatable(Exception):
    """Says which node has no stage, and why."""


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


Value: TypeAlias = "View | BlockSums | Gate | TableOffsets"


def translate(nodes: tuple[Node, ...], tensors: Mapping[str, Tensor], graph: GraphSpec) -> Program:
    """The program of a graph of the fused lowering. Untranslatable: an operator, or a use of it, has no stage."""
    return _Translation(nodes, tensors, graph).program()


class _Translation:
    def __init__(self, nodes: tuple[Node, ...], tensors: Mapping[str, Tensor], graph: GraphSpec) -> None:
        self._nodes, self._tensors = nodes, tensors
        self._outputs = {t.name for t in graph.outputs}
        self._readers: dict[str, list[Node]] = {}
        for node in nodes:
            for name in node.inputs:
                self._readers.setdefault(name, []).append(node)
        self._values: dict[str, Value] = {}
        self._quantised: dict[int, int] = {}
        self._program = Program()
        self._node = nodes[0]

    def program(self) -> Program:
        handlers = self._handlers()
        for node in self._nodes:
            self._node = node
            if node.kind not in handlers:
                raise self._refused("there is no kernel for it")
            handlers[node.kind](node)
        for name in ("logits", "hidden", "taps"):
            if name in self._outputs:
                self._bind_output(name)
        return self._program.packed()

    def _handlers(self) -> dict[str, Callable[[Node], None]]:
        return {
            "Squeeze": self._alias,
            "Unsqueeze": self._alias,
            "Reshape": self._alias,
            "GatherBlockQuantized": self._embed,
            "Gather": self._gather,
            "SimplifiedLayerNormalization": self._norm,
            "SkipSimplifiedLayerNormalization": self._skip_norm,
            "MatMulNBits": self._matmul,
            "ReduceSum": self._block_sums,
            "Gemm": self._offsets,
            "Add": self._add,
            "Split": self._split,
            "Sigmoid": self._sigmoid,
            "Mul": self._mul,
            "GroupQueryAttention": self._attend,
            "Concat": self._concat,
        }

    def _refused(self, why: str) -> Untranslatable:
        return Untranslatable(f"{self._node.kind} '{self._node.key}': {why}")

    # values

    def _view(self, name: str) -> View:
        value = self._values.get(name)
        if not isinstance(value, View):
            raise self._refused(f"'{name}' is nothing that a stage reads")
        return value

    def _constant(self, name: str, dtype: str, *shape: int) -> str:
        tensor = self._tensors.get(name)
        if tensor is None or tensor.dtype != dtype or (shape and tensor.shape != shape):
            raise self._refused(f"'{name}' is no constant of {dtype} {list(shape) if shape else ''}")
        return name

    def _floats(self, width: int, asked: bool = False) -> int:
        self._program.floats.append(Buffer(width, asked))
        return len(self._program.floats) - 1

    def _whole(self, name: str) -> View:
        view = self._view(name)
        if view.column or view.width != self._program.floats[view.buffer].width:
            raise self._refused(f"'{name}' is a part of a row")
        return view

    def _uses(self, name: str) -> set[str]:
        """Kinds of the operators that read a value, whatever axis they see it with; "output" where it leaves."""
        found = {"output"} if name in self._outputs else set[str]()
        for node in self._readers.get(name, ()):
            if node.kind in ("Squeeze", "Unsqueeze"):
                found |= self._uses(node.outputs[0])
            elif not self._feeds_sums(node):
                found.add(node.kind)
        return found

    def _feeds_sums(self, node: Node) -> bool:
        readers = self._readers.get(node.outputs[0], ())
        return node.kind == "Reshape" and bool(readers) and all(n.kind == "ReduceSum" for n in readers)

    def _quantised_of(self, name: str) -> int:
        """The quantised form of a value; a stage of its own where the one that made the value gave none."""
        view = self._whole(name)
        if view.buffer not in self._quantised:
            buffer = self._program.floats[view.buffer]
            if view.width % BLOCK:
                raise self._refused(f"its rows of {view.width} are no multiple of {BLOCK}")
            self._quantised[view.buffer] = self._new_quantised(view.width, buffer.asked)
            self._program.steps.append(Step(QUANTISE, [view.buffer], [self._quantised[view.buffer]]))
        return self._quantised[view.buffer]

    def _new_quantised(self, width: int, asked: bool = False) -> int:
        if width % BLOCK:
            raise self._refused(f"its rows of {width} are no multiple of {BLOCK}")
        self._program.quantised.append(Buffer(width, asked))
        return len(self._program.quantised) - 1

    def _made(self, name: str, width: int, asked: bool = False) -> tuple[int, int]:
        """(floats, quantised) for a stage that can make either form of a value: those that are read."""
        uses = self._uses(name)
        view = View(self._floats(width, asked), 0, width)
        self._values[name] = view
        q = NONE
        if "MatMulNBits" in uses:
            q = self._quantised[view.buffer] = self._new_quantised(width, asked)
        return (view.buffer if uses - {"MatMulNBits"} else NONE), q

    # operators

    def _alias(self, node: Node) -> None:
        """Another axis over the same numbers; block sums and outputs know themselves by name."""
        source = node.inputs[0]
        if source in self._values:
            self._values[node.outputs[0]] = self._values[source]

    def _embed(self, node: Node) -> None:
        numbers = node.numbers
        codes, scale = self._constant(node.inputs[0], "uint8"), self._constant(node.inputs[2], "float32")
        if len(node.inputs) != 3 or numbers.get("gather_axis", 0) or numbers.get("quantize_axis", 1) != 1:
            raise self._refused("the table is laid out another way")
        bits, block = numbers.get("bits", 4), numbers.get("block_size", 128)
        n, columns = self._tensors[codes].shape
        width = columns * 8 // bits
        if bits not in (4, 8) or block % 2 or width % block or self._tensors[scale].shape != (n, width // block):
            raise self._refused("the table has another form")
        buffer = self._floats(width)
        self._values[node.outputs[0]] = View(buffer, 0, width)
        self._program.steps.append(Step(EMBED, [buffer], table=Rows(bits, block, codes, scale)))

    def _gather(self, node: Node) -> None:
        if node.numbers.get("axis", 0):
            raise self._refused("it gathers columns")
        if node.inputs[0] in self._tensors:
            self._values[node.outputs[0]] = TableOffsets(self._constant(node.inputs[0], "float32"))
            return
        if node.inputs[1] != "rows":
            raise self._refused("it gathers other rows than those that are asked for")
        view = self._whole(node.inputs[0])
        f, q = self._made(node.outputs[0], view.width, asked=True)
        self._program.steps.append(Step(GATHER, [view.buffer, f], [q]))

    def _norm(self, node: Node) -> None:
        view = self._whole(node.inputs[0])
        f, q = self._made(node.outputs[0], view.width)
        self._put_norm(node, [view.buffer, NONE, NONE, f], q, view.width, node.inputs[1])

    def _skip_norm(self, node: Node) -> None:
        x, y = self._whole(node.inputs[0]), self._whole(node.inputs[1])
        if x.width != y.width:
            raise self._refused("it adds rows of different lengths")
        total = self._floats(x.width)
        self._values[node.outputs[3]] = View(total, 0, x.width)
        f, q = self._made(node.outputs[0], x.width)
        self._put_norm(node, [x.buffer, y.buffer, total, f], q, x.width, node.inputs[2])

    def _put_norm(self, node: Node, f: list[int], q: int, width: int, gamma: str) -> None:
        if width % LANES:
            raise self._refused(f"its rows of {width} are no multiple of {LANES}")
        gamma = self._constant(gamma, "float32", width)
        epsilon = node.reals.get("epsilon", 1e-5)
        self._program.steps.append(Step(NORM, f, [q], epsilon=epsilon, gamma=gamma))

    def _matmul(self, node: Node) -> None:
        numbers = node.numbers
        n, k, bits, block = (numbers.get(key, 0) for key in ("N", "K", "bits", "block_size"))
        if len(node.inputs) != 3 or bits not in (4, 8) or k % BLOCK or (block % BLOCK and (bits, block) != (8, 16)):
            raise self._refused(f"{bits} bits in blocks of {block} are packed another way")
        codes = self._constant(node.inputs[1], "uint8", n, k // block, block * bits // 8)
        scale = self._constant(node.inputs[2], "float32", n, k // block)
        source = self._whole(node.inputs[0])
        asked = self._program.floats[source.buffer].asked
        q = self._quantised_of(node.inputs[0])
        step = self._product(q, asked)
        buffer = self._program.floats[step.f[0]]
        step.matrices.append(Linear(n, k, bits, block, codes, scale, column=buffer.width))
        self._values[node.outputs[0]] = View(step.f[0], buffer.width, n)
        buffer.width += n

    def _product(self, q: int, asked: bool) -> Step:
        """The last stage where it multiplies the same rows and has room, or a new one."""
        steps = self._program.steps
        if steps and steps[-1].kind == MATMUL and steps[-1].q == [q] and len(steps[-1].matrices) < MOST:
            return steps[-1]
        steps.append(Step(MATMUL, [self._floats(0, asked)], [q]))
        return steps[-1]

    def _matrix(self, view: View) -> Linear:
        """The matrix whose result a view is, in the last stage."""
        step = self._program.steps[-1]
        if step.kind == MATMUL and step.f[0] == view.buffer:
            for matrix in step.matrices:
                if (matrix.column, matrix.n) == (view.column, view.width):
                    return matrix
        raise self._refused("it adds to what no product has just made")

    def _block_sums(self, node: Node) -> None:
        reshape = next(n for n in self._nodes if node.inputs[0] in n.outputs)
        if reshape.kind != "Reshape":
            raise self._refused("it sums something else than blocks")
        self._values[node.outputs[0]] = BlockSums(reshape.inputs[0])

    def _offsets(self, node: Node) -> None:
        sums = self._values.get(node.inputs[0])
        view = self._view(node.inputs[2])
        matrix = self._matrix(view)
        blocks = matrix.k // matrix.block
        if not isinstance(sums, BlockSums) or matrix.block % BLOCK or matrix.bias or len(node.numbers) or node.reals:
            raise self._refused("it is no offset of a matrix in blocks of 32")
        matrix.offset = self._constant(node.inputs[1], "float32", blocks, matrix.n)
        self._values[node.outputs[0]] = view

    def _add(self, node: Node) -> None:
        a, b = (self._values.get(name) for name in node.inputs)
        if isinstance(a, View) and isinstance(b, TableOffsets):
            table = self._program.steps[-1].table
            if table is None:
                raise self._refused("it adds offsets to what no table has just given")
            table.offset = b.constant
            self._values[node.outputs[0]] = a
            return
        view = self._view(node.inputs[0])
        self._matrix(view).bias = self._constant(node.inputs[1], "float32", view.width)
        self._values[node.outputs[0]] = view

    def _split(self, node: Node) -> None:
        view = self._view(node.inputs[0])
        if len(node.inputs) > 1 or len(node.outputs) != 2 or view.width % 2:
            raise self._refused("it splits into something else than halves")
        half = view.width // 2
        for i, name in enumerate(node.outputs):
            self._values[name] = View(view.buffer, view.column + i * half, half)

    def _sigmoid(self, node: Node) -> None:
        self._values[node.outputs[0]] = Gate(self._view(node.inputs[0]), silu=False)

    def _mul(self, node: Node) -> None:
        a, b = (self._values.get(name) for name in node.inputs)
        if isinstance(a, View) and b == Gate(a, silu=False):
            self._values[node.outputs[0]] = Gate(a, silu=True)
        elif isinstance(a, Gate) and a.silu and isinstance(b, View):
            self._swiglu(node.outputs[0], a.view, b)
        else:
            raise self._refused("it is no part of SwiGLU")

    def _swiglu(self, name: str, gate: View, up: View) -> None:
        """In the place of the product that made both."""
        step = self._program.steps.pop()
        parts = [self._part(step, view) for view in (gate, up)]
        width = gate.width
        if step.kind != MATMUL or width != up.width or width % BLOCK or any(first % LANES for _, first in parts):
            raise self._refused(f"its {width} columns are no multiple of {BLOCK}")
        if self._uses(name) != {"MatMulNBits"}:
            raise self._refused("something else than a product reads it")
        view = View(self._floats(width), 0, width)
        q = self._quantised[view.buffer] = self._new_quantised(width)
        self._values[name] = view
        matrices, first = [m for m, _ in parts], (parts[0][1], parts[1][1])
        self._program.steps.append(Step(SWIGLU, [], [step.q[0], q], matrices=matrices, first=first, width=width))

    def _part(self, step: Step, view: View) -> tuple[Linear, int]:
        """(matrix, its first row) of a view of a product."""
        for matrix in step.matrices:
            first = view.column - matrix.column
            if step.f[0] == view.buffer and 0 <= first and first + view.width <= matrix.n:
                return matrix, first
        raise self._refused("its halves are not the last product's")

    def _attend(self, node: Node) -> None:
        numbers = node.numbers
        heads, kv_heads = numbers.get("num_heads", 0), numbers.get("kv_num_heads", 0)
        layer = node.inputs[3].removeprefix("past_key.")
        places = [f"past_key.{layer}", f"past_value.{layer}", "seqlens_k", "total_len"]
        if list(node.inputs[3:7]) != places or list(node.inputs[9:]) != ["position_ids", "bias"] or not layer.isdigit():
            raise self._refused("its cache, positions or mask come from elsewhere")
        views = self._queries(node, heads, kv_heads)
        dim = views[0].width // max(heads, 1)
        if dim % BLOCK or dim > WIDEST_HEAD or heads % max(kv_heads, 1):
            raise self._refused(f"heads of {dim} have no kernel")
        if numbers.get("do_rotary", 0) != 1 or numbers.get("rotary_interleaved", 0):
            raise self._refused("it rotates another way")
        cos, sin = (self._constant(name, "float32") for name in node.inputs[7:9])
        if self._tensors[cos].shape != self._tensors[sin].shape or self._tensors[cos].shape[1] != dim // 2:
            raise self._refused("it rotates a part of a head")
        shape = {"layer": int(layer), "heads": heads, "kv_heads": kv_heads, "dim": dim}
        columns = tuple(v.column for v in views)
        rope = Step(ROPE, [v.buffer for v in views], columns=columns, cos=cos, sin=sin, **shape)
        f, q = self._made(node.outputs[0], heads * dim)
        scale = node.reals.get("scale", dim**-0.5)
        attend = Step(ATTEND, [views[0].buffer, f], [q], columns=columns[:1], scale=scale, **shape)
        self._program.steps += [rope, attend]

    def _queries(self, node: Node, heads: int, kv_heads: int) -> list[View]:
        """Queries, keys and values: of one value or three."""
        whole = self._view(node.inputs[0])
        if node.inputs[1]:
            return [whole, self._view(node.inputs[1]), self._view(node.inputs[2])]
        dim = whole.width // max(heads + 2 * kv_heads, 1)
        columns = (whole.column, whole.column + heads * dim, whole.column + (heads + kv_heads) * dim)
        return [View(whole.buffer, c, n * dim) for c, n in zip(columns, (heads, kv_heads, kv_heads), strict=True)]

    def _concat(self, node: Node) -> None:
        views = [self._whole(name) for name in node.inputs]
        buffer = self._floats(sum(v.width for v in views))
        self._values[node.outputs[0]] = View(buffer, 0, self._program.floats[buffer].width)
        column = 0
        for view in views:
            self._program.steps.append(Step(JOIN, [view.buffer, buffer], columns=(column,), width=view.width))
            column += view.width

    def _bind_output(self, name: str) -> None:
        buffer = self._program.floats[self._whole(name).buffer]
        if buffer.output:
            raise self._refused(f"'{name}' and '{buffer.output}' are the same")
        buffer.output = name
