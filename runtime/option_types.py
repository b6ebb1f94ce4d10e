"""Whether what a program passes has the types that `Options` and prompts state. The command line converts by itself.

Enters: values of any type. Leaves: nothing, or BadUsage in one line: a limit of 1.5 tokens is never reached.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import Field, fields
from numbers import Integral, Real
from typing import Any

from spec_edge.models.contract import BadUsage
from spec_edge.runtime.options import SHOWN, Options

WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "True or False"}
PARSED = ("lookahead", "tree")
"""These take several forms; request.py reads them."""


def check_types(options: Options) -> None:
    """BadUsage: a value of another type than its field's."""
    for field in fields(Options):
        value = getattr(options, field.name)
        if field.name == "logit_bias":
            _check_bias(value)
        elif field.name in PARSED and not (value is None or isinstance(value, Sequence)):
            raise BadUsage(f"{field.name} must be a text or a list of numbers, not {_shown(value)}")
        elif field.name not in PARSED and not (value is None and "None" in str(field.type)):
            _check(field, value)


def _check(field: Field[Any], value: object) -> None:
    shown, name = field.metadata[SHOWN], field.name.replace("_", "-")
    if not shown.many:
        if not is_a(value, shown.type):
            raise BadUsage(f"{name} must be {WORDS[shown.type]}, not {_shown(value)}")
        return
    if field.name == "stop" and isinstance(value, str):
        return
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(v, str) for v in value):
        raise BadUsage(f"{name} must be a list of texts, not {_shown(value)}")


def is_a(value: object, kind: type) -> bool:
    """As Python's own types, with two differences: truth values are no numbers, and whole numbers are numbers."""
    if kind in (int, float):
        return not isinstance(value, bool) and isinstance(value, Integral if kind is int else Real)
    return isinstance(value, kind)


def check_count(name: str, value: object) -> None:
    """BadUsage: no whole number, and not None."""
    if value is not None and not is_a(value, int):
        raise BadUsage(f"{name} must be a whole number, not {_shown(value)}")


def check_prompt(prompt: object) -> None:
    """BadUsage: neither text nor messages, each with the text of a `role` and a `content`."""
    if isinstance(prompt, str):
        return
    if not isinstance(prompt, Sequence):
        raise BadUsage(f"the prompt must be a text or a list of messages, not {_shown(prompt)}")
    for number, message in enumerate(prompt, 1):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str) or "content" not in message:
            raise BadUsage(f"message {number} must have a 'role' and a 'content', and is {_shown(message)}")


def _check_bias(value: object) -> None:
    pairs = isinstance(value, Mapping) and all(is_a(k, int) and is_a(v, float) for k, v in value.items())
    texts = isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(v, str) for v in value)
    if not (pairs or texts):
        raise BadUsage(f"logit-bias must map token ids to numbers, or be texts such as '42=-5', not {_shown(value)}")


def _shown(value: object) -> str:
    return f"{value!r}"[:60]
