"""A request to terminate, handled as Ctrl-C is, so that whoever is asked cleans up first."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Termination(KeyboardInterrupt):
    """A request to terminate: unlike Ctrl-C, it reaches this process only."""


class SaidInterrupt(KeyboardInterrupt):
    """Ctrl-C, or a request to terminate, of which a child process has already told the user."""


def interrupted(error: ImportError) -> bool:
    """Whether Ctrl-C ended this import: what a compiled module makes of it while it is loaded."""
    return isinstance(error.__cause__ or error.__context__, KeyboardInterrupt)


@contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """A termination request ends the block as Ctrl-C does."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise Termination

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not in the main thread: the embedding program owns the signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
