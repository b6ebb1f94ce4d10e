"""A path enters; an opened `Checkpoint` leaves, whatever kind of model lies there.

Weights stay on disk: tensors are read one by one when they are asked for.
"""

from __future__ import annotations

from pathlib import Path

from spec_edge.models.checkpoint import Checkpoint
from spec_edge.models.contract import SpecError
from spec_edge.models.gguf_model import open_gguf
from spec_edge.models.hashing import Progress


def open_checkpoint(path: Path, progress: Progress | None = None) -> Checkpoint:
    """The model at `path`: a GGUF file. SpecError in one line if it cannot be used.

    `progress` is called with (bytes done, bytes in all) while the weights are hashed.
    """
    if not path.exists():
        raise SpecError(f"there is no file or folder {path}")
    return open_gguf(path, progress)
