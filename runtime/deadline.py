"""A call that may never end: data of a bundle decides how long it takes.

Enters: the call and how long it may take. Leaves: its result or its exception, or TimeoutError.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def in_time(call: Callable[[], T], seconds: float) -> T:
    """What `call` gives or raises. Its thread is left behind after `seconds`: a loop cannot be stopped from outside."""
    results: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, name="spec-edge-deadline", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError
    return results[0]
