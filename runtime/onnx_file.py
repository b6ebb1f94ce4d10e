"""A graph file looked at before ONNX Runtime does: bundles come from anywhere, and a graph could name other files.

Enters: the bytes of an ONNX model and the facts of the bundle's weights file. Leaves: nothing, or one line. What passes
holds operators of the standard and a few of ONNX Runtime's own, no functions, no graphs in graphs, nothing sparse, no
training data; and its external tensors lie in the weights file, each as long as its shape. Everything that spec-edge
does not write is refused, also fields that it does not know.
Format: onnx.proto (field numbers).
"""

from __future__ import annotations

from functools import lru_cache
from math import prod

from spec_edge.models.contract import FileFact, SpecError
from spec_edge.runtime.wire import fields, integers, message, once, refuse, string, whole

LIMIT = 1 << 26
"""Most bytes of a graph file: weights lie elsewhere."""

DOMAINS = frozenset({"", "ai.onnx", "com.microsoft"})
QUANTISED = frozenset({"DequantizeLinear", "GatherBlockQuantized", "MatMulNBits", "QuantizeLinear"})
CONTRIB = QUANTISED | {"GroupQueryAttention", "SkipSimplifiedLayerNormalization"}
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


@lru_cache(maxsize=4)
def check_graph(data: bytes, file: str, weights: FileFact) -> None:
    """SpecError, naming `file`, for a graph that spec-edge does not write. What has passed soon comes again."""
    try:
        if len(data) > LIMIT:
            refuse(f"has {len(data)} bytes, more than {LIMIT}")
        for number, value in fields(data, MODEL, "model"):
            if number == 7:
                _graph(message(value), weights)
            if number == 8:
                _opset(message(value))
    except (ValueError, IndexError) as error:
        reason = str(error) if type(error) is ValueError else "ends too early or is no ONNX model"
        raise SpecError(f"graph {file} {reason}; export the model again with this version of spec-edge") from None


def _graph(data: bytes, weights: FileFact) -> None:
    for number, value in fields(data, GRAPH, "graph"):
        if number == 1:
            _node(message(value), weights)
        if number == 5:
            _tensor(message(value), weights)


def _opset(data: bytes) -> None:
    for number, value in fields(data, PAIR, "operator set"):
        if number == 1 and string(value) not in DOMAINS:
            refuse(f"uses operators of {string(value)!a}")


def _node(data: bytes, weights: FileFact) -> None:
    named: dict[int, str] = {4: "", 7: ""}
    seen: set[int] = set()
    for number, value in fields(data, NODE, "node"):
        if number in named:
            named[number] = once(number, seen, string(value))
        if number == 5:
            _attribute(message(value), weights)
    kind, domain = named[4], named[7]
    if domain not in DOMAINS or (domain == "com.microsoft" and kind not in CONTRIB):
        refuse(f"uses the operator {kind!a} of {domain!a}")


def _attribute(data: bytes, weights: FileFact) -> None:
    for number, value in fields(data, ATTRIBUTE, "attribute"):
        if number == 5:
            _tensor(message(value), weights)


def _tensor(data: bytes, weights: FileFact) -> None:
    """An external one lies in the weights file and is as long as its shape; an inline one is bounded by this file."""
    shape: list[int] = []
    kind, place, outside = 0, dict[str, str](), False
    seen: set[int] = set()
    for number, value in fields(data, TENSOR, "tensor"):
        if number == 1:
            shape += integers(value)
        elif number == 2:
            kind = once(number, seen, whole(value))
        elif number == 13:
            key, text = _pair(message(value))
            if key in place or key not in ("location", "offset", "length"):
                refuse(f"has an external tensor with {key!a}")
            place[key], outside = text, True
        elif number == 14:
            outside |= once(number, seen, whole(value)) != 0
    if outside:
        _external(shape, kind, place, weights)


def _external(shape: list[int], kind: int, place: dict[str, str], weights: FileFact) -> None:
    if place.get("location") != weights.file:
        refuse(f"reads tensors from {place.get('location', '')!a}, not from {weights.file}")
    numbers = [place.get(key, "") for key in ("offset", "length")]
    if not all(text.isascii() and text.isdigit() and len(text) < 20 for text in numbers):
        refuse("has an external tensor without a place in the weights file")
    offset, length = (int(text) for text in numbers)
    if offset + length > weights.bytes:
        refuse(f"has a tensor that ends {offset + length - weights.bytes} bytes past the weights file")
    if kind not in BITS or length != (prod(shape) * BITS[kind] + 7) // 8 or min(shape, default=1) < 0:
        refuse(f"has a tensor of shape {shape} and type {kind} in {length} bytes")


def _pair(data: bytes) -> tuple[str, str]:
    texts = {number: string(value) for number, value in fields(data, PAIR, "entry")}
    return texts.get(1, ""), texts.get(2, "")
