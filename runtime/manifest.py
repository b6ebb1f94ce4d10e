"""`bundle.json`, read and written strictly.

Enters: the bytes of `bundle.json`, or a `Manifest`. Leaves: a `Manifest` whose every field has its type and a sane
value, or the bytes (the same record always gives the same bytes). One recursive reader serves all records: it follows
their type hints, so a new field of the contract needs no code here.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import math
import re
import types
import typing
from typing import Any, NoReturn, TypeVar

from spec_edge.models.contract import FORMAT, Manifest
from spec_edge.runtime.manifest_agrees import agree
from spec_edge.runtime.manifest_values import INT_LIMIT, check, fail, show
from spec_edge.runtime.manifest_values import file_name_is_safe as file_name_is_safe
from spec_edge.runtime.manifest_values import files as files

LIMIT = 1 << 20
"""Most bytes of a bundle.json."""

R = TypeVar("R")

_KINDS = {dict: "an object", list: "a list", str: "text", bool: "a truth value", int: "an integer", float: "a number"}
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def read(text: bytes) -> Manifest:
    """The manifest in `text`; SpecError (one line with the fix) for anything that is not exactly one."""
    tree = _parse(text)
    if not isinstance(tree, dict):
        fail("", f"is {_kind(tree)}, not an object")
    version = tree.get("format")
    if type(version) is not int or version != FORMAT:
        fail("format", f"version {show(version)} is not {FORMAT}, the one this version reads")
    manifest: Manifest = _read(Manifest, tree, "")
    check(manifest)
    agree(manifest)
    return manifest


def write(manifest: Manifest) -> bytes:
    """The bytes of bundle.json: UTF-8, fields in the order of the contract, small records on one line."""
    check(manifest)
    agree(manifest)
    data = (_layout(_plain(manifest), 0) + "\n").encode()
    if len(data) > LIMIT:
        fail("", f"would have {len(data)} bytes, more than {LIMIT}; use fewer widths or buckets")
    again = read(data)
    if again != manifest:
        fail("", "a value of the manifest does not survive being written")
    return data


def record(cls: type[R], value: object) -> R:
    """A record of the contract from its JSON object, for one that travels outside a manifest. SpecError: it is none."""
    found: R = _read(cls, value, "")
    return found


# Reading


def _parse(text: bytes) -> object:
    if len(text) > LIMIT:
        fail("", f"has {len(text)} bytes, more than {LIMIT}")
    try:
        return json.loads(text.decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0] if isinstance(error, ValueError) else "nested too deeply"
        fail("", f"is not JSON ({reason[:120]})")


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        fail("", f"key {show(next(n for n in names if names.count(n) > 1))} appears twice")
    return result


def _no_constant(name: str) -> NoReturn:
    fail("", f"{name} is not a number of JSON")


@dataclasses.dataclass(frozen=True)
class _Shape:
    """A type hint looked at once. options: of a union, else none. json: types of Python that its JSON values have."""

    options: tuple[Any, ...]
    json: tuple[type, ...]
    record: bool
    item: Any


@functools.cache
def _shape(hint: Any) -> _Shape:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        kinds = tuple(kind for option in arguments for kind in _shape(option).json)
        return _Shape(arguments, kinds, False, None)
    if dataclasses.is_dataclass(hint) or origin is dict:
        return _Shape((), (dict,), origin is not dict, None)
    if origin is tuple:
        return _Shape((), (list,), False, arguments[0])
    return _Shape((), (int, float) if hint is float else (hint,), False, None)


def _read(hint: Any, value: object, where: str) -> Any:
    """`value` as the type `hint` says."""
    shape = _shape(hint)
    if not _fits(hint, value):
        fail(where, f"is {_kind(value)} {show(value)}, not {_describe(hint)}")
    if shape.options:
        return _read(next(o for o in shape.options if _fits(o, value)), value, where)
    if isinstance(value, dict):
        return _record(hint, value, where) if shape.record else _mapping(hint, value, where)
    if isinstance(value, list):
        return tuple([_read(shape.item, v, f"{where}[{i}]") for i, v in enumerate(value)])
    return _scalar(hint, value, where)


def _record(cls: Any, value: dict[str, object], where: str) -> Any:
    hints, required = _fields(cls)
    for key in value:
        if key not in hints:
            near = difflib.get_close_matches(key, hints, 1)
            hint = f" (did you mean '{near[0]}'?)" if near else ""
            fail(where, f"unknown key {show(key)}{hint}; known: {', '.join(hints)}")
    if missing := [name for name in required if name not in value]:
        fail(where, f"key '{missing[0]}' is missing")
    prefix = f"{where}." if where else ""
    return cls(**{key: _read(hints[key], v, prefix + key) for key, v in value.items()})


def _mapping(hint: Any, value: dict[str, object], where: str) -> dict[str, Any]:
    key, item = typing.get_args(hint)
    return {str(_scalar(key, k, where)): _read(item, v, f"{where}.{k}") for k, v in value.items()}


def _scalar(hint: Any, value: object, where: str) -> object:
    if isinstance(value, str) and _CONTROL.search(value):
        fail(where, f"{show(value)} holds a control character")
    if isinstance(value, int) and not 0 <= value < INT_LIMIT:
        fail(where, f"{show(value)} is out of range")
    if isinstance(value, float) and not math.isfinite(value):
        fail(where, "is not finite")
    return float(value) if hint is float and isinstance(value, int) else value


def _fits(hint: Any, value: object) -> bool:
    """Whether the JSON kind of `value` is the one of `hint` (a bool is no int; an int is a float)."""
    return type(value) in _shape(hint).json


@functools.cache
def _fields(cls: type) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Type of each field, and the fields that have no default."""
    hints = typing.get_type_hints(cls)
    fields = dataclasses.fields(cls)
    return {f.name: hints[f.name] for f in fields}, tuple(f.name for f in fields if f.default is dataclasses.MISSING)


# Messages and writing


def _kind(value: object) -> str:
    names = {
        dict: "an object",
        list: "a list",
        str: "text",
        bool: "a truth value",
        int: "an integer",
        float: "a number",
    }
    return names.get(type(value), "null")


def _describe(hint: Any) -> str:
    if _shape(hint).options:
        return " or ".join(_describe(o) for o in _shape(hint).options)
    if dataclasses.is_dataclass(hint):
        return "an object"
    origin = {tuple: list, None: hint}.get(typing.get_origin(hint), typing.get_origin(hint))
    return "null" if origin is types.NoneType else _kind(origin())


def _plain(value: object) -> Any:
    """Records as dicts, tuples as lists. (dataclasses.asdict keeps tuples and copies deeply.)"""
    if dataclasses.is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {k: _plain(value[k]) for k in sorted(value)}
    return value


def _layout(value: Any, depth: int) -> str:
    """JSON text: on one line where it fits in 120 columns, else one item a line."""
    line = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if len(line) + depth <= 118 or not isinstance(value, dict | list):
        return line
    pad, inner = "\n" + " " * depth, depth + 1
    if isinstance(value, dict):
        items = [f"{json.dumps(k, ensure_ascii=False)}: {_layout(v, inner)}" for k, v in value.items()]
        return "{" + pad + " " + f",{pad} ".join(items) + pad + "}"
    return "[" + pad + " " + f",{pad} ".join(_layout(v, inner) for v in value) + pad + "]"
