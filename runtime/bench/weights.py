"""The weights that the bundle was made from, in the forms that peers read.

Enters: a GGUF file or a Hugging Face folder whose SHA-256 is the bundle's source. Leaves: paths. The Hugging Face form
of a GGUF file is written once, by a child of spec-edge's own exporter, into the user's cache.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from spec_edge.models.contract import BadUsage, Manifest, SpecError
from spec_edge.runtime.bench.runs import Failed
from spec_edge.runtime.bundle import sha256

Say = Callable[[str], object]


@dataclass(frozen=True)
class Source:
    """Weights on disk. cache: where other forms of them are kept."""

    path: Path
    sha256: str
    cache: Path

    def form(self, kind: str, say: Say) -> Path:
        """kind: "gguf" or "hf". Failed: the weights cannot be had in it."""
        if kind == "gguf":
            if self.path.is_dir():
                raise Failed("it needs a GGUF file, and the weights are a Hugging Face folder")
            return self.path
        return self.path if self.path.is_dir() else self._folder(say)

    def _folder(self, say: Say) -> Path:
        folder = self.cache / "hf"
        if folder.is_dir():
            return folder
        say(f"writing {self.path.name} as a Hugging Face folder")
        self.cache.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "spec_edge.export.hf_copy", str(self.path), "-o", str(folder)]
        done = subprocess.run(
            [*command, "--sha256", self.sha256], capture_output=True, encoding="utf-8", errors="replace", check=False
        )
        if done.returncode:
            said = done.stderr.strip().splitlines() or ["it said nothing"]
            raise Failed(f"the weights cannot become a Hugging Face folder (pip install spec-edge[export]): {said[-1]}")
        return folder


@dataclass(frozen=True)
class Weights:
    """Of the target and, where there is one, of the draft model."""

    target: Source
    draft: Source | None


def source(path: Path, manifest: Manifest, what: str) -> Source:
    """BadUsage: nothing is there. SpecError: it is not what the bundle was made from."""
    if not path.exists():
        raise BadUsage(f"{what}: there is no file or folder {path}")
    stated = manifest.source.sha256
    if path.is_file() and sha256(path) != stated:
        raise SpecError(f"{what}: {path} is not the file that the bundle was made from; give {manifest.source.name}")
    cache = Path(platformdirs.user_cache_dir("spec-edge", appauthor=False)) / "peers" / stated[:16]
    return Source(path, stated, cache)
