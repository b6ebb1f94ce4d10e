"""What every provider does with errors and signatures.

Enters: a call of some runtime, or the tensors that it found in a graph. Leaves: its result, or one line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TypeVar

from spec_edge.models.contract import GraphSpec, SpecError, TensorSpec
from spec_edge.runtime.providers.provider import ProviderFailed

LONGEST = 300
"""Characters of a runtime's own message that are shown."""

PLACE = re.compile(r"Exception from \S+:\d+:")
"""A line of OpenVINO's messages."""

CODE = re.compile(r"\[ONNXRuntimeError\] : \d+ : \w+ : ")
"""What ONNX Runtime puts before a message, and again before the message inside it."""

T = TypeVar("T")


def guarded(what: str, call: Callable[[], T]) -> T:
    """`call()`, with a runtime's exceptions (which share no base class) as one line."""
    try:
        return call()
    except SpecError:
        raise
    except Exception as error:
        raise ProviderFailed(f"{what}: {reason(str(error)) or type(error).__name__}") from error


def reason(message: str) -> str:
    """What a runtime says, in one line, without the places in its source from where it says it."""
    lines = (line for line in message.splitlines() if not PLACE.fullmatch(line.strip()))
    text = " ".join(" ".join(lines).split())
    return text[max((found.end() for found in CODE.finditer(text)), default=0) :][:LONGEST]


def refuse_symbolic(name: str, graph: GraphSpec) -> None:
    """ProviderFailed: `graph` has a size that is not fixed. Some compilers abort on one, and one never ends."""
    for tensor in graph.inputs:
        if loose := [d for d in tensor.shape if isinstance(d, str)]:
            raise ProviderFailed(f"{name} takes fixed sizes only, and {graph.name} leaves '{loose[0]}' open")


def check_signature(graph: GraphSpec, inputs: Iterable[TensorSpec], outputs: Iterable[TensorSpec]) -> None:
    """SpecError: the file's inputs or outputs are not those that bundle.json states."""
    for side, stated, found in (("input", graph.inputs, inputs), ("output", graph.outputs, outputs)):
        want, have = {t.name: t for t in stated}, {t.name: t for t in found}
        for name in sorted(want.keys() | have.keys()):
            if want.get(name) != have.get(name):
                raise SpecError(
                    f"{graph.file.file}: {side} '{name}' is {_signature(have.get(name))}, but bundle.json says "
                    f"{_signature(want.get(name))}; export the model again"
                )


def _signature(tensor: TensorSpec | None) -> str:
    return "absent" if tensor is None else f"{tensor.dtype}{list(tensor.shape)}"
