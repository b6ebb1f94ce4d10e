"""Operators that multiply by quantised matrices, and what belongs to a product: offsets, biases, SwiGLU."""

from __future__ import annotations

from spec_edge.runtime.native import laws
from spec_edge.runtime.native.mirror import MATMUL, MOST, SWIGLU
from spec_edge.runtime.native.program import Linear, Step, View
from spec_edge.runtime.native.state import BLOCK, LANES, BlockSums, Gate, Part, State, TableOffsets
from spec_edge.runtime.onnx_nodes import Node


def matmul(t: State, node: Node) -> None:
    numbers = node.numbers
    n, k, bits, block = (numbers.get(key, 0) for key in ("N", "K", "bits", "block_size"))
    known = min(n, k, block) > 0 and bits in (4, 8) and k % BLOCK == 0 and k % max(block, 1) == 0
    if not known or (block % BLOCK and (bits, block) != (8, BLOCK // 2)):
        raise t.refused(f"{bits} bits in blocks of {block} are packed another way")
    codes = t.constant(node.inputs[1], "uint8", n, k // block, block * bits // 8)
    scale = t.constant(node.inputs[2], "float32", n, k // block)
    source = t.whole(node.inputs[0])
    if source.width != k:
        raise t.refused(f"it multiplies rows of {source.width} by {k} columns")
    asked = t.program.floats[source.buffer].asked
    q = t.quantised_of(node.inputs[0])
    step = _product(t, q, asked)
    buffer = t.program.floats[step.f[0]]
    step.matrices.append(Linear(n, k, bits, block, codes, scale, column=buffer.width, source=node.inputs[0]))
    t.values[node.outputs[0]] = View(step.f[0], buffer.width, n)
    buffer.width += n


def _product(t: State, q: int, asked: bool) -> Step:
    """The last stage where it multiplies the same rows and has room, or a new one."""
    steps = t.program.steps
    if steps and steps[-1].kind == MATMUL and steps[-1].q == [q] and len(steps[-1].matrices) < MOST:
        return steps[-1]
    steps.append(Step(MATMUL, [t.floats(0, asked)], [q]))
    return steps[-1]


def _matrix(t: State, view: View) -> Linear:
    """The matrix whose result a view is, in the last stage."""
    step = t.program.steps[-1]
    if step.kind == MATMUL and step.f[0] == view.buffer:
        for matrix in step.matrices:
            if (matrix.column, matrix.n) == (view.column, view.width):
                return matrix
    raise t.refused("it adds to what no product has just made")


def block_sums(t: State, node: Node) -> None:
    if isinstance(t.values.get(node.inputs[0]), Part):
        laws.part(t, node)
        return
    source = t.reshaped.get(node.inputs[0])
    if source is None or node.numbers.get("keepdims", 1):
        raise t.refused("it sums something else than blocks")
    t.values[node.outputs[0]] = BlockSums(source)


def offsets(t: State, node: Node) -> None:
    sums = t.values.get(node.inputs[0])
    view = t.view(node.inputs[2])
    matrix = _matrix(t, view)
    blocks = matrix.k // matrix.block
    if (
        sums != BlockSums(matrix.source)
        or matrix.block % BLOCK
        or matrix.offset
        or matrix.bias
        or node.numbers
        or node.reals
    ):
        raise t.refused("it is no offset of a matrix in blocks of 32")
    matrix.offset = t.constant(node.inputs[1], "float32", blocks, matrix.n)
    t.values[node.outputs[0]] = view


def add(t: State, node: Node) -> None:
    a, b = (t.values.get(name) for name in node.inputs)
    if isinstance(a, View) and isinstance(b, TableOffsets):
        last = t.program.steps[-1]
        table = last.table
        if table is None or table.offset or last.f != [a.buffer]:
            raise t.refused("it adds offsets to what no table has just given")
        table.offset = b.constant
        t.values[node.outputs[0]] = a
        return
    if isinstance(a, View) and isinstance(b, Gate) and b.silu:
        laws.spread(t, node, a, b)
        return
    view = t.view(node.inputs[0])
    matrix = _matrix(t, view)
    if matrix.bias:
        raise t.refused("it adds a second bias")
    matrix.bias = t.constant(node.inputs[1], "float32", view.width)
    t.values[node.outputs[0]] = view


def split(t: State, node: Node) -> None:
    view = t.view(node.inputs[0])
    if node.numbers.get("axis") not in (-1, 1) or view.width % 2:
        raise t.refused("it splits into something else than halves")
    half = view.width // 2
    for i, name in enumerate(node.outputs):
        t.values[name] = View(view.buffer, view.column + i * half, half)


def sigmoid(t: State, node: Node) -> None:
    t.values[node.outputs[0]] = Gate(t.view(node.inputs[0]), silu=False)


def mul(t: State, node: Node) -> None:
    a, b = (t.values.get(name) for name in node.inputs)
    if isinstance(a, View) and b == Gate(a, silu=False):
        t.values[node.outputs[0]] = Gate(a, silu=True)
    elif isinstance(a, Gate) and a.silu and isinstance(b, View):
        _swiglu(t, node.outputs[0], a.view, b)
    else:
        raise t.refused("it is no part of SwiGLU")


def _swiglu(t: State, name: str, gate: View, up: View) -> None:
    """In the place of the product that made both."""
    step = t.program.steps.pop()
    if step.kind != MATMUL:
        raise t.refused("its halves are not the last product's")
    parts = [_part(t, step, view) for view in (gate, up)]
    if any(all(m is not used for used, _ in parts) for m in step.matrices):
        raise t.refused("it takes a part of a product")
    width = gate.width
    if width != up.width or width % BLOCK or any(first % LANES for _, first in parts):
        raise t.refused(f"its {width} columns are no multiple of {BLOCK}")
    if t.uses(name) != {"MatMulNBits"}:
        raise t.refused("something else than a product reads it")
    view = View(t.floats(width), 0, width)
    q = t.quantised[view.buffer] = t.new_quantised(width)
    t.values[name] = view
    matrices, first = [m for m, _ in parts], (parts[0][1], parts[1][1])
    t.program.steps.append(Step(SWIGLU, [], [step.q[0], q], matrices=matrices, first=first, width=width))


def _part(t: State, step: Step, view: View) -> tuple[Linear, int]:
    """(matrix, its first row) of a view of a product."""
    for matrix in step.matrices:
        first = view.column - matrix.column
        if step.f[0] == view.buffer and first >= 0 and first + view.width <= matrix.n:
            return matrix, first
    raise t.refused("its halves are not the last product's")
