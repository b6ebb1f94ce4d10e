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


@contextmanager
def compiling_line() -> Iterator[Callable[[str, float], None]]:
    """A function of (graph, seconds so far): one line that changes, or one a graph where there is no terminal."""
    console, said = Console(stderr=True, soft_wrap=True), set[str]()
    if console.is_terminal:
        with console.status("") as status:
            yield lambda graph, seconds: status.update(f"compiling {graph}: {seconds:.0f} s")
        return

    def say(graph: str, _seconds: float) -> None:
        if graph not in said:
            said.add(graph)
            console.print(f"compiling {graph}", highlight=False)

    yield say
