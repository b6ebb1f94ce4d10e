"""A program looked at before memory is given to it: graphs come from anywhere, and the kernels check nothing.

Enters: a translated program, the graph's constants and its signature. Leaves: nothing, or `Untranslatable` with the
first thing that does not fit: a constant of another shape, a buffer of another width, a read of what none has written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from spec_edge.models.contract import GraphSpec, TensorSpec
from spec_edge.runtime.native.mirror import (
    ATTEND,
    EMBED,
    GATHER,
    JOIN,
    MATMUL,
    MOST,
    MOST_BEST,
    NONE,
    NORM,
    QUANTISE,
    ROPE,
    SPREAD,
    SWIGLU,
    TOP,
    WIDEST_HEAD,
)
from spec_edge.runtime.native.program import Buffer, Heads, Linear, Program, Step
from spec_edge.runtime.native.state import BLOCK, LANES, Untranslatable
from spec_edge.runtime.onnx_tensors import Tensor

LARGEST = 1 << 22
"""Of any width and any number of rows of a matrix or table: 27 times the largest vocabulary known."""

Tensors = Mapping[str, Tensor]


def check(program: Program, tensors: Tensors, graph: GraphSpec) -> None:
    """Untranslatable: the kernels would read or write what is not there."""
    for buffer in (*program.floats, *program.quantised):
        _ensure(0 < buffer.width <= LARGEST, f"a row has {buffer.width} numbers")
    _written_first(program)
    for step in program.steps:
        CHECKS[step.kind](_Buffers(program, step), step, tensors)
    _outputs(program, graph)


class _Buffers:
    """A step's buffers by the kernels' names; None where there is none."""

    def __init__(self, program: Program, step: Step) -> None:
        self._program, self._step = program, step

    def f(self, i: int) -> Buffer | None:
        return self._one(self._program.floats, self._step.f, i)

    def q(self, i: int) -> Buffer | None:
        return self._one(self._program.quantised, self._step.q, i)

    def need(self, i: int, asked: bool = False) -> Buffer:
        """Float buffer i, which is there."""
        return _needed(self.f(i), asked)

    def need_q(self, i: int, asked: bool = False) -> Buffer:
        return _needed(self.q(i), asked)

    def same(self, width: int, asked: bool, *others: Buffer | None) -> None:
        """Every buffer that is there has rows of this width."""
        for other in others:
            _ensure(other is None or (other.width, other.asked) == (width, asked), "rows of other lengths meet")

    @staticmethod
    def _one(buffers: Sequence[Buffer], numbers: Sequence[int], i: int) -> Buffer | None:
        return None if i >= len(numbers) or numbers[i] == NONE else buffers[numbers[i]]


def _needed(buffer: Buffer | None, asked: bool) -> Buffer:
    if buffer is None or buffer.asked != asked:
        raise Untranslatable("a stage reads rows that are not there")
    return buffer


def _ensure(fine: bool, what: str) -> None:
    if not fine:
        raise Untranslatable(what)


def _constant(tensors: Tensors, name: str, dtype: str, *shape: int) -> None:
    tensor = tensors.get(name)
    wanted = tensor is not None and (tensor.dtype, tensor.shape) == (dtype, shape)
    _ensure(wanted and tensor is not None and tensor.whole, f"'{name}' is no {dtype} {list(shape)}")


def _embed(has: _Buffers, step: Step, tensors: Tensors) -> None:
    table, width = step.table, has.need(0).width
    if table is None:
        raise Untranslatable("an embedding has no table")
    fine = table.bits in (4, 8) and table.block > 0 and table.block % 2 == 0 and width % table.block == 0
    _ensure(fine, f"a table has {table.bits} bits in blocks of {table.block}")
    n = (tensors[table.codes].shape or (0,))[0]
    _ensure(0 < n <= LARGEST, f"a table has {n} rows")
    _constant(tensors, table.codes, "uint8", n, width * table.bits // 8)
    for name in (table.scale, table.offset):
        if name or name == table.scale:
            _constant(tensors, name, "float32", n, width // table.block)


def _norm(has: _Buffers, step: Step, tensors: Tensors) -> None:
    width = has.need(0).width
    has.same(width, False, has.f(1), has.f(2), has.f(3), has.q(0))
    _ensure(width % LANES == 0 and (has.f(1) is None) == (has.f(2) is None), f"a norm of {width} numbers")
    _constant(tensors, step.gamma, "float32", width)


def _quantise(has: _Buffers, step: Step, tensors: Tensors) -> None:  # noqa: ARG001
    given = has.f(0)
    _ensure(given is not None and given.width % BLOCK == 0, "rows cannot be rounded in blocks")
    if given is not None:
        has.same(given.width, given.asked, has.q(0))


def _gather(has: _Buffers, step: Step, tensors: Tensors) -> None:  # noqa: ARG001
    has.same(has.need(0).width, True, has.f(1), has.q(0))


def _matrix(m: Linear, width: int, tensors: Tensors) -> None:
    sizes = 0 < m.n <= LARGEST and m.k == width and m.k % BLOCK == 0 and m.bits in (4, 8) and m.block > 0
    _ensure(sizes, f"a matrix of {m.n} x {m.k} in {m.bits} bits meets rows of {width}")
    whole = m.k % m.block == 0 and (m.block % BLOCK == 0 or (m.bits, m.block) == (8, BLOCK // 2))
    _ensure(whole, f"a matrix has blocks of {m.block}")
    blocks = m.k // m.block
    _constant(tensors, m.codes, "uint8", m.n, blocks, m.block * m.bits // 8)
    _constant(tensors, m.scale, "float32", m.n, blocks)
    if m.offset:
        _constant(tensors, m.offset, "float32", blocks, m.n)
    if m.bias:
        _constant(tensors, m.bias, "float32", m.n)


def _matmul(has: _Buffers, step: Step, tensors: Tensors) -> None:
    into = has.f(0)
    if into is None:
        raise Untranslatable("a product goes nowhere")
    x = has.need_q(0, into.asked)
    _ensure(0 < len(step.matrices) <= MOST, f"{len(step.matrices)} matrices at once")
    for m in step.matrices:
        _matrix(m, x.width, tensors)
        _ensure(m.column >= 0 and m.column + m.n <= into.width, "a product is wider than its rows")


def _swiglu(has: _Buffers, step: Step, tensors: Tensors) -> None:
    x = has.need_q(0)
    has.same(step.width, False, has.need_q(1))
    _ensure(len(step.matrices) == 2 and step.width % BLOCK == 0, f"SwiGLU of {step.width} columns")
    for m, first in zip(step.matrices, step.first, strict=True):
        _matrix(m, x.width, tensors)
        _ensure(first >= 0 and first % LANES == 0 and first + step.width <= m.n, "SwiGLU's halves are not there")


def _heads(step: Step) -> Heads:
    of = step.heads
    if of is None or min(of.heads, of.kv_heads, of.dim, of.layer + 1) < 1 or max(of.heads, of.layer) > LARGEST:
        raise Untranslatable("attention has no heads")
    _ensure(of.heads % of.kv_heads == 0, f"{of.heads} heads share {of.kv_heads}")
    _ensure(of.dim % BLOCK == 0 and of.dim <= WIDEST_HEAD, f"heads of {of.dim} have no kernel")
    return of


def _rope(has: _Buffers, step: Step, tensors: Tensors) -> None:
    of = _heads(step)
    for i, heads in enumerate((of.heads, of.kv_heads, of.kv_heads)):
        column = step.columns[i]
        _ensure(column >= 0 and column + heads * of.dim <= has.need(i).width, "queries, keys or values are missing")
    n = (tensors[step.cos].shape or (0,))[0]
    _ensure(0 < n <= LARGEST, f"{n} positions are known")
    for name in (step.cos, step.sin):
        _constant(tensors, name, "float32", n, of.dim // 2)


def _attend(has: _Buffers, step: Step, tensors: Tensors) -> None:  # noqa: ARG001
    of = _heads(step)
    width = of.heads * of.dim
    _ensure(step.columns[0] >= 0 and step.columns[0] + width <= has.need(0).width, "queries are missing")
    has.same(width, False, has.f(1), has.q(0))


def _join(has: _Buffers, step: Step, tensors: Tensors) -> None:  # noqa: ARG001
    fits = step.columns[0] >= 0 and step.columns[0] + step.width <= has.need(1).width
    _ensure(fits and has.need(0).width == step.width, "rows do not fit side by side")


def _spread(has: _Buffers, step: Step, tensors: Tensors) -> None:  # noqa: ARG001
    x = has.need(1)
    _ensure(x.width % LANES == 0 and has.need(0).width % x.width == 0, "a row does not fall into heads")
    has.same(x.width, True, has.f(2), has.q(0))


def _top(has: _Buffers, step: Step, tensors: Tensors) -> None:
    logits = has.f(0)
    _ensure(logits is not None and 0 < step.width <= min(MOST_BEST, logits.width), f"a law's best {step.width}")
    if logits is not None:
        has.same(step.width, logits.asked, has.f(1), has.f(2))
        _ensure(has.f(1) is not None and has.f(2) is not None, "a law's best goes nowhere")
        if step.ids:
            _constant(tensors, step.ids, "int32", logits.width)


CHECKS: Mapping[int, Callable[[_Buffers, Step, Tensors], None]] = {
    EMBED: _embed,
    NORM: _norm,
    QUANTISE: _quantise,
    GATHER: _gather,
    MATMUL: _matmul,
    SWIGLU: _swiglu,
    ROPE: _rope,
    ATTEND: _attend,
    JOIN: _join,
    SPREAD: _spread,
    TOP: _top,
}

WRITES: Mapping[int, tuple[tuple[int, ...], tuple[int, ...]]] = {
    EMBED: ((0,), ()),
    NORM: ((2, 3), (0,)),
    QUANTISE: ((), (0,)),
    GATHER: ((1,), (0,)),
    MATMUL: ((0,), ()),
    SWIGLU: ((), (1,)),
    ROPE: ((), ()),
    ATTEND: ((1,), (0,)),
    JOIN: ((1,), ()),
    SPREAD: ((2,), (0,)),
    TOP: ((1, 2), ()),
}
"""Which float and which quantised buffers a stage writes; it reads its others."""


def _written_first(program: Program) -> None:
    written: tuple[set[int], set[int]] = ({i for i, b in enumerate(program.floats) if b.input}, set())
    for step in program.steps:
        for there, numbers, writes in zip(written, (step.f, step.q), WRITES[step.kind], strict=True):
            read = [b for i, b in enumerate(numbers) if b != NONE and i not in writes]
            _ensure(there.issuperset(read), "a stage reads what no stage has written")
            there.update(numbers[i] for i in writes if i < len(numbers) and numbers[i] != NONE)


def _outputs(program: Program, graph: GraphSpec) -> None:
    """Each output leaves a buffer of its own width: S rows of it, the R that are asked for, or as many as heads."""
    made = {b.output: b for b in program.floats if b.output}
    for tensor in graph.outputs:
        if tensor.name.startswith("present_"):
            continue
        buffer = made.get(tensor.name)
        fits = buffer is not None and _leaves(buffer, tensor, program.spread)
        _ensure(fits, f"the output '{tensor.name}' is not what the kernels would write")


def _leaves(buffer: Buffer, tensor: TensorSpec, spread: int) -> bool:
    rows = (spread or "R") if buffer.asked else "S"
    dtype = "int32" if buffer.whole else "float32"
    return (tensor.dtype, tensor.shape) == (dtype, (1, rows, buffer.width))
