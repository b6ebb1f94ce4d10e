"""The cache of compiled graphs: one folder per artefact in the user's cache folder.

Enters: a key, and the folder that a compiler wrote into. Leaves: the artefact's path, checked by size and SHA-256; what
is there (`entries`); what failed lately (`failure`). Every entry is written whole or not at all: it is renamed into
place. The cache is bounded; what was used longest ago goes first.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import platformdirs

from spec_edge.models.contract import GraphSpec
from spec_edge.runtime.bundle import sha256
from spec_edge.runtime.providers.provider import Found, Job, Provider

ARTEFACT = "artefact"
"""The file that a provider's `compile` writes; files that it writes beside it belong to it."""

ENTRY = "entry.json"
PARTIAL = ".partial-"
FAILED = ".failed.json"
STALE_S = 6 * 3600
"""A partial folder this old belongs to a process that was killed."""

FRESH_S = 600.0
"""What was used this lately may be about to be opened, so it is not evicted."""

FAILED_S = 3 * 86400.0
"""How long a compiler that crashed, hung or refused is not asked again for the same key."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Made:
    """What is known of an artefact. seconds and peak_bytes: of its compiler; peak_bytes None: not told here."""

    provider: str
    device: str
    graph: str
    graph_sha256: str
    weights_sha256: str
    seconds: float
    peak_bytes: int | None


@dataclass(frozen=True)
class Entry:
    """An artefact in the cache. bytes: of all its files; used: seconds since the epoch."""

    path: Path
    made: Made
    bytes: int
    used: float


def store_folder() -> Path:
    """Where compiled graphs lie; SPEC_EDGE_COMPILED names another folder."""
    given = os.environ.get("SPEC_EDGE_COMPILED")
    return Path(given).absolute() if given else platformdirs.user_cache_path("spec-edge", appauthor=False) / "compiled"


def cache_key(job: Job, provider: Provider, found: Found) -> str:
    """SHA-256 over all that an artefact depends on: graph, weights, provider, options, device, driver, versions, OS."""
    facts = [
        job.graph.file.sha256,
        job.weights.sha256,
        provider.name,
        sorted(job.options.items()),
        [found.device, found.driver, sorted(found.versions.items())],
        [platform.system(), platform.release(), platform.version(), platform.machine()],
        version("spec-edge"),
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def workplace(folder: Path, need: int, say: Say) -> Path:
    """A new private folder to compile in, in the cache if that can be written and has room for `need` bytes more.

    OSError: there is nowhere to write.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_owner(folder)
        _sweep(folder)
        free = shutil.disk_usage(folder).free
        if free < need:
            raise OSError(f"{free / 1e6:.0f} MB are free, and a graph may take {need / 1e6:.0f}")
        return Path(tempfile.mkdtemp(prefix=PARTIAL, dir=folder))
    except OSError as error:
        say(
            f"note: compiled graphs cannot be kept in {folder} ({error.strerror or error}); they last for this run only"
        )
        return Path(tempfile.mkdtemp(prefix="spec-edge-compiled-"))


def find(folder: Path, key: str, say: Say) -> Path | None:
    """The artefact under `key`, checked; None: there is none. A damaged one is removed, with a line."""
    place = folder / key
    try:
        _check_owner(folder)
    except OSError:  # there is none, or not one to trust: `workplace` says it
        return None
    if not place.is_dir():
        return None
    try:
        files = json.loads((place / ENTRY).read_text("utf-8"))["files"]
        if ARTEFACT not in files:
            raise ValueError(f"{ARTEFACT} is not vouched for")
        for name, fact in files.items():
            file = place / name
            if file.parent != place or file.stat().st_size != fact["bytes"] or sha256(file) != fact["sha256"]:
                raise ValueError(f"{name} has changed")
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        say(f"note: the compiled graph in {place} is damaged; it is compiled again")
        _remove(place)
        return None
    with suppress(OSError):
        os.utime(place / ENTRY)
    return place / ARTEFACT


def publish(work: Path, folder: Path, key: str, made: Made, say: Say) -> Path:
    """The artefact in `work`, moved into the cache; of two processes at once, the second to end is dropped.

    Where it cannot be moved it stays in `work`, and lasts for this run.
    """
    try:
        files = {p.name: {"bytes": p.stat().st_size, "sha256": sha256(p)} for p in work.iterdir() if p.is_file()}
        (work / ENTRY).write_text(json.dumps({"made": asdict(made), "files": files}), encoding="utf-8")
        if work.parent != folder:
            return work / ARTEFACT
        for _ in range(2):
            with suppress(OSError):
                work.rename(folder / key)
                return folder / key / ARTEFACT
            if found := find(folder, key, say):
                shutil.rmtree(work, ignore_errors=True)
                return found
        raise OSError(f"{key} cannot be renamed into place")
    except OSError as error:
        say(
            f"note: a compiled graph cannot be kept in {folder} ({error.strerror or error}); it lasts for this run only"
        )
        return work / ARTEFACT


def discard(work: Path) -> None:
    """Remove a workplace."""
    shutil.rmtree(work, ignore_errors=True)


def discard_at_exit(work: Path) -> None:
    """Remove a workplace whose artefact this run still uses; nothing is there any more if it was published."""
    if work.exists():
        atexit.register(discard, work)


def entries(folder: Path | None = None) -> tuple[Entry, ...]:
    """All artefacts, the last used first; what cannot be read is left out."""
    return tuple(sorted(_entries(folder or store_folder()), key=lambda entry: -entry.used))


def compiled_bytes(graphs: Iterable[GraphSpec], provider: str, folder: Path | None = None) -> dict[str, int]:
    """Bytes of the artefacts of these graphs, by the graph's name: the last used where there are several."""
    wanted = {graph.file.sha256: graph.name for graph in graphs}
    found = (e for e in reversed(entries(folder)) if e.made.provider == provider and e.made.graph_sha256 in wanted)
    return {wanted[e.made.graph_sha256]: e.bytes for e in found}


def trim(folder: Path, most: int, keep: str = "") -> int:
    """Remove what was used longest ago until at most `most` bytes are left; bytes removed.

    The entry `keep`, and what was used within the last ten minutes, stays, so the bound may be exceeded for a while.
    """
    found = entries(folder)
    total, removed, fresh = sum(entry.bytes for entry in found), 0, time.time() - FRESH_S
    for entry in reversed(found):
        if total - removed <= most:
            break
        if entry.path.parent.name != keep and entry.used < fresh and _remove(entry.path.parent):
            removed += entry.bytes
    return removed


def clear(folder: Path | None = None, failures_only: bool = False) -> int:
    """Empty the cache, or forget failures only; how many were removed."""
    place, count = folder or store_folder(), 0
    with suppress(OSError):
        for path in list(place.iterdir()):
            if path.name.endswith(FAILED):
                with suppress(OSError):
                    path.unlink()
                    count += 1
            elif not failures_only and (path / ENTRY).is_file():
                count += _remove(path)
    return count


def failure(folder: Path, key: str) -> dict[str, Any] | None:
    """{"what", "when", "timeout_s"} of a failure that is still believed; None: there is none."""
    try:
        stored: dict[str, Any] = json.loads((folder / (key + FAILED)).read_text("utf-8"))
        what, when, limit = str(stored["what"]), float(stored["when"]), stored["timeout_s"]
        if 0 <= time.time() - when < FAILED_S and (limit is None or float(limit) > 0):
            return {"what": what, "when": when, "timeout_s": limit}
    except (OSError, ValueError, TypeError, KeyError):
        pass
    return None


def remember(folder: Path, key: str, what: str, timeout_s: float | None) -> None:
    """Keep a failure if that can be written. timeout_s: the limit that was passed; None: it failed by itself."""
    text = json.dumps({"what": what, "when": time.time(), "timeout_s": timeout_s})
    with suppress(OSError):
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=PARTIAL)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as out:
                out.write(text)
            Path(temporary).replace(folder / (key + FAILED))
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


def forget(folder: Path, key: str) -> None:
    """The artefact under `key` and its failure, if any, are removed."""
    with suppress(OSError):
        (folder / (key + FAILED)).unlink()
    if (folder / key).is_dir():
        _remove(folder / key)


def entry(artefact: Path) -> Entry | None:
    """What is known of an artefact; None: it cannot be read."""
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
        file = artefact.parent / ENTRY
        stored = json.loads(file.read_text("utf-8"))
        size = sum(int(fact["bytes"]) for fact in stored["files"].values())
        return Entry(artefact, Made(**stored["made"]), size, file.stat().st_mtime)
    return None


def _entries(folder: Path) -> Iterator[Entry]:
    with suppress(OSError):
        for place in folder.iterdir():
            if found := entry(place / ARTEFACT):
                yield found


def _check_owner(folder: Path) -> None:
    """A driver will read what lies here, so nobody else may write it. OSError (PermissionError): somebody may."""
    user = getattr(os, "getuid", None)
    if user is None:  # Windows: the user's profile folder has its own access list
        return
    info = folder.stat()
    if info.st_uid != user() or info.st_mode & 0o022:
        raise PermissionError(None, "another user may write there")


def _remove(place: Path) -> bool:
    """Rename it away first, so that no other process finds half of it; False where something holds it open."""
    away = place.with_name(f"{PARTIAL}{place.name[:16]}-{os.getpid()}-{time.monotonic_ns()}")
    try:
        place.rename(away)
    except OSError:
        return False
    shutil.rmtree(away, ignore_errors=True)
    return True


def _sweep(folder: Path) -> None:
    for path in folder.iterdir():
        with suppress(OSError):
            age = time.time() - path.stat().st_mtime
            if path.name.startswith(PARTIAL) and age > STALE_S:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            elif path.name.endswith(FAILED) and age > FAILED_S:
                path.unlink()
