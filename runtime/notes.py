"""What the user should know of a run besides its text: lines, as they come.

Enters: lines. Leaves: the same to whoever listens, and all of them so far.
"""

from __future__ import annotations

from collections.abc import Callable


class Notes:
    """lines: all that was said, in order."""

    def __init__(self, listener: Callable[[str], object] | None = None) -> None:
        self.lines: list[str] = []
        self._listener = listener

    def say(self, line: str) -> None:
        self.lines.append(line)
        if self._listener is not None:
            self._listener(line)
