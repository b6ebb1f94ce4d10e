"""What every provider does with errors and signatures.

Enters: a call of some runtime, or the tensors that it found in a graph. Leaves: its result, or one line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from spec_edge.models.contract import GraphSpec, SpecError, TensorSpec
from spec_edge.runtime.providers.provider import ProviderFailed

LONGEST = 300
"""Characters of a runtime's own message that are shown."""

T = TypeVar("T")


def guarded(what: str, call: Callable[[], T]) -> T:
    """`call()`, with a runtime's exceptions (which share no base class) as one line."""
    try:
        return call()
    except SpecError:
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ProviderFailed(f"{what}: {reason[:LONGEST]}") from error


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
