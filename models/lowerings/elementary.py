"""elementary: Softmax, LogSoftmax and TopK in simpler operators, which column BF16 of AMD's operator table lacks.

Of opset 17: from 18 on ReduceMax reads its axes as an input.
"""

from __future__ import annotations

import numpy as np

from spec_edge.models.contract import SpecError
from spec_edge.models.lowerings.spelling import Recipe, Respelled

LOWEST = -3e38
"""What a chosen logit becomes: below every other, inside bfloat16's range."""


def _axis(new: Respelled, default: int) -> int:
    """The operator's axis, which must be the last."""
    rank = len(new.model.shape(new.node.input[0]))
    axis = next((a.i for a in new.node.attribute if a.name == "axis"), default)
    if axis % rank != rank - 1:
        raise SpecError(f"{new.node.name}: no spelling of {new.node.op_type} along axis {axis}; report this as a bug")
    return -1


def _shifted(new: Respelled) -> tuple[str, str, str]:
    """x - max(x), its exponential, and their sum, along the last axis."""
    x = new.node.input[0]
    _axis(new, -1)
    most = new.op("ReduceMax", [x], "ReduceMax", axes=[-1], keepdims=1)
    shifted = new.op("Sub", [x, most], "shift/Sub")
    exponential = new.op("Exp", [shifted], "Exp")
    axes = new.constant([-1], np.int64, "last")
    return shifted, exponential, new.op("ReduceSum", [exponential, axes], "ReduceSum", keepdims=1)


def softmax(new: Respelled) -> None:
    """exp(x - max) / sum."""
    _, exponential, total = _shifted(new)
    new.op("Div", [exponential, total], "Div", new.node.output[0])


def log_softmax(new: Respelled) -> None:
    """x - max - log(sum)."""
    shifted, _, total = _shifted(new)
    new.op("Sub", [shifted, new.op("Log", [total], "Log")], "Sub", new.node.output[0])


def top_k(new: Respelled) -> None:
    """k times the largest, which is then struck out. Of equal ones the lowest id is first, as in TopK."""
    x, count = new.node.input[:2]
    k = new.model.value(count)
    if k is None:
        raise SpecError(f"{new.node.name}: TopK of a number that is not constant; report this as a bug")
    _axis(new, -1)
    size, dtype = new.model.shape(x)[-1], new.model.dtype(x)
    places = new.constant(np.arange(size)[None], np.int64, f"places{size}")
    lowest = new.constant(LOWEST, dtype, f"lowest {dtype.name}")
    values: list[str] = []
    indices: list[str] = []
    for i in range(int(k.reshape(-1)[0])):
        if i:
            taken = new.op("Equal", [places, indices[-1]], f"{i}/Equal")
            x = new.op("Where", [taken, lowest, x], f"{i}/Where")
        indices.append(new.op("ArgMax", [x], f"{i}/ArgMax", axis=-1, keepdims=1))
        values.append(new.op("ReduceMax", [x], f"{i}/ReduceMax", axes=[-1], keepdims=1))
    for parts, output in ((values, new.node.output[0]), (indices, new.node.output[1])):
        new.op("Concat", parts, f"{'values' if parts is values else 'indices'}/Concat", output, axis=-1)


RECIPES: dict[str, Recipe] = {"LogSoftmax": log_softmax, "Softmax": softmax, "TopK": top_k}
