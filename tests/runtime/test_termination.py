"""A termination request ends a block as Ctrl-C does, and only there."""

from __future__ import annotations

import builtins
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from spec_edge.export import cli as export_cli
from spec_edge.runtime import cli
from spec_edge.runtime.providers import _openvino
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


def _loaded(*_: object, **__: object) -> NoReturn:
    """What a compiled module says where Ctrl-C comes while it is loaded."""
    raise ImportError("initialization failed") from KeyboardInterrupt()


@pytest.mark.parametrize("guard", [cli.one_line_errors, export_cli.one_line_errors])
def test_ctrl_c_in_an_import_is_an_interrupt(guard: Callable[[Any], Any], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        guard(_loaded)()
    assert ended.value.code == cli.INTERRUPTED
    assert capsys.readouterr().err.startswith("interrupted")

    def missing() -> None:
        raise ImportError("no module")

    with pytest.raises(ImportError, match="no module"):
        guard(missing)()


def test_ctrl_c_is_no_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "openvino", raising=False)
    monkeypatch.setattr(builtins, "__import__", _loaded)
    with pytest.raises(KeyboardInterrupt):
        _openvino.package()


ASKS = """
import sys
from spec_edge.runtime.asking import asked
child = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(60)"
asked([sys.executable, "-c", child, sys.argv[1]])
"""


@pytest.mark.usefixtures("ends_by_signal")
def test_a_driver_that_hangs_when_asked_ends_with_whoever_asks(tmp_path: Path) -> None:
    told = tmp_path / "child"
    parent = subprocess.Popen([sys.executable, "-c", ASKS, str(told)], stderr=subprocess.DEVNULL)
    try:
        while not (told.is_file() and told.read_text()):
            assert parent.poll() is None
            time.sleep(0.02)
        parent.terminate()
        parent.wait(20)
        with pytest.raises(ProcessLookupError):
            os.kill(int(told.read_text()), 0)
    finally:
        parent.kill()
        parent.wait()
