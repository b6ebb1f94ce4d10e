"""A graph as its target takes it: built graphs enter, the bytes of their files leave, respelled and checked."""

from __future__ import annotations

import onnx

from spec_edge.export.rules import Place, check
from spec_edge.models.contract import SpecError
from spec_edge.models.lowerings.spelling import respelled
from spec_edge.targets.target import Rules, Target

ANY_WIDTH = Rules(symbolic=True)
"""Of the any-width graph of a target that takes none: the providers behind the first run it."""


def suited(model: onnx.ModelProto, place: Place, target: Target, precision: str) -> bytes:
    """The graph's file. SpecError: it breaks a rule of the target."""
    try:
        return _suited(model, place, target, precision)
    except SpecError as error:
        if precision in target.precisions:
            raise
        offered = ", ".join(target.precisions)
        raise SpecError(
            f"--precision {precision} is none that target {target.name} offers ({offered}): {error.message}"
        ) from None


def _suited(model: onnx.ModelProto, place: Place, target: Target, precision: str) -> bytes:
    if place.width is None:
        check(model, place, target.rules_of(precision) if target.symbolic else ANY_WIDTH, target.name)
        return bytes(model.SerializeToString())
    rules = target.rules_of(precision)
    if target.spelling and rules.operators is not None:
        model = respelled(target.spelling, model, dict(rules.operators).get("", frozenset()))
    check(model, place, rules, target.name)
    return bytes(model.SerializeToString())
