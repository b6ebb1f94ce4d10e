"""Small results in the user's cache folder, so that a machine is asked once.

Enters: a kind of result, a key that holds all it depends on, plain values. Leaves: the values stored under that key. A
folder that cannot be read or written is none: the machine is asked again.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import platformdirs


def folder_of(kind: str) -> Path:
    """Where results of this kind are kept."""
    return Path(platformdirs.user_cache_dir("spec-edge", appauthor=False)) / kind


def recall(folder: Path, key: str) -> dict[str, Any] | None:
    """What was stored under `key`; None if there is nothing that can be read."""
    try:
        stored: dict[str, Any] = json.loads(place(folder, key).read_text(encoding="utf-8"))
        return stored if stored["key"] == key else None
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def remember(folder: Path, key: str, values: Mapping[str, Any]) -> bool:
    """Store it, whole or not at all. False where the folder cannot be written."""
    path = place(folder, key)
    text = json.dumps({"key": key, **values})
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as out:
                out.write(text)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError:
        return False
    return True


def forget_all(folder: Path) -> int:
    """Remove every result of a kind; how many were removed."""
    count = 0
    with suppress(OSError):
        for path in sorted(folder.glob("*.json")):
            with suppress(OSError):
                path.unlink()
                count += 1
    return count


def place(folder: Path, key: str) -> Path:
    """The file of a key."""
    return folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
