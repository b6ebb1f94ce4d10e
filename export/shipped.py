"""Heads that come with the package: a model file that is known to the last bit enters, its heads' folders leave."""

from __future__ import annotations

from pathlib import Path

import spec_edge.models
from spec_edge.models.aliases import ALIASES
from spec_edge.models.hashing import sha256

METHODS = {"eagle": "eagle3", "medusa": "medusa"}
"""Drafting method -> folder of its heads."""


def heads_folder() -> Path:
    """Where a release puts them: `<model's alias>/<kind>/`."""
    return Path(next(iter(spec_edge.models.__path__))) / "heads"


def shipped(source: str, root: Path | None = None) -> dict[str, Path]:
    """Folders by method of the heads for weights with this SHA-256; {} where there are none. root: `heads_folder()`."""
    name = next((name for name, alias in ALIASES.items() if alias.sha256 == source), None)
    if name is None:
        return {}
    found = {method: (root or heads_folder()) / name / folder for method, folder in METHODS.items()}
    return {method: folder for method, folder in found.items() if (folder / "config.json").is_file()}


def shipped_for(model: str) -> dict[str, Path]:
    """The same for an alias or a file, which is hashed if its size is a known one's."""
    if model in ALIASES and not Path(model).exists():
        return shipped(ALIASES[model].sha256)
    path = Path(model)
    if not path.is_file() or path.stat().st_size not in (alias.bytes for alias in ALIASES.values()):
        return {}
    return shipped(sha256(path))
