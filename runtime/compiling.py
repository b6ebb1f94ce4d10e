"""A graph compiled for a device, by a child process that may hang or crash, and kept in the user's cache folder.

Enters: a graph (`Job`), a provider and what it found. Leaves: the artefact's path, from the cache or just compiled, or
ProviderFailed in one line: refused, died (with how), not done in time. What failed is remembered for three days, so
that a compiler which hangs is not waited for at every start.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import click

from spec_edge.models.contract import BadUsage
from spec_edge.runtime import compiled_store as store
from spec_edge.runtime.compile_child import request
from spec_edge.runtime.providers.provider import Found, Job, Provider, ProviderFailed, ProviderMissing
from spec_edge.runtime.termination import termination_as_interrupt

TIMEOUT_S = 1800.0
"""Real compilers took 5 to 140 s for a 135M model on two busy cores, and once 570 s."""

MOST_GB = 10.0
TICK_S = 0.25
CHILD = ("-m", "spec_edge.runtime.compile_child")

WINDOWS_CODES = {
    0xC0000005: "access violation",
    0xC0000409: "fast fail",
    0xC0000374: "heap corruption",
    0xC00000FD: "stack overflow",
    0xC000001D: "illegal instruction",
    0xC0000135: "a library is missing",
    0x40000015: "fatal app exit",
}

Progress = Callable[[str, float], None]
"""Called a few times a second with (the graph's name, seconds so far)."""


@dataclass(frozen=True)
class CompileSettings:
    """How graphs are compiled.

    timeout_s   for one graph
    most_bytes  of the cache
    folder      of the cache; None: the user's
    again       compile even what is in the cache or is known to fail
    tried       the child also runs the artefact once, over zeros: a driver that dies of it does not take the app down
    command     starts the child; (): this interpreter. A frozen app gives one that ends in compile_child.main
    """

    timeout_s: float = TIMEOUT_S
    most_bytes: int = int(MOST_GB * 1e9)
    folder: Path | None = None
    again: bool = False
    tried: bool = True
    command: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.timeout_s > 0:
            raise BadUsage(f"a compiler needs more than {self.timeout_s:g} s")
        if self.most_bytes < 0:
            raise BadUsage(f"the cache of compiled graphs cannot have {self.most_bytes} bytes")


def settings_from(environment: Mapping[str, str], again: bool = False) -> CompileSettings:
    """SPEC_EDGE_COMPILE_S: seconds for a graph; SPEC_EDGE_COMPILED_GB: size of the cache. BadUsage: no number."""
    numbers = {}
    for name, default in (("SPEC_EDGE_COMPILE_S", TIMEOUT_S), ("SPEC_EDGE_COMPILED_GB", MOST_GB)):
        text = environment.get(name, "")
        try:
            numbers[name] = float(text) if text else default
        except ValueError:
            numbers[name] = float("nan")
        if not 0 <= numbers[name] < 1e9:
            raise BadUsage(f"{name}={text!r} is not a number of 0 or more")
    if not numbers["SPEC_EDGE_COMPILE_S"]:
        raise BadUsage("SPEC_EDGE_COMPILE_S is 0; a compiler needs some seconds for a graph")
    return CompileSettings(numbers["SPEC_EDGE_COMPILE_S"], int(numbers["SPEC_EDGE_COMPILED_GB"] * 1e9), again=again)


def note(line: str) -> None:
    """A line on standard error."""
    click.echo(line, err=True)


def compiled(
    job: Job,
    provider: Provider,
    found: Found,
    settings: CompileSettings | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] = note,
) -> Path | None:
    """The artefact of `job.graph` for this provider; None: the provider is not asked to compile.

    ProviderFailed: the compiler refused, died, hung, or did so lately. ProviderMissing: it is not there.
    Ctrl-C ends the compiler too. say: gets a line about a cache that is damaged or cannot be written.
    """
    settings = settings or settings_from(os.environ)
    if provider.compile is None or (not provider.keeps and not settings.command and _frozen()):
        return None
    folder, key = settings.folder or store.store_folder(), store.cache_key(job, provider, found)
    if settings.again:
        store.forget(folder, key)
    elif artefact := store.find(folder, key, say):
        return artefact
    _refuse_known(folder, key, settings)
    need = -(-job.weights.bytes // job.graph.parts) if provider.keeps else 0
    with _workplace(folder, need, provider, say) as work:
        made = _compile(job, provider, found, settings, work, key, progress or (lambda _graph, _seconds: None))
        artefact = store.publish(work, folder, key, made, say)
    store.trim(folder, settings.most_bytes, keep=key)
    return artefact


def _refuse_known(folder: Path, key: str, settings: CompileSettings) -> None:
    known = store.failure(folder, key)
    if known is None or (known["timeout_s"] is not None and settings.timeout_s > known["timeout_s"]):
        return
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(known["when"]))
    raise ProviderFailed(
        f"{known['what']} (on {when}; not tried again for three days; spec-edge doctor --recompile forgets it)"
    )


@contextmanager
def _workplace(folder: Path, need: int, provider: Provider, say: Callable[[str], None]) -> Iterator[Path]:
    """A folder to compile in. It is removed if that fails, and at exit where its artefact lasts for this run only.

    need: bytes of weights that a compiled graph carries
    """
    try:
        work = store.workplace(folder, need, say)
    except OSError as error:
        raise ProviderFailed(
            f"{provider.name}: there is nowhere to write a compiled graph ({error.strerror})"
        ) from None
    try:
        yield work
    except BaseException:
        store.discard(work)
        raise
    store.discard_at_exit(work)


def _compile(
    job: Job, provider: Provider, found: Found, settings: CompileSettings, work: Path, key: str, progress: Progress
) -> store.Made:
    name, begun = job.graph.name, time.monotonic()
    file, folder = work / store.ARTEFACT, settings.folder or store.store_folder()
    try:
        answer = _in_child(job, provider, settings, file, progress)
    except _Lasting as failed:
        what = f"{provider.name}: {failed}"
        store.remember(folder, key, what, settings.timeout_s if isinstance(failed, _Slow) else None)
        raise ProviderFailed(what) from None
    if not answer["ok"]:
        what = f"{provider.name}: {name} was not compiled: {answer['error']}"
        if answer["kind"] == "missing":
            raise ProviderMissing(answer["error"])
        if answer["kind"] == "refused" and provider.keeps:  # else the device may only have been full, or reset
            store.remember(folder, key, what, None)
        raise ProviderFailed(what)
    if not file.is_file() or not file.stat().st_size:
        raise ProviderFailed(f"{provider.name}: the compiler said that {name} was done and wrote nothing")
    return store.Made(
        provider.name,
        found.device,
        name,
        job.graph.file.sha256,
        job.weights.sha256,
        round(time.monotonic() - begun, 2),
        answer["peak_bytes"],
    )


class _Lasting(Exception):
    """A failure to remember."""


class _Slow(_Lasting):
    """It did not end in time."""


def _in_child(
    job: Job, provider: Provider, settings: CompileSettings, file: Path, progress: Progress
) -> dict[str, Any]:
    """The child's answer. _Lasting: it died or was too slow."""
    with tempfile.TemporaryDirectory(prefix="spec-edge-compiler-", ignore_cleanup_errors=True) as scratch:
        answer = Path(scratch) / "answer.json"
        with (Path(scratch) / "log").open("w+b") as log, termination_as_interrupt():
            child = _start(_command(settings, provider), Path(scratch), log)
            try:
                with suppress(OSError):  # it died before it read
                    assert child.stdin is not None
                    child.stdin.write(request(job, provider.name, file, answer, settings.tried).encode())
                    child.stdin.flush()
                code = _wait(child, job.graph.name, settings.timeout_s, progress)
            finally:
                _end(child)
            with suppress(OSError, ValueError):
                found: dict[str, Any] = json.loads(answer.read_text("utf-8"))
                return found
            raise _Lasting(f"the compiler died on {job.graph.name} ({exit_words(code)}){_last_line(log)}")


def _command(settings: CompileSettings, provider: Provider) -> list[str]:
    if settings.command:
        return list(settings.command)
    if _frozen():
        raise ProviderFailed(
            f"{provider.name}: a frozen app must say how to start its compiler: CompileSettings(command=...), see "
            "spec_edge.runtime.compile_child"
        )
    return [sys.executable, *CHILD]


def _frozen() -> bool:
    """Whether this program has no Python to start."""
    return bool(getattr(sys, "frozen", False)) or not sys.executable


def _start(command: list[str], folder: Path, log: IO[bytes]) -> subprocess.Popen[bytes]:
    """In a session or group of its own: Ctrl-C reaches this process, which then ends it with all that it started."""
    flags = getattr(subprocess, "CREATE_NO_WINDOW", 0) | getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            cwd=folder,
            env={**os.environ, "PYTHONUTF8": "1"},
            start_new_session=True,
            creationflags=flags,
        )
    except OSError as error:
        raise ProviderFailed(f"cannot start {command[0]} to compile ({error.strerror or error})") from None


def _wait(child: subprocess.Popen[bytes], graph: str, timeout_s: float, progress: Progress) -> int:
    begun = time.monotonic()
    while True:
        with suppress(subprocess.TimeoutExpired):
            return child.wait(min(TICK_S, timeout_s))
        spent = time.monotonic() - begun
        if spent >= timeout_s:
            raise _Slow(f"compiling {graph} did not finish within {timeout_s:g} s")
        progress(graph, spent)


def _end(child: subprocess.Popen[bytes]) -> None:
    """The child and its children, whether it has ended or not."""
    with suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(child.pid, 9)
        elif child.poll() is None:
            kill = Path(os.environ.get("SYSTEMROOT", r"C:\Windows")) / "System32" / "taskkill.exe"
            subprocess.run([str(kill), "/PID", str(child.pid), "/T", "/F"], capture_output=True, check=False)
    with suppress(OSError):
        child.kill()
    child.wait()
    if child.stdin is not None:
        with suppress(OSError):
            child.stdin.close()


def exit_words(code: int) -> str:
    """An exit code in words: the signal's name, or what Windows calls it."""
    if code < 0:
        with suppress(ValueError):
            return f"signal {signal.Signals(-code).name}"
        return f"signal {-code}"
    known = WINDOWS_CODES.get(code)
    return f"exit code 0x{code:08X}, {known}" if known else f"exit code {code}"


def _last_line(log: IO[bytes]) -> str:
    """ ": " and the last line that it said; "" if it said nothing."""
    log.seek(0, os.SEEK_END)
    log.seek(max(0, log.tell() - 8192))
    lines = [" ".join(line.split()) for line in log.read().decode("utf-8", "replace").splitlines()]
    said = "".join(c for c in next((line for line in reversed(lines) if line), "") if c.isprintable())
    return f": {said[:300]}" if said else ""
