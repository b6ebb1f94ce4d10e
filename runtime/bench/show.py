"""What a benchmark shows on the terminal: a bar with the time left, then one table.

Enters: stages and ticks; a report. Leaves: standard error (the bar) and standard output (the table).
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

from rich import progress as bars
from rich.console import Console
from rich.table import Table

from spec_edge.runtime.bench.rows import short

FILE_WIDTH = 160


class Progress:
    """One bar at a time. A stage without a count only moves. Where standard error is no terminal: a line a stage."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        columns = (bars.TextColumn("{task.description}"), bars.BarColumn(), bars.MofNCompleteColumn())
        left = (bars.TimeElapsedColumn(), bars.TextColumn("left"), bars.TimeRemainingColumn())
        self._bar = bars.Progress(*columns, *left, console=console, transient=True, disable=not console.is_terminal)
        self._plain = None if console.is_terminal else console
        self._task: bars.TaskID | None = None

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()

    def stage(self, what: str, count: int | None) -> None:
        """A new bar of `count` ticks."""
        if self._plain is not None:
            self._plain.print(what if count is None else f"{what}: {count}", markup=False, highlight=False)
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(what, total=count)

    def tick(self) -> None:
        """One of them."""
        if self._task is not None:
            self._bar.advance(self._task)


def report(found: dict[str, Any]) -> None:
    """The overall table, and what was not measured."""
    console = _console()
    header, rows = short(found)
    table = Table(*header)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    for name, state in found["contenders"].items():
        if "absent" in state:
            console.print(f"not measured: {name}: {state['absent']}", markup=False)
    for name, text in found["lossless"].items():
        if text["faults"] and "/" not in name:
            console.print(f"NOT LOSSLESS: {name}: {text['faults']} answers differ from plain decoding, no near-tie")


def curve(rows: Sequence[dict[str, Any]]) -> None:
    """t(width) of every graph."""
    table = Table("graph", "provider", "past", "width: ms")
    for row in rows:
        times = [f"{w}: {ms:.2f}" for w, ms in zip(row.get("widths", ()), row.get("ms", ()), strict=True)]
        table.add_row(row["graph"], row["provider"], str(row["past"]), ", ".join(times) or row["absent"])
    _console().print(table)


def _console() -> Console:
    """A file has no width of its own."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=FILE_WIDTH)
