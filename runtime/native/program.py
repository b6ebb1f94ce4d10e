"""A program: what `translate.py` makes of a graph, before it has memory.

Enters: stages as they are found. Leaves: stages over numbered buffers, each buffer with the stages between which it is
needed, so that few of them need memory of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from spec_edge.runtime.native.mirror import NONE


@dataclass(frozen=True)
class View:
    """Columns of a buffer of floats."""

    buffer: int
    column: int
    width: int


@dataclass
class Linear:
    """A quantised matrix [n, k], by the names of its constants. offset, bias: names, "" where there is none; source:
    the value that it multiplies."""

    n: int
    k: int
    bits: int
    block: int
    codes: str
    scale: str
    offset: str = ""
    bias: str = ""
    column: int = 0
    source: str = ""


@dataclass
class Rows:
    """A quantised table [n, k], by the names of its constants."""

    bits: int
    block: int
    codes: str
    scale: str
    offset: str = ""


@dataclass(frozen=True)
class Heads:
    """Of attention: the layer whose cache it reads, query heads, key and value heads, numbers per head."""

    layer: int
    heads: int
    kv_heads: int
    dim: int


@dataclass
class Step:
    """One stage; `mirror.Stage` says what its numbers are. f, q: buffers in the order of its fields."""

    kind: int
    f: list[int] = field(default_factory=list)
    q: list[int] = field(default_factory=list)
    columns: tuple[int, ...] = ()
    matrices: list[Linear] = field(default_factory=list)
    first: tuple[int, int] = (0, 0)
    width: int = 0
    heads: Heads | None = None
    epsilon: float = 0.0
    scale: float = 0.0
    gamma: str = ""
    cos: str = ""
    sin: str = ""
    ids: str = ""
    table: Rows | None = None


@dataclass
class Buffer:
    """width: numbers per row. asked: it has the asked rows only. input, output: the graph's name for it, "" inside.
    whole: its numbers are whole ones, int32."""

    width: int
    asked: bool = False
    output: str = ""
    input: str = ""
    whole: bool = False

    @property
    def foreign(self) -> bool:
        """Whether it is the session's memory."""
        return bool(self.input or self.output)


@dataclass
class Program:
    """floats, quantised: by number; a quantised buffer is as wide as a row of activations. spread: asked rows that
    one row is spread over; 0: the run says which rows are asked for."""

    steps: list[Step] = field(default_factory=list)
    floats: list[Buffer] = field(default_factory=list)
    quantised: list[Buffer] = field(default_factory=list)
    spread: int = 0

    def packed(self) -> Program:
        """The same over fewer buffers: two that are never needed at once share one."""
        floats, of_floats = _share(self.floats, [step.f for step in self.steps])
        quantised, of_quantised = _share(self.quantised, [step.q for step in self.steps])
        steps = [replace(s, f=_renamed(s.f, of_floats), q=_renamed(s.q, of_quantised)) for s in self.steps]
        return Program(steps, floats, quantised, self.spread)


Numbers: TypeAlias = list[int]


def _renamed(buffers: Numbers, of: dict[int, int]) -> Numbers:
    return [NONE if b == NONE else of[b] for b in buffers]


def _share(buffers: list[Buffer], used: list[Numbers]) -> tuple[list[Buffer], dict[int, int]]:
    """Buffers that are needed, and the number of each old one among them; inputs and outputs share with nobody."""
    made: list[Buffer] = []
    of: dict[int, int] = {}
    free: dict[tuple[int, bool], list[int]] = {}
    begins: dict[int, list[int]] = {}
    ends: dict[int, list[int]] = {}
    for b, (first, last) in _spans(used):
        begins.setdefault(first, []).append(b)
        ends.setdefault(last, []).append(b)
    for at in range(len(used)):
        for b in begins.get(at, ()):
            wanted = buffers[b]
            fit = [] if wanted.foreign else free.get((wanted.width, wanted.asked), [])
            of[b] = fit.pop() if fit else len(made)
            if of[b] == len(made):
                made.append(wanted)
        for b in ends.get(at, ()):
            if not buffers[b].foreign:
                free.setdefault((buffers[b].width, buffers[b].asked), []).append(of[b])
    return made, of


def _spans(used: list[Numbers]) -> Iterator[tuple[int, tuple[int, int]]]:
    """(buffer, (first stage, last stage))."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for at, numbers in enumerate(used):
        for b in numbers:
            if b != NONE:
                first.setdefault(b, at)
                last[b] = at
    for b in sorted(first):
        yield b, (first[b], last[b])


def names(program: Program) -> Iterable[str]:
    """Every constant that the program reads."""
    for step in program.steps:
        yield from (name for name in (step.gamma, step.cos, step.sin, step.ids) if name)
        for m in step.matrices:
            yield from (name for name in (m.codes, m.scale, m.offset, m.bias) if name)
        if step.table is not None:
            yield from (name for name in (step.table.codes, step.table.scale, step.table.offset) if name)
