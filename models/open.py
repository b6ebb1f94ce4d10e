"""A path enters; an opened `Checkpoint` leaves, whatever kind of model lies there.

Weights stay on disk: tensors are read one by one when they are asked for.
"""

from __future__ import annotations

from pathlib import Path

from spec_edge.models.checkpoint import Checkpoint, ModelConfig
from spec_edge.models.contract import BadUsage
from spec_edge.models.gguf_model import gguf_config, open_gguf
from spec_edge.models.hashing import Progress
from spec_edge.models.hf_folder import folder_config, open_folder


def open_checkpoint(path: Path, progress: Progress | None = None) -> Checkpoint:
    """The model at `path`, a GGUF file or a Hugging Face folder. SpecError in one line if it cannot be used.

    `progress` is called with (bytes done, bytes in all) while the weights are hashed.
    """
    if path.is_dir():
        return open_folder(path, progress)
    if path.is_file():
        return open_gguf(path, progress)
    raise _not_there(path)


def open_config(path: Path) -> tuple[str, ModelConfig]:
    """Name and settings of the model at `path`; of a folder its config.json is enough. No weights are read."""
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise BadUsage(f"{path} is not a model folder: it has no config.json")
        return path.resolve().name, folder_config(path)
    if path.is_file():
        return path.stem, gguf_config(path)
    raise _not_there(path)


def _not_there(path: Path) -> BadUsage:
    if path.exists():
        return BadUsage(f"{path} is neither a file nor a folder")
    return BadUsage(f"there is no file or folder {path}")
