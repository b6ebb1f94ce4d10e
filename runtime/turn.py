"""Whose turn it is: a lock that a forked process does not wait for in vain.

Enters: whoever wants the model, for as long as it is theirs. Leaves: SpecError in a process that was forked while the
lock was held, since nobody there will ever give it back, and what it guards may be half written.
"""

from __future__ import annotations

import os
import threading
from types import TracebackType

from spec_edge.models.contract import SpecError


class Turn:
    """Re-entrant, as threading.RLock is."""

    def __init__(self) -> None:
        self._lock, self._process = threading.RLock(), os.getpid()

    def __enter__(self) -> None:
        if os.getpid() == self._process:
            self._lock.acquire()
        elif self._lock.acquire(blocking=False):
            self._process = os.getpid()
        else:
            raise SpecError("this process was forked while the model was writing: load it here")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()
