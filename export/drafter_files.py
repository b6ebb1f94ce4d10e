"""A drafter's checkpoint on disk: a path enters, its config and the places of its tensors leave.

Safetensors are read as they are. Pickles (.pt, .bin) are turned into safetensors by a child process first
(export/unpickle.py), in a temporary folder that lives as long as the caller's stack.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from spec_edge.models.contract import BadUsage, Source, SpecError
from spec_edge.models.drafter import DrafterFiles
from spec_edge.models.family import Json
from spec_edge.models.hashing import sha256
from spec_edge.models.hf_folder import folder_tensors
from spec_edge.models.hf_text import read_json
from spec_edge.models.safetensors_file import StoredTensor, read_safetensors

CONFIG = "config.json"
SAFE = ("medusa_lm_head.safetensors", "model.safetensors", "model.safetensors.index.json")
PICKLED = ("medusa_lm_head.pt", "pytorch_model.bin", "pytorch_model.bin.index.json")
PICKLES = (".pt", ".pth", ".bin")
SECONDS = 1800.0
"""A pickle that takes longer is given up."""


def open_files(path: Path, stack: ExitStack, weights: bool = True, look: bool = False) -> DrafterFiles:
    """The checkpoint at `path`, a folder or a file. SpecError in one line if it cannot be read.

    stack    closes what is temporary
    weights  False: a folder with nothing but a config.json will do, and pickles are left unread
    look     True: nobody will store the weights, so their files are not hashed
    """
    if not path.exists():
        raise BadUsage(f"there is no file or folder {path}; a drafter is a local folder or file: download it first")
    folder = path if path.is_dir() else path.parent
    config: Json = read_json(folder / CONFIG) if (folder / CONFIG).is_file() else {}
    file = weights_file(path) if path.is_dir() else path
    if file is None or file.name == CONFIG or (not weights and file.suffix in PICKLES):
        if weights or not config:
            raise SpecError(
                f"{path} holds no weights: {', '.join((*SAFE[:2], *PICKLED[:2]))} or a single safetensors file"
            )
        return DrafterFiles(_name(path), config, {})
    tensors, files = _read(file, stack)
    if look or not weights:
        return DrafterFiles(_name(path), config, tensors)
    kind = "safetensors" if files[0].suffix == ".safetensors" else "torch"
    return DrafterFiles(_name(path), config, tensors, _source(kind, _name(path), files))


def _name(path: Path) -> str:
    return path.resolve().name or str(path)


def weights_file(folder: Path) -> Path | None:
    """The file that holds the weights, or names those that do; safetensors first."""
    for name in SAFE:
        if (folder / name).is_file():
            return folder / name
    others = sorted(folder.glob("*.safetensors"))
    if len(others) > 1:
        raise SpecError(f"{folder} holds {len(others)} safetensors files and no index; name the file that is meant")
    pickled = [folder / name for name in PICKLED if (folder / name).is_file()]
    return next(iter([*others, *pickled]), None)


def _read(file: Path, stack: ExitStack) -> tuple[dict[str, StoredTensor], list[Path]]:
    """Tensors by name, and the files that they came from."""
    if file.name == SAFE[2]:
        tensors = folder_tensors(file.parent)
        return tensors, sorted({tensor.path for tensor in tensors.values()})
    if file.suffix == ".safetensors":
        return read_safetensors(file), [file]
    if file.name == PICKLED[2]:
        shards = _shards(file)
    elif file.suffix in PICKLES:
        shards = [file]
    else:
        raise SpecError(f"{file} is no checkpoint of a drafter: .safetensors, .pt and .bin files are read")
    found: dict[str, StoredTensor] = {}
    for shard in shards:
        found |= read_safetensors(unpickled(shard, stack))
    return found, shards


def _shards(index: Path) -> list[Path]:
    names = read_json(index).get("weight_map")
    shards = sorted(set(names.values())) if isinstance(names, dict) else []
    for shard in shards:
        if not isinstance(shard, str) or not shard.endswith(".bin") or set(shard) & set('/\\:*?"<>|\0'):
            raise SpecError(f"{index} names the file {str(shard)[:80]!r}; only .bin files in the folder are read")
        if not (index.parent / shard).is_file():
            raise SpecError(f"{index.parent} is incomplete: it has no file {shard}")
    if not shards:
        raise SpecError(f"{index} has no 'weight_map'")
    return [index.parent / shard for shard in shards]


def unpickled(path: Path, stack: ExitStack, python: Sequence[str] = (sys.executable,)) -> Path:
    """A safetensors file with the tensors of a pickle. SpecError: the child's line."""
    # ignore_cleanup_errors: on Windows the tensors may still be mapped when the stack closes
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="spec-export-", ignore_cleanup_errors=True)))
    out = folder / f"{path.stem}.safetensors"
    command = [*python, "-m", "spec_edge.export.unpickle", str(path.resolve()), str(out)]
    try:
        # its working folder is on the child's path, so it must not be one that holds foreign files
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SpecError(f"{path} is not read: it took more than {SECONDS:.0f} s to unpickle") from None
    if done.returncode != 0 or not out.is_file():
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        reason = lines[-1].strip()[:300] if lines else f"the process that reads it ended with {done.returncode}"
        raise SpecError(f"{path} is not read: {reason}")
    return out


def _source(kind: str, name: str, files: Sequence[Path]) -> Source:
    """One file's own SHA-256, or that over the "name sha256" lines of several."""
    if len(files) == 1:
        return Source(kind, name, files[0].stat().st_size, sha256(files[0]))
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.name} {sha256(file)}\n".encode())
    return Source(kind, name, sum(file.stat().st_size for file in files), digest.hexdigest())
