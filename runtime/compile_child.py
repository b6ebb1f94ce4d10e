"""The child process in which a provider compiles one graph: `python -m spec_edge.runtime.compile_child`.

Enters: one line of JSON on standard input, {"provider", "model", "graph", "weights", "options", "threads", "tried",
"file", "answer"}. Leaves: the artefact in `file` and one JSON object in `answer`, {"ok": true, "peak_bytes"} or {"ok":
false, "error", "kind"}. No answer: the compiler took this process down. Whatever is printed here is the compiler's own.

Standard input stays open as long as the parent lives; its end ends this process and all that it started.
A frozen app, whose executable is no Python, gives `CompileSettings.command` an own way to call `main`.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from spec_edge.models.contract import FileFact, GraphSpec, TensorSpec
from spec_edge.runtime.bench.memory import usage
from spec_edge.runtime.manifest import record
from spec_edge.runtime.providers.provider import Array, Job, Provider, ProviderFailed, ProviderMissing, provider

NO_CRASH_WINDOWS = 0x0001 | 0x0002 | 0x8000
"""SEM_FAILCRITICALERRORS, SEM_NOGPFAULTERRORBOX, SEM_NOOPENFILEERRORBOX: a crash ends the process at once."""

KINDS = {ProviderMissing: "missing", OSError: "system", MemoryError: "system"}
"""What is not the graph's fault; anything else is "refused"."""


def request(job: Job, name: str, file: Path, answer: Path, tried: bool) -> str:
    """The line for a child's standard input. tried: the artefact is opened and run once, over zeros."""
    plain = {
        "provider": name,
        "model": str(job.model.absolute()),
        "graph": dataclasses.asdict(job.graph),
        "weights": dataclasses.asdict(job.weights),
        "options": dict(job.options),
        "threads": job.threads,
        "tried": tried,
        "file": str(file.absolute()),
        "answer": str(answer),
    }
    return json.dumps(plain) + "\n"


def main(named: Callable[[str], Provider] = provider) -> NoReturn:
    """Compile what standard input asks for. named: gives the provider of a name."""
    if os.name == "nt":
        getattr(ctypes, "windll").kernel32.SetErrorMode(NO_CRASH_WINDOWS)  # noqa: B009
    asked = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_parent, name="spec-edge-parent", daemon=True).start()
    answer = _compile(asked, named)
    partial = Path(asked["answer"] + ".part")
    partial.write_text(json.dumps(answer), encoding="utf-8")
    partial.replace(asked["answer"])
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)  # the artefact is there: a driver that crashes when it is unloaded changes nothing


def _compile(asked: dict[str, Any], named: Callable[[str], Provider]) -> dict[str, Any]:
    try:
        found = named(asked["provider"])
        if found.compile is None:
            return {"ok": False, "kind": "refused", "error": "this provider compiles nothing ahead of time"}
        job, file = _job(asked), Path(asked["file"])
        found.compile(job, file)
        if asked["tried"] and file.is_file():
            _try(found, dataclasses.replace(job, artefact=file if found.keeps else None))
    except BaseException as error:
        kind = next((kind for cls, kind in KINDS.items() if isinstance(error, cls)), "refused")
        return {"ok": False, "kind": kind, "error": f"{_what(error)}"}
    return {"ok": True, "peak_bytes": usage(os.getpid()).peak_rss}


def _try(on: Provider, job: Job) -> None:
    """Open the artefact, or the graph where there is none, and run it once: a driver that dies of it dies here."""
    try:
        opened = on.open(job)
        inputs, outputs = _zeros(job.graph.inputs), _zeros(job.graph.outputs)  # a run reads and writes them in place
        opened.bind(inputs, outputs)()
        opened.close()
    except ProviderFailed as error:
        what = "it compiles, and then does not run" if on.keeps else "it does not run"
        raise ProviderFailed(f"{what}: {error.message}") from error


def _zeros(tensors: tuple[TensorSpec, ...]) -> dict[str, Array]:
    """An array for each tensor; a symbolic dimension is 1."""
    sizes = {t.name: tuple(d if isinstance(d, int) else 1 for d in t.shape) for t in tensors}
    return {t.name: np.zeros(sizes[t.name], t.dtype) for t in tensors}


def _what(error: BaseException) -> str:
    text = " ".join(str(getattr(error, "message", error)).split())
    return text[:600] or type(error).__name__


def _job(asked: dict[str, Any]) -> Job:
    return Job(
        model=Path(asked["model"]),
        graph=record(GraphSpec, asked["graph"]),
        weights=record(FileFact, asked["weights"]),
        threads=asked["threads"],
        options=asked["options"],
    )


def _end_with_parent() -> None:
    """Wait for the end of standard input. (A compiler that holds the interpreter keeps this from running.)"""
    while sys.stdin.buffer.read(1):
        pass
    if hasattr(os, "killpg") and hasattr(os, "getpgid") and os.getpgid(0) == os.getpid():
        os.killpg(0, 9)
    os._exit(1)


if __name__ == "__main__":
    main()
