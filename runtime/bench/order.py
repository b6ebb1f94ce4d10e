"""The interleaved run: every contender on each prompt before the next prompt, the order rotated.

Enters: contenders and items. Leaves: records, and why a contender dropped out. A disturbance of the machine falls on
neighbours in time, which are the very runs that are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from spec_edge.models.contract import SpecError
from spec_edge.runtime.bench.runs import Contender, Item, Record

T = TypeVar("T")
Tick = Callable[[], object]


def rotated(things: Sequence[T], turn: int) -> list[T]:
    """A row of Williams' design: over `len(things)` turns everyone is in every place once, and (over twice as many,
    where the number is odd) follows everyone else equally often. Who runs next is disturbed by who ran last.
    Source: Williams 1949."""
    count = len(things)
    zigzag = [(place + 1) // 2 if place % 2 else -(place // 2) for place in range(count)]
    row = [things[(step + turn) % count] for step in zigzag]
    return row[::-1] if count % 2 and turn // count % 2 else row


class Measured(NamedTuple):
    """names: of the contenders that got through, in their order. records: theirs. failures: what stopped the others."""

    names: list[str]
    records: list[Record]
    failures: dict[str, str]

    def and_then(self, later: Measured) -> Measured:
        """Of two sittings; who failed in either is out."""
        failures = self.failures | later.failures
        names = [n for n in dict.fromkeys([*self.names, *later.names]) if n not in failures]
        records = [r for r in [*self.records, *later.records] if r.contender not in failures]
        return Measured(names, records, failures)


def measure(
    contenders: Sequence[Contender],
    items: Sequence[Item],
    repeats: int,
    tick: Tick = int,
    first: int = 0,
    before: Tick = int,
) -> Measured:
    """One sitting. Each contender runs the first item once before, unrecorded.

    tick   is called after every run, also one that is left out because its contender has failed
    first  number of the first repeat: an earlier sitting had those before it
    before  is called before each item
    """
    records: list[Record] = []
    failures: dict[str, str] = {}

    def run(contender: Contender, item: Item, repeat: int | None) -> None:
        if contender.name not in failures:
            try:
                done = contender.generate(item)
            except SpecError as error:
                failures[contender.name] = error.message
            else:
                if repeat is not None:
                    records.append(Record(contender.name, item.question, item.task, item.turn, repeat, done))
        tick()

    for contender in contenders:
        run(contender, items[0], None)
    for repeat in range(first, first + repeats):
        for number, item in enumerate(items):
            before()
            for contender in rotated(contenders, number + repeat):
                run(contender, item, repeat)
    names = [c.name for c in contenders if c.name not in failures]
    return Measured(names, [r for r in records if r.contender not in failures], failures)


def runs_in_all(contenders: int, items: int, repeats: int) -> int:
    """How often `measure` ticks."""
    return contenders * (1 + items * repeats)
