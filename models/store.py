"""The weights file that all graphs of a bundle share.

Enters: arrays under unique keys, one at a time. Leaves: `Region`s (where each lies), the file and its SHA-256.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spec_edge.models.contract import FileFact, SpecError

ALIGNMENT = 64
"""Every tensor starts at a multiple of this many bytes: one cache line, and the widest vector load."""

INT4 = "int4"
"""dtype of a region that holds two values a byte, the first in the low half; numpy has none."""

_CHUNK = 1 << 24


@dataclass(frozen=True)
class Region:
    """A tensor in the weights file: its key there, numpy dtype name (or `INT4`), shape, first byte, bytes."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    length: int

    def halves(self, shape: tuple[int, ...]) -> Region:
        """The same bytes as 4-bit integers; SpecError if the sizes differ."""
        if -(-math.prod(shape) // 2) != self.length:
            raise SpecError(f"{self.key}: {self.length} bytes are not {list(shape)} of 4 bits; export the model again")
        return replace(self, dtype=INT4, shape=shape)

    def viewed(self, shape: tuple[int, ...]) -> Region:
        """The same bytes under another shape; SpecError if the sizes differ."""
        if math.prod(shape) != math.prod(self.shape):
            raise SpecError(f"{self.key}: {list(self.shape)} cannot be read as {list(shape)}; export the model again")
        return replace(self, shape=shape)


class WeightStore:
    """Appends tensors to one file, each key once. Use as a context manager; memory stays at one tensor.

    The file is hashed as it is written, so that `fact()` after the end costs no second read. An OSError of writing
    passes: whoever knows the folder that the user named says it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._regions: dict[str, Region] = {}
        self._size = 0
        self._hash = hashlib.sha256()
        self._file = path.open("wb")

    def __enter__(self) -> WeightStore:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self._file.close()

    def __contains__(self, key: str) -> bool:
        return key in self._regions

    def add(self, key: str, array: NDArray[Any]) -> Region:
        """Append `array` (little-endian, row-major) unless `key` is there already; where it lies.

        A key names one content: a second call gives the first one's region, and SpecError if shape or dtype differ.
        """
        known = self._regions.get(key)
        if known is not None:
            if (known.dtype, known.shape) != (array.dtype.name, array.shape):
                raise SpecError(f"two different tensors are called {key}; report this as a bug of spec-export")
            return known
        self._write(bytes(-self._size % ALIGNMENT))
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        region = Region(key, array.dtype.name, array.shape, self._size, array.nbytes)
        self._write(np.ascontiguousarray(little).reshape(-1).view(np.uint8).data)
        self._regions[key] = region
        return region

    def fact(self) -> FileFact:
        """Name, size and SHA-256 of what has been written so far."""
        self._file.flush()
        return FileFact(self.path.name, self._size, self._hash.hexdigest())

    def _write(self, data: bytes | memoryview) -> None:
        for start in range(0, len(data), _CHUNK):
            part = data[start : start + _CHUNK]
            self._file.write(part)
            self._hash.update(part)
        self._size += len(data)
