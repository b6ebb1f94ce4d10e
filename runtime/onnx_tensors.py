"""Where a graph's constants lie, without the `onnx` package.

Enters: the bytes of a graph file that check_graph has passed. Leaves: dtype, shape and place of each initializer: in
the weights file, or in the graph itself. Format: onnx.proto (field numbers).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from spec_edge.runtime.onnx_file import GRAPH, MODEL, PAIR, TENSOR
from spec_edge.runtime.wire import fields, integers, message, string, whole

DTYPES: Mapping[int, str] = {1: "float32", 2: "uint8", 3: "int8", 6: "int32", 7: "int64", 10: "float16"}
"""By ONNX's number of a type; the others are packed or unknown to numpy."""


@dataclass(frozen=True)
class Tensor:
    """dtype: numpy's name; "" where it has none. offset: in the weights file; None: `inline` holds the bytes."""

    dtype: str
    shape: tuple[int, ...]
    offset: int | None = None
    inline: bytes = b""

    @property
    def whole(self) -> bool:
        """Whether it holds as many bytes as its shape says; what lies in the weights file was checked there."""
        fine = bool(self.dtype) and min(self.shape, default=0) >= 0
        return fine and (self.offset is not None or len(self.inline) == self.bytes)

    @property
    def bytes(self) -> int:
        return prod(self.shape) * np.dtype(self.dtype).itemsize

    def array(self, file: NDArray[np.uint8]) -> NDArray[np.generic]:
        """A view of it in the bytes of the weights file, or of the graph. ValueError: it is another length."""
        data: NDArray[np.uint8] | bytes = self.inline
        if self.offset is not None:
            data = file[self.offset : self.offset + self.bytes]
        return np.frombuffer(data, self.dtype).reshape(self.shape)


def tensors_of(data: bytes) -> dict[str, Tensor]:
    """Every initializer by its name. ValueError or IndexError: it is no model (see onnx_file.check_graph)."""
    found: dict[str, Tensor] = {}
    for number, value in fields(data, MODEL, "model"):
        if number == 7:
            for part, content in fields(message(value), GRAPH, "graph"):
                if part == 5:
                    name, tensor = _tensor(message(content))
                    found[name] = tensor
    return found


def _tensor(data: bytes) -> tuple[str, Tensor]:
    name, shape, kind, inline, place = "", list[int](), 0, b"", dict[str, str]()
    for number, value in fields(data, TENSOR, "tensor"):
        if number == 1:
            shape += integers(value)
        elif number == 2:
            kind = whole(value)
        elif number == 8:
            name = string(value)
        elif number == 9:
            inline = message(value)
        elif number == 13:
            pair = dict(fields(message(value), PAIR, "entry"))
            place[string(pair[1])] = string(pair[2])
    offset = int(place["offset"]) if place else None
    return name, Tensor(DTYPES.get(kind, ""), tuple(shape), offset, inline)
