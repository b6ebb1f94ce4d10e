"""A lock across a fork: nobody waits for a thread that is not there."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable

import pytest

from spec_edge.models.contract import SpecError
from spec_edge.runtime.turn import Turn

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


def in_child(what: Callable[[], bool]) -> bool:
    child = os.fork()  # noqa: TID251 (skipped where there is none)
    if not child:
        try:
            os._exit(0 if what() else 1)
        finally:
            os._exit(2)
    return os.waitpid(child, 0)[1] == 0


@pytest.mark.filterwarnings("ignore:This process")  # later Pythons say that threads and fork do not go together
def test_a_turn_that_another_thread_held_is_refused_in_the_child() -> None:
    turn, held, go = Turn(), threading.Event(), threading.Event()

    def hold() -> None:
        with turn:
            held.set()
            go.wait(60)

    def refused() -> bool:
        try:
            with turn:
                return False
        except SpecError as error:
            return "load it here" in error.message

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    try:
        assert in_child(refused)
    finally:
        go.set()
        thread.join()
    with turn, turn:  # here it goes on, and may be taken twice
        pass


def test_a_free_turn_is_the_childs_own() -> None:
    turn = Turn()

    def works() -> bool:
        found: list[int] = []

        def take() -> None:
            for _ in range(200):
                with turn:
                    found.append(1)

        threads = [threading.Thread(target=take) for _ in range(2)]
        with turn:
            for thread in threads:
                thread.start()
        for thread in threads:
            thread.join()
        return len(found) == 400

    sys.stdout.flush()
    assert in_child(works)
