"""Protocol buffers' wire format: fields and values of a message.

Enters: the bytes of a message. Leaves: its fields, or ValueError with what is wrong with them, or IndexError where they
end too early. Only as much as ONNX needs, since the runtime has no `onnx` package.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NoReturn, TypeVar

Value = int | bytes
T = TypeVar("T")


def fields(data: bytes, known: Collection[int], what: str) -> Iterator[tuple[int, Value]]:
    """(number, value) of each field: a whole number, or the bytes of a text or of a message."""
    view, at = data, 0
    while at < len(view):
        key, at = _varint(view, at)
        number, wire = key >> 3, key & 7
        if number not in known:
            refuse(f"has in its {what} a field {number}, which spec-edge never writes")
        value: Value
        if wire == 0:
            value, at = _varint(view, at)
        elif wire == 2:
            size, at = _varint(view, at)
            value, at = view[at : at + size], at + size
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
            value, at = view[at : at + size], at + size
        else:
            raise IndexError
        if at > len(view):
            raise IndexError
        yield number, value


def _varint(view: bytes, at: int) -> tuple[int, int]:
    """(value, what follows it); at most 64 bits."""
    if view[at] < 0x80:
        return view[at], at + 1
    value = 0
    for i in range(10):
        byte = view[at + i]
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return value & (1 << 64) - 1, at + i + 1
    raise IndexError


def integers(value: Value) -> list[int]:
    """A repeated whole number: one of them, or several packed."""
    if isinstance(value, int):
        return [_signed(value)]
    out, at = [], 0
    while at < len(value):
        number, at = _varint(value, at)
        out.append(_signed(number))
    return out


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def once(number: int, seen: set[int], value: T) -> T:
    """Of a field that is there twice readers take the last: what was looked at could be the first."""
    if number in seen:
        refuse("says something twice")
    seen.add(number)
    return value


def whole(value: Value) -> int:
    if not isinstance(value, int):
        raise IndexError
    return value


def message(value: Value) -> bytes:
    if isinstance(value, int):
        raise IndexError
    return value


def string(value: Value) -> str:
    return message(value).decode("utf-8", "replace")


def refuse(reason: str) -> NoReturn:
    raise ValueError(reason)
