"""Files of a bundle: bytes enter, the file and its record leave."""

from __future__ import annotations

import hashlib
from pathlib import Path

from spec_edge.models.contract import FileFact


def file_fact(folder: Path, name: str, data: bytes) -> FileFact:
    """Write `data` as `folder/name`."""
    (folder / name).write_bytes(data)
    return FileFact(name, len(data), hashlib.sha256(data).hexdigest())
