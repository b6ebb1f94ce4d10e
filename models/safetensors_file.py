"""Safetensors files: a path enters; the place of every tensor leaves, and its values as float32 when asked.

The official library checks the header (it holds no code, and no tensor overlaps another). The values are read
here, because numpy has no bfloat16: those 16 bits are the upper half of a float32.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from spec_edge.models.contract import SpecError

F32 = NDArray[np.float32]
Entry = dict[str, Any]
"""A tensor's header entry: dtype, shape, data_offsets. Sound once the library has checked the file."""
_MAX_HEADER = 100_000_000
"""The format's own limit, in bytes."""


def _f32(raw: bytes) -> F32:
    return np.frombuffer(raw, "<f4").astype(np.float32)


def _f16(raw: bytes) -> F32:
    return np.frombuffer(raw, "<f2").astype(np.float32)


def _bf16(raw: bytes) -> F32:
    upper = np.frombuffer(raw, "<u2").astype(np.uint32) << np.uint32(16)
    values: F32 = upper.view(np.float32)
    return values


_READERS: Mapping[str, Callable[[bytes], F32]] = {"F32": _f32, "F16": _f16, "BF16": _bf16}
_INTEGERS: Mapping[str, str] = {"I64": "<i8", "I32": "<i4", "BOOL": "?", "U8": "u1"}


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies. `kind` is safetensors' dtype name."""

    path: Path
    shape: tuple[int, ...]
    kind: str
    offset: int
    nbytes: int

    def dense(self) -> F32:
        """float32 in its shape; SpecError if the file cannot be read or holds a value that is not finite."""
        values = _READERS[self.kind](self._raw())
        if not np.isfinite(values).all():
            raise SpecError(f"{self.path} holds a weight that is not a finite number: download it again")
        return values.reshape(self.shape)

    def integers(self) -> NDArray[np.int64]:
        """int64 in its shape, of ids and flags; SpecError if it is of another type."""
        if self.kind not in _INTEGERS:
            raise SpecError(f"{self.path} holds a table of type {self.kind}; {', '.join(_INTEGERS)} are read")
        return np.frombuffer(self._raw(), _INTEGERS[self.kind]).astype(np.int64).reshape(self.shape)

    def _raw(self) -> bytes:
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                raw = file.read(self.nbytes)
        except OSError as error:
            raise SpecError(f"cannot read {self.path}: {error.strerror or error}") from error
        if len(raw) != self.nbytes:
            raise SpecError(f"{self.path} became shorter while it was read: run again with the complete file")
        return raw


def check_kind(tensor: StoredTensor, name: str) -> None:
    """SpecError naming the type if it is not F32, F16 or BF16."""
    if tensor.kind not in _READERS:
        raise SpecError(
            f"tensor '{name}' is of type {tensor.kind}, which is not supported. Supported: {', '.join(_READERS)}"
        )


def _header(path: Path) -> tuple[dict[str, Entry], int]:
    """(tensor entries, where the data begin); SpecError with the sizes if the file is cut short."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or (length <= _MAX_HEADER and 8 + length > size):
                raise SpecError(
                    f"{path} is truncated: its header needs at least {8 + length} bytes, the file has {size}; "
                    "download it again"
                )
            if length > _MAX_HEADER:
                raise SpecError(f"{path} is not a safetensors file: its header would have {length} bytes")
            entries = json.loads(file.read(length))
        entries.pop("__metadata__", None)
        expected = 8 + length + max((int(e["data_offsets"][1]) for e in entries.values()), default=0)
    except OSError as error:
        raise SpecError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError) as error:
        raise SpecError(f"{path} is not a safetensors file: its header cannot be read") from error
    if expected > size:
        raise SpecError(
            f"{path} is truncated: its tensors need {expected} bytes, the file has {size}; download it again"
        )
    return entries, 8 + length


def read_safetensors(path: Path) -> dict[str, StoredTensor]:
    """Every tensor of the file by name; SpecError in one line if the file is not sound."""
    entries, start = _header(path)
    try:
        with safe_open(str(path), framework="numpy") as checked:
            names = set(checked.keys())
    except (SafetensorError, OSError) as error:
        raise SpecError(f"{path} is not a usable safetensors file: {str(error)[:200]}") from error
    if names != entries.keys():
        raise SpecError(f"{path} is not a usable safetensors file: it names a tensor twice")
    found = {}
    for name, entry in entries.items():
        shape, (begin, end) = entry["shape"], entry["data_offsets"]
        found[name] = StoredTensor(path, tuple(shape), str(entry["dtype"]), start + begin, end - begin)
    return found
