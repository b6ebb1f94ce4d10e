"""A file enters; its SHA-256 leaves, read in pieces with progress."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from spec_edge.models.contract import SpecError

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all)."""

_PIECE = 4 << 20


def sha256(path: Path, progress: Progress | None = None) -> str:
    """Hex SHA-256 of a file; SpecError if it cannot be read."""
    digest, done = hashlib.sha256(), 0
    try:
        total = path.stat().st_size
        with path.open("rb") as file:
            while piece := file.read(_PIECE):
                digest.update(piece)
                done += len(piece)
                if progress:
                    progress(done, total)
    except OSError as error:
        raise SpecError(f"cannot read {path}: {error.strerror or error}") from error
    return digest.hexdigest()
