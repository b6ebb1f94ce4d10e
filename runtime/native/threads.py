"""The threads that run programs.

Enters: how many. Leaves: the same ones for every graph that wants as many: those of two graphs would take turns badly
on the same processors, since one's spin for its next run while the other's begins.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

from spec_edge.runtime.native.library import library
from spec_edge.runtime.providers.provider import ProviderFailed


class Threads:
    """One run at a time; whoever wants one holds `lock`. count: threads, the caller's own among them."""

    def __init__(self, count: int) -> None:
        """ProviderFailed: the system gives no memory."""
        self.lock, self._process = threading.Lock(), os.getpid()
        self._pool = library().native_pool(count)
        if not self._pool:
            raise ProviderFailed("the system gives no memory for threads")
        self.count: int = library().native_threads(self._pool)
        weakref.finalize(self, _free, self._pool, self._process)

    def run(self, reference: Any) -> int:
        """What native_run gives; whoever calls holds `lock`."""
        code: int = library().native_run(self._pool, reference)
        return code

    @property
    def here(self) -> bool:
        """Whether this is the process that began them."""
        return os.getpid() == self._process

    def ours(self) -> None:
        """Before `lock`, which somebody may have held at the fork. ProviderFailed: they are another process's."""
        if not self.here:
            raise ProviderFailed("this process was forked from the one that loaded the model: load it here")


_SHARED: weakref.WeakValueDictionary[tuple[int, int], Threads] = weakref.WeakValueDictionary()
_MAKING = threading.Lock()


def shared(count: int) -> Threads:
    """Those of this process; they end with the last graph that holds them."""
    with _MAKING:
        found = _SHARED.get((os.getpid(), count))
        if found is None:
            found = _SHARED[os.getpid(), count] = Threads(count)
        return found


def _free(pool: int, process: int) -> None:
    """Ends the threads, which a forked process has not."""
    if os.getpid() == process:
        library().native_free(pool)
