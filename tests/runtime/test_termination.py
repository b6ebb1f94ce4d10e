"""A termination request ends a block as Ctrl-C does, and only there."""

from __future__ import annotations

import signal
import threading

import pytest

from spec_edge.runtime.termination import termination_as_interrupt


def test_a_request_becomes_an_interrupt() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), termination_as_interrupt():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_thread_leaves_the_signals_to_the_program() -> None:
    seen = []

    def block() -> None:
        with termination_as_interrupt():
            seen.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=block)
    thread.start()
    thread.join()
    assert seen == [before]
