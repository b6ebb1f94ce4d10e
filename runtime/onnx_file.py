"""A graph file looked at before ONNX Runtime does: bundles come from anywhere, and a graph could name other files.

Enters: the bytes of an ONNX model and the facts of the bundle's weights file. Leaves: nothing, or one line. What passes
holds operators of the standard and a few of ONNX Runtime's own, no functions, no graphs in graphs, nothing sparse, no
training data; and its external tensors lie in the weights file, each as long as its shape. Everything that spec-edge
does not write is refused, also fields that it does not know.
Format: protocol buffers' wire format and onnx.proto (field numbers), read here since the runtime has no `onnx` package.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from math import prod
from typing import NoReturn, TypeVar

from spec_edge.models.contract import FileFact, SpecError

LIMIT = 1 << 26
"""Most bytes of a graph file: weights lie elsewhere."""

DOMAINS = frozenset({"", "ai.onnx", "com.microsoft"})
CONTRIB = frozenset({"GatherBlockQuantized", "GroupQueryAttention", "MatMulNBits", "SkipSimplifiedLayerNormalization"})
"""Operators of com.microsoft. One that opens a file (EPContext) or runs code is not among them."""

MODEL = frozenset({1, 2, 3, 4, 5, 6, 7, 8, 14})
GRAPH = frozenset({1, 2, 5, 10, 11, 12, 13, 16})
NODE = frozenset({1, 2, 3, 4, 5, 6, 7, 9})
ATTRIBUTE = frozenset({1, 2, 3, 4, 5, 7, 8, 9, 13, 20})
TENSOR = frozenset({1, 2, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14, 16})
PAIR = frozenset({1, 2})
"""Fields of each message that a graph of ours may have; the others are functions, subgraphs, sparse tensors ..."""

BITS = {1: 32, 2: 8, 3: 8, 6: 32, 7: 64, 9: 8, 10: 16, 11: 64, 12: 32, 13: 64, 16: 16, 21: 4, 22: 4}
"""Bits of an element, by ONNX's number of its type."""

Value = int | bytes
T = TypeVar("T")


def check_graph(data: bytes, file: str, weights: FileFact) -> None:
    """SpecError, naming `file`, for a graph that spec-edge does not write."""
    try:
        if len(data) > LIMIT:
            _refuse(f"has {len(data)} bytes, more than {LIMIT}")
        for number, value in _fields(data, MODEL, "model"):
            if number == 7:
                _graph(_bytes(value), weights)
            if number == 8:
                _opset(_bytes(value))
    except (ValueError, IndexError) as error:
        reason = str(error) if type(error) is ValueError else "ends too early or is no ONNX model"
        raise SpecError(f"graph {file} {reason}; export the model again with this version of spec-edge") from None


def _graph(data: bytes, weights: FileFact) -> None:
    for number, value in _fields(data, GRAPH, "graph"):
        if number == 1:
            _node(_bytes(value), weights)
        if number == 5:
            _tensor(_bytes(value), weights)


def _opset(data: bytes) -> None:
    for number, value in _fields(data, PAIR, "operator set"):
        if number == 1 and _text(value) not in DOMAINS:
            _refuse(f"uses operators of {_text(value)!a}")


def _node(data: bytes, weights: FileFact) -> None:
    named: dict[int, str] = {4: "", 7: ""}
    seen: set[int] = set()
    for number, value in _fields(data, NODE, "node"):
        if number in named:
            named[number] = _once(number, seen, _text(value))
        if number == 5:
            _attribute(_bytes(value), weights)
    kind, domain = named[4], named[7]
    if domain not in DOMAINS or (domain == "com.microsoft" and kind not in CONTRIB):
        _refuse(f"uses the operator {kind!a} of {domain!a}")


def _attribute(data: bytes, weights: FileFact) -> None:
    for number, value in _fields(data, ATTRIBUTE, "attribute"):
        if number == 5:
            _tensor(_bytes(value), weights)


def _tensor(data: bytes, weights: FileFact) -> None:
    """An external one lies in the weights file and is as long as its shape; an inline one is bounded by this file."""
    shape: list[int] = []
    kind, place, outside = 0, dict[str, str](), False
    seen: set[int] = set()
    for number, value in _fields(data, TENSOR, "tensor"):
        if number == 1:
            shape += _numbers(value)
        elif number == 2:
            kind = _once(number, seen, _whole(value))
        elif number == 13:
            key, text = _pair(_bytes(value))
            if key in place or key not in ("location", "offset", "length"):
                _refuse(f"has an external tensor with {key!a}")
            place[key], outside = text, True
        elif number == 14:
            outside |= _once(number, seen, _whole(value)) != 0
    if outside:
        _external(shape, kind, place, weights)


def _external(shape: list[int], kind: int, place: dict[str, str], weights: FileFact) -> None:
    if place.get("location") != weights.file:
        _refuse(f"reads tensors from {place.get('location', '')!a}, not from {weights.file}")
    numbers = [place.get(key, "") for key in ("offset", "length")]
    if not all(text.isascii() and text.isdigit() and len(text) < 20 for text in numbers):
        _refuse("has an external tensor without a place in the weights file")
    offset, length = (int(text) for text in numbers)
    if offset + length > weights.bytes:
        _refuse(f"has a tensor that ends {offset + length - weights.bytes} bytes past the weights file")
    if kind not in BITS or length != (prod(shape) * BITS[kind] + 7) // 8 or min(shape, default=1) < 0:
        _refuse(f"has a tensor of shape {shape} and type {kind} in {length} bytes")


def _pair(data: bytes) -> tuple[str, str]:
    texts = {number: _text(value) for number, value in _fields(data, PAIR, "entry")}
    return texts.get(1, ""), texts.get(2, "")


# The wire format


def _fields(data: bytes, known: Collection[int], what: str) -> Iterator[tuple[int, Value]]:
    """(number, value) of each field: a whole number, or the bytes of a text or of a message."""
    view, at = data, 0
    while at < len(view):
        key, at = _varint(view, at)
        number, wire = key >> 3, key & 7
        if number not in known:
            _refuse(f"has in its {what} a field {number}, which spec-edge never writes")
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


def _numbers(value: Value) -> list[int]:
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


def _once(number: int, seen: set[int], value: T) -> T:
    """Of a field that is there twice readers take the last: what was looked at could be the first."""
    if number in seen:
        _refuse("says something twice")
    seen.add(number)
    return value


def _whole(value: Value) -> int:
    if not isinstance(value, int):
        raise IndexError
    return value


def _bytes(value: Value) -> bytes:
    if isinstance(value, int):
        raise IndexError
    return value


def _text(value: Value) -> str:
    return _bytes(value).decode("utf-8", "replace")


def _refuse(reason: str) -> NoReturn:
    raise ValueError(reason)
