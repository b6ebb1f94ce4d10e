"""The parent's end of a child that runs a program under test (child.py).

Enters: an adapter's file and an interpreter. Leaves: answers, or `Failed` in one line: what the child said, or that it
ended or fell silent. A crash there is the child's own, and so is its memory.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from spec_edge.runtime.bench import child
from spec_edge.runtime.bench.runs import Failed

UNKNOWN = " (an instruction that cannot be used here: build it for fewer)"
CODES = {-4: UNKNOWN, 0xC000001D: UNKNOWN, -9: " (killed, perhaps for want of memory)"}
"""What the system's own codes mean: POSIX signals, and Windows' status."""

ANSWER_S = 900.0
"""A generation that takes longer is given up."""

WORK_S = 7200.0
"""The same for converting weights."""


class NotInstalled(Failed):
    """The program is not there."""


class Child:
    """A running child. `close` ends it; so does the end of the parent, whose pipe it reads."""

    def __init__(self, adapter: Path, python: str) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        command = [python, str(Path(child.__file__)), str(adapter)]
        environment = {**os.environ, "PYTHONUTF8": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env=environment,
                encoding="utf-8",
            )
        except OSError as error:
            self._log.close()
            raise Failed(f"cannot start {python}: {error.strerror or error}") from None
        self._answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        assert self._process.stdout is not None
        self._reader = threading.Thread(target=_pump, args=(self._process.stdout, self._answers), daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, do: str, seconds: float = ANSWER_S, **job: Any) -> dict[str, Any]:
        """The answer to one request. NotInstalled, Failed: in one line."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **job}) + "\n")
            self._process.stdin.flush()
        except (OSError, ValueError):  # ValueError: its pipe was closed here
            raise Failed(self._ended()) from None
        try:
            line = self._answers.get(timeout=seconds)
        except queue.Empty:
            self.close(patience=0)
            raise Failed(f"no answer to '{do}' within {seconds:g} s") from None
        if line is None:
            raise Failed(self._ended())
        answer: dict[str, Any] = json.loads(line)
        if answer["ok"]:
            return answer
        raise (NotInstalled if answer.get("missing") else Failed)(answer["error"])

    def close(self, patience: float = 10.0) -> None:
        """End it, kindly first: it has `patience` seconds to leave by itself."""
        if self._process.stdin is not None:
            with suppress(OSError):  # a pipe that is broken is as good as closed
                self._process.stdin.close()
        try:
            self._process.wait(timeout=patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(timeout=10)
        if self._process.stdout is not None and not self._reader.is_alive():
            self._process.stdout.close()
        if not self._log.closed:
            self._log.close()

    def _ended(self) -> str:
        code = self._process.wait(timeout=60)
        said = ""
        if not self._log.closed:
            self._log.seek(0)
            lines = self._log.read().decode("utf-8", "replace").strip().splitlines()
            said = f": {lines[-1].strip()[:300]}" if lines else ""
        return f"its process ended with code {code}{CODES.get(code, '')}{said}"


def _pump(source: TextIO | Any, answers: queue.SimpleQueue[str | None]) -> None:
    """Lines as they come, then None: a pipe cannot be read with a time limit on every system."""
    for line in source:
        answers.put(line)
    answers.put(None)
