"""The sandbox that chat templates run in: jinja2's immutable one, with every size bounded before anything is made.

Enters: nothing. Leaves: an environment with what the templates of public models use (loop controls, generation
blocks, tojson, raise_exception, strftime_now, namespace), and the limits it keeps.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Sequence
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

TEXT_LIMIT = 4 << 20
"""Most characters (or items) of any text or list that a template makes, its output included."""

RANGE_LIMIT = 100_000
NUMBER_LIMIT = 1 << 16
"""Largest number that a text method may be given (a width, a count), and most bits of an integer."""


class TooMuch(Exception):
    """A template asked for more than a limit."""


class Refused(Exception):
    """The template's own `raise_exception`."""


class _Generator(CodeGenerator):
    """`~` joins through the environment, so that it is counted like `+`."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.join_texts((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


class _Generation(Extension):
    """`{% generation %}` marks the assistant's text for training; here it is only a scope."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own type

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class _Environment(ImmutableSandboxedEnvironment):
    """jinja2's immutable sandbox, with sizes bounded before anything is made."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])
    code_generator_class = _Generator

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        _BINOPS[operator](left, right)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        method = getattr(obj, "__wrapped__", obj)  # jinja2 wraps str.format
        if isinstance(text := getattr(method, "__self__", None), str):
            _cap_call(text, (*args, *kwargs.values()))
            if method.__name__ in ("format", "format_map"):
                _cap_widths(text)
        return super().call(context, obj, *args, **kwargs)

    def join_texts(self, parts: Sequence[object]) -> str:
        texts = [str(p) for p in parts]
        cap_size(sum(map(len, texts)))
        return "".join(texts)


class _Namespace(jinja2.utils.Namespace):
    """jinja2's, without names that begin with an underscore."""

    def __init__(*args: Any, **values: Any) -> None:
        # Without a named `self`, so that a template may call an attribute `self`.
        own, *rest = args
        fields = dict(*rest, **values)
        for name in fields:
            _Namespace._check(name)
        jinja2.utils.Namespace.__init__(own, fields)

    def __setitem__(self, name: str, value: Any) -> None:
        _Namespace._check(name)
        super().__setitem__(name, value)

    @staticmethod
    def _check(name: object) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"a namespace takes no attribute {name!r}")


def environment() -> jinja2.Environment:
    """A fresh environment."""
    made = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    made.filters |= {"tojson": _tojson}
    for name in ("center", "format", "indent", "replace", "batch", "slice", "join", "wordwrap"):
        made.filters[name] = _capped(made.filters[name], formats=name == "format")
    made.globals |= {"raise_exception": _refuse, "strftime_now": _now, "range": _range}
    made.globals |= {"namespace": _Namespace}
    return made


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Without the HTML escapes of jinja2's own filter; keys keep their order."""
    _cap_number(indent or 0)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> None:
    raise Refused(message)


def _now(form: str) -> str:
    return datetime.datetime.now().strftime(form)


def _range(*args: int) -> range:
    numbers = range(*args)
    if len(numbers) > RANGE_LIMIT:
        raise TooMuch(f"it asks for a range of {len(numbers)} numbers")
    return numbers


# Limits


def cap_size(size: int) -> None:
    if size > TEXT_LIMIT:
        raise TooMuch(f"it makes a text of more than {TEXT_LIMIT} characters")


def _cap_number(value: object) -> None:
    if isinstance(value, int) and abs(value) > NUMBER_LIMIT:
        raise TooMuch(f"it asks for a size of more than {NUMBER_LIMIT}")


def _length(value: object) -> int:
    return len(value) if isinstance(value, str | list | tuple) else 0


def _cap_sum(left: object, right: object) -> None:
    cap_size(_length(left) + _length(right))


def _cap_product(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        _cap_bits(left.bit_length() + right.bit_length())
    for text, count in ((left, right), (right, left)):
        if isinstance(count, int):
            cap_size(_length(text) * count)


def _cap_power(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        _cap_bits(left.bit_length() * max(right, 0))


def _cap_bits(bits: int) -> None:
    if bits > NUMBER_LIMIT:
        raise TooMuch(f"it makes a number of more than {NUMBER_LIMIT} bits")


def _cap_format(left: object, right: object) -> None:
    """`%` on a text: a width is a run of digits in it, or a number that is put in for `*`."""
    if isinstance(left, str):
        _cap_widths(left)
        _cap_call(left, right if isinstance(right, tuple) else (right,))


def _cap_widths(form: str) -> None:
    digits = "".join(c if c.isdigit() else " " for c in form)
    if any(len(number) > 5 for number in digits.split()):
        raise TooMuch("it formats with a width of more than five digits")


def _cap_call(text: str, args: Sequence[object]) -> None:
    """A method of a text: no huge width or count, no huge replacement, no huge join."""
    for value in args:
        _cap_number(value)
    parts = [len(a) for a in args if isinstance(a, str)]
    if len(parts) == 2:  # replace(old, new)
        cap_size(len(text) + (len(text) // max(parts[0], 1) + 1) * parts[1])
    if len(args) == 1 and isinstance(args[0], list | tuple):  # join(items)
        cap_size(len(args[0]) * len(text) + sum(_length(a) for a in args[0]))


def _capped(method: Any, formats: bool) -> Any:
    """A jinja2 filter under the limits of a text method, with the marks by which jinja2 calls it."""

    def limited(*args: Any, **kwargs: Any) -> Any:
        plain = [a for a in (*args, *kwargs.values()) if isinstance(a, str | int | list | tuple)]
        for i, value in enumerate(plain):
            _cap_number(value)
            if isinstance(value, str):
                _cap_call(value, plain[i + 1 :])
        if formats and isinstance(plain[0], str):
            _cap_widths(plain[0])
        return method(*args, **kwargs)

    limited.__dict__.update(method.__dict__)
    return limited


_BINOPS: dict[str, Callable[[Any, Any], None]] = {
    "+": _cap_sum,
    "*": _cap_product,
    "**": _cap_power,
    "%": _cap_format,
}
