"""What the user calls a model, to the folder of a bundle.

Enters: a bundle's folder, a GGUF file, a Hugging Face folder, a hub id or an alias. Leaves: a bundle's folder. Anything
but a bundle is exported on first use into the user's cache folder, by `spec-export` in a child process, whose
progress goes to standard error. A folder in the cache is complete: it is renamed into place at the end.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

import click
import platformdirs

from spec_edge.models.aliases import ALIASES
from spec_edge.models.contract import FORMAT, BadUsage, SpecError
from spec_edge.runtime.bundle import Bundle, is_bundle, open_bundle
from spec_edge.runtime.termination import SaidInterrupt, Termination, termination_as_interrupt

DEFAULT = "smollm2-135m"
PIP = 'pip install "spec-edge[export]"'
NEEDED = ("onnx", "gguf", "safetensors")
"""What the export extra installs; without it only bundles run."""

STALE_S = 6 * 3600
"""A leftover this old belongs to an export that was killed, not to one that runs."""

INTERRUPTED = 130
"""Exit code of an export that Ctrl-C ended."""

CHILD_S = 15.0
"""How long an interrupted export may take to clean up."""

_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")


def bundle_folder(model: str, cache: Path | None = None) -> Path:
    """The bundle that `model` names, exported first if need be. BadUsage: nothing is called that."""
    path = Path(model).expanduser()
    if is_bundle(path):
        return path
    identity = _identity(model, path)
    folder = (cache or cache_folder()) / _key(identity)
    if not is_bundle(folder):
        _require_export(model)
        _export(identity[0], folder)
    return folder


def open_model(model: str, cache: Path | None = None) -> Bundle:
    """The bundle that `model` names, opened. One of ours that is damaged is said and made again, the user's never."""
    folder = bundle_folder(model, cache)
    try:
        return open_bundle(folder)
    except SpecError as error:
        if folder.parent != (cache or cache_folder()) or is_bundle(Path(model).expanduser()):
            raise
        click.echo(f"note: {error.message.partition(': export it again')[0]}; the bundle is made again", err=True)
    shutil.rmtree(folder, ignore_errors=True)
    return open_bundle(bundle_folder(model, cache))


def check_name(model: str) -> None:
    """BadUsage where nothing is called `model`. Nothing is read, fetched or exported for it."""
    path = Path(model).expanduser()
    if not is_bundle(path):
        _identity(model, path)


def cache_folder() -> Path:
    """Where bundles made on first use lie."""
    return platformdirs.user_cache_path("spec-edge", appauthor=False) / "bundles"


def _identity(model: str, path: Path) -> list[str]:
    """The argument for spec-export, and what changes when the model does."""
    if path.is_file():
        return _stamps(path.resolve(), [path.resolve()])
    if (path / "config.json").is_file():
        parts = (p for p in path.resolve().iterdir() if p.suffix in (".json", ".safetensors"))
        return _stamps(path.resolve(), sorted(parts))
    if path.is_dir():
        raise BadUsage(f"'{model}' is neither a bundle (no bundle.json) nor a model (no config.json)")
    if path.exists():
        raise BadUsage(f"'{model}' is neither a file nor a folder; name a bundle, a GGUF file or a Hugging Face folder")
    if model in ALIASES or _HUB_ID.fullmatch(model):
        return [model]
    raise BadUsage(
        f"'{model}' does not exist; name a bundle, a GGUF file, a Hugging Face folder, "
        f"a hub id (org/name) or an alias ({', '.join(ALIASES)})"
    )


def _stamps(model: Path, files: Iterable[Path]) -> list[str]:
    facts = ((file, file.stat()) for file in files)
    return [str(model), *(f"{file} {info.st_size} {info.st_mtime_ns}" for file, info in facts)]


def _key(identity: list[str]) -> str:
    """A readable folder name; the same model exported by another version is another bundle."""
    text = json.dumps([*identity, version("spec-edge"), FORMAT])
    name = re.sub(r"[^a-z0-9]+", "-", Path(identity[0]).name.lower()).strip("-")
    return f"{name[:40] or 'model'}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _require_export(model: str) -> None:
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        raise SpecError(f"'{model}' must be exported first, and {missing[0]} is not installed: {PIP}")


def _export(model: str, folder: Path) -> None:
    """By a child that publishes the whole bundle or nothing: of two at once, the second to end is dropped."""
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _sweep(folder.parent)
    except OSError as error:
        raise SpecError(
            f"cannot write the cache folder {folder.parent} ({error.strerror}); export it elsewhere: "
            f"spec-export {model} -o FOLDER, then -m FOLDER"
        ) from error
    code = _run_child(model, folder)
    if is_bundle(folder):
        return
    if code == INTERRUPTED:
        raise SaidInterrupt
    failure = ExportMisused if code == BadUsage.exit_code else ExportFailed
    raise failure(f"the export of '{model}' failed; the reason is on standard error")


class ExportFailed(SpecError):
    """The child has printed the reason, so the command line adds no second message."""

    def show(self, file: IO[Any] | None = None) -> None:
        """Nothing."""


class ExportMisused(ExportFailed):
    """The same, where the child says that the call was wrong."""

    exit_code = BadUsage.exit_code


def _run_child(model: str, output: Path) -> int:
    """The exit code of `spec-export`. All it says goes to standard error, since our output is the answer."""
    command = [sys.executable, "-m", "spec_edge.export", model, "-o", str(output)]
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=_standard_error())
    try:
        with termination_as_interrupt():
            return child.wait()
    except BaseException as error:
        if isinstance(error, Termination):
            child.terminate()
        _end(child)
        shutil.rmtree(output.with_name(f".{output.name}.partial-{child.pid}"), ignore_errors=True)
        if isinstance(error, KeyboardInterrupt) and child.returncode == INTERRUPTED:
            raise SaidInterrupt from None
        raise


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ctrl-C reaches the child too, and it cleans up; one that does not end is told, then made to."""
    for then in (child.terminate, child.kill):
        with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            child.wait(CHILD_S)
            return
        then()
    child.wait()


def _standard_error() -> int:
    """The descriptor of standard error, which a windowed program may not have."""
    try:
        os.fstat(2)
    except OSError:
        return subprocess.DEVNULL
    return 2


def _sweep(cache: Path) -> None:
    """Remove what killed exports left behind."""
    for path in cache.iterdir():
        with suppress(OSError):
            if ".partial-" in path.name and time.time() - path.stat().st_mtime > STALE_S:
                shutil.rmtree(path, ignore_errors=True)
