"""`python -m spec_edge.export.unpickle FILE OUT`: tensors of a pickled checkpoint become a safetensors file.

A process of its own, since unpickling is the one step where a file could do more than hold numbers: torch's restricted
unpickler (`weights_only`), memory bounded where the system can bound it, and no second try with weaker settings.
Leaves: exit code 0 and OUT, or exit code 1 and one line on standard error.
"""

from __future__ import annotations

import re
import sys
import zipfile
from pathlib import Path
from typing import Any

LEAST_TORCH = (2, 10)
"""Earlier releases let a file reach further than its tensors."""

SPARE = 3 << 30
"""Bytes of memory beyond a few times the file: what importing torch takes."""

MOST_TENSORS = 1 << 16
SHARED, SPARE_TENSORS = 3, 1 << 26
"""Tensors may take this many times the file (names that share one), and this many bytes more."""

_GLOBAL = re.compile(r"GLOBAL ([A-Za-z_][A-Za-z0-9_.]{0,99}) (?:whose module|was not an allowed global)", re.ASCII)
"""How torch names what a pickle asks for and may not have."""


class Refused(Exception):
    """One line: why the file is not read."""


def limit_memory(size: int) -> None:
    """At most this many bytes of data; nothing where the system has no such limit (Windows)."""
    try:
        import resource  # noqa: TID251 - absent on Windows, where this does nothing
    except ImportError:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = size if hard == resource.RLIM_INFINITY else min(size, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def torch_here() -> Any:
    """The torch module; Refused where it is missing or too old."""
    try:
        import torch
    except ImportError:
        raise Refused("reading it needs torch (pip install 'spec-edge[train]'), or convert it to safetensors") from None
    found = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if found < LEAST_TORCH:
        raise Refused(
            f"torch {torch.__version__} is too old to read it safely; {'.'.join(map(str, LEAST_TORCH))} is needed "
            "(pip install -U 'spec-edge[train]')"
        )
    torch.set_num_threads(1)
    return torch


def tensors(torch: Any, path: Path) -> dict[str, Any]:
    """Every tensor of a state dict, or of the one in a dict's `state_dict`."""
    try:
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path) or None)
    except MemoryError:
        raise Refused("it needs more memory than a file of its size may take") from None
    except Exception as error:  # unpickling a file of unknown content may raise anything
        raise Refused(_reason(error)) from None
    inner = found.get("state_dict") if isinstance(found, dict) else None
    found = inner if isinstance(inner, dict) else found
    if not isinstance(found, dict) or not 0 < len(found) <= MOST_TENSORS:
        raise Refused("it holds no state dict (tensors by name)")
    for name, value in found.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor):
            raise Refused(f"its entry {str(name)[:80]!r} is no tensor")
        if value.layout is not torch.strided or value.is_quantized or value.device.type != "cpu":
            raise Refused(f"its tensor {name[:80]!r} is sparse, quantised or without values")
    size = sum(value.numel() * value.element_size() for value in found.values())
    if size > SHARED * path.stat().st_size + SPARE_TENSORS:
        raise Refused(f"its tensors would take {size} bytes, far more than the file has")
    return {name: value.detach().contiguous().clone() for name, value in found.items()}


def _reason(error: Exception) -> str:
    """Why torch refuses a file. Not in torch's words, which advise to read it with weaker settings."""
    text = str(error)
    if asked := _GLOBAL.search(text):
        return f"it asks for {asked[1]}, which a file of weights has no need of"
    if "allocate" in text:
        return "it needs more memory than a file of its size may take"
    if "weights_only" in text:
        return "it is no file of tensors, or damaged; download it again"
    return "it is damaged or cut short; download it again"


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:300].rstrip(". ")


def main(source: str, target: str) -> int:
    """0, or 1 with one line on standard error."""
    path = Path(source)
    try:
        limit_memory(4 * path.stat().st_size + SPARE)
        found = tensors(torch_here(), path)
        from safetensors.torch import save_file

        save_file(found, target)
    except Refused as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except (OSError, MemoryError, RuntimeError, ValueError) as error:
        sys.stderr.write(f"{type(error).__name__}: {_first_line(error)}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
