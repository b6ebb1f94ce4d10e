"""GGUF files: the path of a file enters; its metadata and the place of every tensor leave.

The header is untrusted input: every count and size is checked against a cap and against the file before it is
used, so a hostile file is refused at once. The file is mapped while the header is read and open only while a
tensor is read: between calls nothing is held, and the file can be moved or deleted on every system.
Format: the GGUF specification (ggml project), versions 2 and 3, little-endian.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import NoReturn, TypeVar

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from spec_edge.models.contract import SpecError

MAX_STRING = 1 << 20
MAX_TEXT = 64 << 20
"""All strings of a header together, in bytes."""
MAX_ITEMS = 1 << 22
"""All array elements of a header together."""
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 20
MAX_DIMS = 4
MAX_ALIGNMENT = 1 << 20

Scalar = int | float | bool | str
Value = Scalar | tuple[str, ...] | NDArray[np.generic]
Meta = Mapping[str, Value]

T = TypeVar("T")

_SCALARS: dict[int, tuple[str, type]] = {
    0: ("<u1", int),
    1: ("<i1", int),
    2: ("<u2", int),
    3: ("<i2", int),
    4: ("<u4", int),
    5: ("<i4", int),
    6: ("<f4", float),
    7: ("<u1", bool),
    10: ("<u8", int),
    11: ("<i8", int),
    12: ("<f8", float),
}
_STRING, _ARRAY = 8, 9
_KINDS = frozenset(int(kind) for kind in GGMLQuantizationType)
_FEWEST_KEY_BYTES = 8 + 1 + 4 + 1
_FEWEST_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8


@dataclass(frozen=True)
class TensorPlace:
    """Where a tensor lies. `shape` is numpy's order ([out, in]); `kind` is the block type's name, as "Q4_1"."""

    name: str
    shape: tuple[int, ...]
    kind: str
    offset: int
    nbytes: int


@dataclass(frozen=True)
class GgufFile:
    """An opened header. `tensors` is by the file's own names."""

    path: Path
    size: int
    meta: Meta
    tensors: Mapping[str, TensorPlace]

    def raw(self, name: str) -> NDArray[np.uint8]:
        """The bytes of a tensor as uint8 [rows, bytes per row]; SpecError if the file has changed under us."""
        place = self.tensors[name]
        data = np.empty(place.nbytes, np.uint8)
        try:
            with self.path.open("rb") as file:
                file.seek(place.offset)
                got = file.readinto(data.data)
        except OSError as error:
            raise SpecError(f"cannot read {self.path}: {error.strerror or error}") from error
        if got != place.nbytes:
            raise SpecError(f"{self.path} became shorter while it was read: run again with the complete file")
        return data.reshape(prod(place.shape[:-1]), -1)


class _Cursor:
    """A position in the mapped header, and what of the caps is used up."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.size, self.at = path, data, len(data), 0
        self.text, self.items = 0, 0

    def fail(self, what: str) -> NoReturn:
        raise SpecError(f"{self.path} is not a usable GGUF file: {what} (at byte {self.at})")

    def skip(self, count: int) -> int:
        """Step over `count` bytes; returns where they begin."""
        start = self.at
        if count > self.size - start:
            raise SpecError(
                f"{self.path} is truncated: its header needs at least {start + count} bytes, "
                f"the file has {self.size}; download it again"
            )
        self.at = start + count
        return start

    def number(self, code: int) -> int:
        """An unsigned integer of 4 (code 4) or 8 (code 10) bytes."""
        width = 4 if code == 4 else 8
        start = self.skip(width)
        return int.from_bytes(self.data[start : self.at], "little")

    def count(self, what: str, cap: int, fewest_bytes: int) -> int:
        """A 64-bit count that is under its cap and fits the rest of the file."""
        value = self.number(10)
        if value > cap:
            self.fail(f"{value} {what}, at most {cap} are accepted")
        if value * fewest_bytes > self.size - self.at:
            self.skip(value * fewest_bytes)
        return value

    def string(self) -> str:
        length = self.number(10)
        if length > MAX_STRING:
            self.fail(f"a string of {length} bytes, at most {MAX_STRING} are accepted")
        self.text += length
        if self.text > MAX_TEXT:
            self.fail(f"more than {MAX_TEXT} bytes of strings")
        start = self.skip(length)
        try:
            return self.data[start : self.at].decode("utf-8")
        except UnicodeDecodeError:
            self.fail("a string that is not UTF-8")

    def scalar(self, code: int) -> Scalar:
        dtype, kind = _SCALARS[code]
        start = self.skip(np.dtype(dtype).itemsize)
        value = np.frombuffer(self.data[start : self.at], dtype)[0]
        result: Scalar = kind(value.item())
        return result

    def array(self) -> Value:
        code = self.number(4)
        if code != _STRING and code not in _SCALARS:
            self.fail(f"an array of type {code}")
        width = 8 if code == _STRING else np.dtype(_SCALARS[code][0]).itemsize
        count = self.count("array elements", MAX_ITEMS, width)
        self.items += count
        if self.items > MAX_ITEMS:
            self.fail(f"more than {MAX_ITEMS} array elements in all")
        if code == _STRING:
            return tuple(self.string() for _ in range(count))
        start = self.skip(count * width)
        return np.frombuffer(self.data[start : self.at], _SCALARS[code][0])

    def value(self) -> Value:
        code = self.number(4)
        if code == _STRING:
            return self.string()
        if code == _ARRAY:
            return self.array()
        if code not in _SCALARS:
            self.fail(f"a value of unknown type {code}")
        return self.scalar(code)


def _read_preamble(cursor: _Cursor) -> tuple[int, int]:
    """(tensors, keys) after the magic and the version."""
    magic = cursor.data[:4]
    if magic != b"GGUF":
        raise SpecError(f"{cursor.path} is not a GGUF file: it begins with {magic!r}, not b'GGUF'")
    cursor.skip(4)
    version = cursor.number(4)
    if version not in (2, 3):
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        cursor.fail("big-endian" if swapped in (2, 3) else f"version {version}, 2 and 3 are supported")
    tensors = cursor.count("tensors", MAX_TENSORS, 0)
    keys = cursor.count("keys", MAX_KEYS, _FEWEST_KEY_BYTES)
    if tensors * _FEWEST_TENSOR_BYTES > cursor.size - cursor.at:
        cursor.skip(tensors * _FEWEST_TENSOR_BYTES)
    return tensors, keys


def _read_meta(cursor: _Cursor, keys: int) -> dict[str, Value]:
    meta: dict[str, Value] = {}
    for _ in range(keys):
        key = cursor.string()
        if not key or key in meta:
            cursor.fail(f"key '{key[:80]}' appears twice" if key else "an empty key")
        meta[key] = cursor.value()
    return meta


def _read_place(cursor: _Cursor) -> TensorPlace:
    """One tensor's name, shape and type; its offset still counts from the start of the data."""
    name = cursor.string()
    rank = cursor.number(4)
    if not 1 <= rank <= MAX_DIMS:
        cursor.fail(f"tensor '{name[:80]}' has {rank} dimensions, 1 to {MAX_DIMS} are accepted")
    dims = [cursor.number(10) for _ in range(rank)]
    code, offset = cursor.number(4), cursor.number(10)
    if code not in _KINDS:
        cursor.fail(f"tensor '{name[:80]}' is of unknown type {code}")
    kind = GGMLQuantizationType(code)
    block, block_bytes = GGML_QUANT_SIZES[kind]
    if min(dims) < 1 or dims[0] % block:
        cursor.fail(f"tensor '{name[:80]}' has shape {dims}, which {kind.name} blocks of {block} cannot fill")
    nbytes = prod(dims) // block * block_bytes
    return TensorPlace(name, tuple(reversed(dims)), kind.name, offset, nbytes)


def _alignment(cursor: _Cursor, meta: Meta) -> int:
    value = meta.get("general.alignment", 32)
    if not isinstance(value, int) or not 1 <= value <= MAX_ALIGNMENT or value & (value - 1):
        cursor.fail(f"general.alignment {value!r} is not a power of two up to {MAX_ALIGNMENT}")
    return value


def _read_places(cursor: _Cursor, count: int, meta: Meta) -> dict[str, TensorPlace]:
    alignment = _alignment(cursor, meta)
    places: dict[str, TensorPlace] = {}
    for _ in range(count):
        place = _read_place(cursor)
        if place.name in places:
            cursor.fail(f"tensor '{place.name[:80]}' appears twice")
        if place.offset % alignment:
            cursor.fail(f"tensor '{place.name[:80]}' is not aligned to {alignment} bytes")
        places[place.name] = place
    base = -(-cursor.at // alignment) * alignment
    expected = max((base + p.offset + p.nbytes for p in places.values()), default=0)
    if expected > cursor.size:
        raise SpecError(
            f"{cursor.path} is truncated: its tensors need {expected} bytes, "
            f"the file has {cursor.size}; download it again"
        )
    return {p.name: TensorPlace(p.name, p.shape, p.kind, base + p.offset, p.nbytes) for p in places.values()}


def read_gguf(path: Path) -> GgufFile:
    """The header of a GGUF file. SpecError in one line if it is truncated, malformed or past a cap."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if size < 24:
                raise SpecError(f"{path} is truncated: a GGUF file needs at least 24 bytes, the file has {size}")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                cursor = _Cursor(path, data)
                tensors, keys = _read_preamble(cursor)
                meta = _read_meta(cursor, keys)
                return GgufFile(path, cursor.size, meta, _read_places(cursor, tensors, meta))
    except OSError as error:
        raise SpecError(f"cannot read {path}: {error.strerror or error}") from error


def typed(meta: Meta, key: str, kind: type[T], default: T | None = None) -> T:
    """A value of the metadata; SpecError if it is of another type, or absent and without default."""
    value = meta.get(key, default)
    if value is None:
        raise SpecError(f"the GGUF file has no key '{key}'")
    if type(value) is not kind:
        raise SpecError(f"GGUF key '{key}' is of type {type(value).__name__}, not {kind.__name__}")
    return value


def integer(meta: Meta, key: str, default: int | None = None) -> int:
    """An integer of the metadata, from 0 to 2 ** 31 - 1."""
    value = typed(meta, key, int, default)
    if not 0 <= value < 1 << 31:
        raise SpecError(f"GGUF key '{key}' is {value}, not an integer from 0 to 2147483647")
    return value


def real(meta: Meta, key: str, default: float | None = None) -> float:
    """A finite, positive number of the metadata."""
    value = typed(meta, key, float, default)
    if not 0 < value < float("inf"):
        raise SpecError(f"GGUF key '{key}' is {value}, not a positive number")
    return value
