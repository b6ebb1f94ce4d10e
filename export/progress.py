"""Progress on standard error: named stages with a bar, or one line a stage where there is no terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


@dataclass(frozen=True)
class Stages:
    """`stage(text, total)` opens a stage and gives its tick: a function of how much of `total` is done."""

    console: Console
    bar: Progress | None

    def stage(self, text: str, total: int | None = None) -> Callable[[int], None]:
        if self.bar is None:
            self.console.print(text)
            return _silent
        for task in self.bar.tasks:
            self.bar.update(task.id, total=1, completed=1)
        return _Tick(self.bar, self.bar.add_task(text, total=total))

    def say(self, text: str) -> None:
        """A line that stays."""
        self.console.print(text, highlight=False)


@dataclass(frozen=True)
class _Tick:
    bar: Progress
    task: TaskID

    def __call__(self, done: int) -> None:
        self.bar.update(self.task, completed=done)


def _silent(_done: int) -> None:
    return None


@contextmanager
def stages(quiet: bool = False) -> Iterator[Stages]:
    """Stages on standard error; `quiet` prints nothing."""
    console = Console(stderr=True, quiet=quiet, soft_wrap=True)
    if quiet or not console.is_terminal:
        yield Stages(console, None)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        yield Stages(console, bar)
