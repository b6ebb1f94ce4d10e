"""Files of a report, whole or not at all.

Enters: a folder and what belongs in it. Leaves: the files, each renamed into place; BadUsage where the folder cannot
be written, found out before anything is measured.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from spec_edge.models.contract import BadUsage

FOLDERS = re.compile(r"""(?<![\w.])(?:[A-Za-z]:)?[/\\](?:[^\s/\\'":]+[/\\])+""")
"""The folders at the head of an absolute path."""


@contextmanager
def ready(folder: Path | None) -> Iterator[None]:
    """Make the folder and try it. Where the block fails, what was made here and is still empty is removed."""
    made = [] if folder is None else [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        if folder is not None:
            _tried(folder)
        yield
    except BaseException:
        with suppress(OSError):  # one that holds something stays, and so do those above it
            for place in made:
                place.rmdir()
        raise


def _tried(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise BadUsage(
            f"cannot write into {folder}: {error.strerror or error}; name another folder with --out"
        ) from None


def write(path: Path, fill: Callable[[Path], object]) -> None:
    """`fill` writes a file beside `path`, which then takes its place."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        fill(temporary)
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """UTF-8 with plain line ends."""
    write(path, lambda file: file.write_text(text, encoding="utf-8", newline="\n"))


def without_folders(value: Any) -> Any:
    """The same with only the last part of every absolute path in its texts: a report is for other people too."""
    if isinstance(value, Mapping):
        return {name: without_folders(v) for name, v in value.items()}
    return FOLDERS.sub("", value) if isinstance(value, str) else value


def dumped(report: Mapping[str, Any]) -> str:
    """The text of report.json. Not-a-number would be no JSON, so it is an error here."""
    return json.dumps(report, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
