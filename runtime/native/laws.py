"""Operators that end a drafter's graph: the likeliest tokens of a law, and heads that start from one row.

Two ways of writing a law's best are known: TopK over LogSoftmax, and TopK over logits whose normaliser is computed
beside it (models/eagle_graph.py, models/medusa_graph.py). Both are one stage.
"""

from __future__ import annotations

from collections.abc import Mapping

from spec_edge.runtime.native.mirror import MOST_BEST, NONE, SPREAD, TOP
from spec_edge.runtime.native.program import Step, View
from spec_edge.runtime.native.state import LANES, Gate, Law, Part, Places, State, Value
from spec_edge.runtime.onnx_nodes import Node

INT32 = 6
"""ONNX's number of the type."""

PARTS: Mapping[tuple[str, str, str], str] = {
    ("Gather", "values", "[0]"): "most",
    ("Sub", "logits", "most"): "shifted",
    ("Exp", "shifted", ""): "powers",
    ("ReduceSum", "powers", "[1]"): "total",
    ("Log", "total", ""): "log",
    ("Sub", "values", "most"): "below",
    ("Sub", "below", "log"): "logprobs",
}
"""Of a law whose logits a TopK has read: (operator, its first input, its second) -> what comes out."""


def log_softmax(t: State, node: Node) -> None:
    if node.numbers.get("axis", -1) not in (-1, 1):
        raise t.refused("it is a law of columns")
    t.values[node.outputs[0]] = Law(t.whole(node.inputs[0]))


def top(t: State, node: Node) -> None:
    law = t.values.get(node.inputs[0])
    logits = law.logits if isinstance(law, Law) else t.whole(node.inputs[0])
    (count,) = t.small(node.inputs[1], 1)
    numbers = node.numbers
    usual = numbers.get("axis", -1) in (-1, 1) and numbers.get("largest", 1) and numbers.get("sorted", 1)
    if not usual or not 0 < count <= min(MOST_BEST, logits.width):
        raise t.refused(f"it takes {count}, or not the best")
    asked = t.program.floats[logits.buffer].asked
    best, ids = t.floats(count, asked), t.floats(count, asked)
    t.program.floats[ids].whole = True
    step = Step(TOP, [logits.buffer, best, ids], width=count)
    t.program.steps.append(step)
    values, places = node.outputs
    t.values[values] = View(best, 0, count) if isinstance(law, Law) else Part("values", step)
    t.values[places] = Places(step)


def part(t: State, node: Node) -> None:
    """A step on the way from a TopK's values to log-probabilities."""
    names, steps = zip(*(_named(t, name) for name in (*node.inputs, "")[:2]), strict=True)
    found = PARTS.get((node.kind, *names))
    step = next((s for s in steps if s is not None), None)
    if found is None or step is None or any(s is not step for s in steps if s is not None):
        raise t.refused("it is no part of a law that spec-edge writes")
    if (node.kind == "Gather" and node.numbers.get("axis", 0) not in (-1, 1)) or not node.numbers.get("keepdims", 1):
        raise t.refused("it goes along another axis")
    made: Value = View(step.f[1], 0, step.width) if found == "logprobs" else Part(found, step)
    t.values[node.outputs[0]] = made


def _named(t: State, name: str) -> tuple[str, Step | None]:
    """(what an input is to a law, the law's stage)."""
    value = t.values.get(name)
    if isinstance(value, Part):
        return value.kind, value.step
    if isinstance(value, View):
        step = next((s for s in t.program.steps if s.kind == TOP and s.f[0] == value.buffer), None)
        return ("logits" if step is not None else "?"), step
    return (str(t.small(name, 1)) if name else ""), None


def cast(t: State, node: Node) -> None:
    places = t.values.get(node.inputs[0])
    if not isinstance(places, Places) or node.numbers.get("to") != INT32:
        raise t.refused("it makes something else than ids")
    t.values[node.outputs[0]] = places


def name_ids(t: State, node: Node, places: Places) -> None:
    """Gather: what a table calls the places."""
    logits = t.program.floats[places.step.f[0]].width
    if places.step.ids or node.numbers.get("axis", 0):
        raise t.refused("it names what has a name")
    places.step.ids = t.constant(node.inputs[0], "int32", logits)
    t.values[node.outputs[0]] = View(places.step.f[2], 0, places.step.width)


def leave(t: State, name: str) -> None:
    """Places that no table names are ids themselves."""
    places = t.values.get(name)
    if isinstance(places, Places):
        t.values[name] = View(places.step.f[2], 0, places.step.width)


def spread(t: State, node: Node, x: View, gate: Gate) -> None:
    """Add: a row plus each piece of SiLU of another, as rows of their own."""
    y = gate.view
    whole = all(not v.column and v.width == t.program.floats[v.buffer].width for v in (x, y))
    count, rest = divmod(y.width, x.width)
    if not whole or rest or x.width % LANES or t.program.floats[y.buffer].asked or t.program.spread not in (0, count):
        raise t.refused("it does not spread one row over heads")
    if not t.one_row:
        raise t.refused("it spreads many rows")
    t.program.spread = count
    f, q = t.made(node.outputs[0], x.width, asked=True)
    t.program.steps.append(Step(SPREAD, [y.buffer, x.buffer, f, NONE], [q]))
