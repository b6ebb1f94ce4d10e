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
from collections.abc import Iterable
from typing import Any, NoReturn

from spec_edge.models.contract import (
    FORMAT,
    MANIFEST,
    DraftFact,
    FileFact,
    GraphSpec,
    Manifest,
    ModelFacts,
    SpecError,
    TextFacts,
)

LIMIT = 1 << 20
"""Most bytes of a bundle.json."""

INT_LIMIT = 1 << 63
CONTEXT_LIMIT = 1 << 24
LAYER_LIMIT = 1 << 10
DTYPES = ("float32", "float16", "int8", "uint8", "int32", "int64", "bool")
ROLES = ("step", "verify", "prefill")
LOWERINGS = ("portable", "fused")
FIX = "export the model again with this version of spec-edge"

_KINDS = {dict: "an object", list: "a list", str: "text", bool: "a truth value", int: "an integer", float: "a number"}
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")
_DEVICE = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)
_SHA256 = re.compile(r"[0-9a-f]{64}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def read(text: bytes) -> Manifest:
    """The manifest in `text`; SpecError (one line with the fix) for anything that is not exactly one."""
    tree = _parse(text)
    if not isinstance(tree, dict):
        _fail("", f"is {_kind(tree)}, not an object")
    version = tree.get("format")
    if type(version) is not int or version != FORMAT:
        _fail("format", f"version {_show(version)} is not {FORMAT}, the one this version reads")
    manifest: Manifest = _read(Manifest, tree, "")
    check(manifest)
    return manifest


def write(manifest: Manifest) -> bytes:
    """The bytes of bundle.json: UTF-8, fields in the order of the contract, small records on one line."""
    check(manifest)
    data = (_layout(_plain(manifest), 0) + "\n").encode()
    if len(data) > LIMIT:
        _fail("", f"would have {len(data)} bytes, more than {LIMIT}; use fewer widths or buckets")
    again = read(data)
    if again != manifest:
        _fail("", "a value of the manifest does not survive being written")
    return data


def check(manifest: Manifest) -> None:
    """Refuse values that have the right type and still make no sense."""
    _check_model(manifest.model)
    _check_text(manifest.text, manifest.model)
    _check_files(files(manifest))
    if manifest.draft is not None:
        _check_draft(manifest.draft)
    _unique("graphs", [g.name for g in manifest.graphs])
    for i, graph in enumerate(manifest.graphs):
        _check_graph(graph, f"graphs[{i}]", ("target", *(d.name for d in manifest.drafters)))


def files(manifest: Manifest) -> tuple[FileFact, ...]:
    """Every file of the bundle but bundle.json, each once."""
    graphs = [g.file for g in manifest.graphs]
    template = [manifest.text.chat_template] if manifest.text.chat_template else []
    vocabularies = [d.vocabulary for d in manifest.drafters if d.vocabulary]
    facts = [manifest.weights, manifest.reference, manifest.text.tokenizer, *template, *vocabularies, *graphs]
    return tuple(dict.fromkeys(facts))


# Reading


def _parse(text: bytes) -> object:
    if len(text) > LIMIT:
        _fail("", f"has {len(text)} bytes, more than {LIMIT}")
    try:
        return json.loads(text.decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0] if isinstance(error, ValueError) else "nested too deeply"
        _fail("", f"is not JSON ({reason[:120]})")


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        _fail("", f"key {_show(next(n for n in names if names.count(n) > 1))} appears twice")
    return result


def _no_constant(name: str) -> NoReturn:
    _fail("", f"{name} is not a number of JSON")


def _read(hint: Any, value: object, where: str) -> Any:
    """`value` as the type `hint` says."""
    if not _fits(hint, value):
        _fail(where, f"is {_kind(value)} {_show(value)}, not {_describe(hint)}")
    if _is_union(hint):
        return _read(next(o for o in typing.get_args(hint) if _fits(o, value)), value, where)
    if isinstance(value, dict):
        return _record(hint, value, where) if dataclasses.is_dataclass(hint) else _mapping(hint, value, where)
    if isinstance(value, list):
        item = typing.get_args(hint)[0]
        return tuple([_read(item, v, f"{where}[{i}]") for i, v in enumerate(value)])
    return _scalar(hint, value, where)


def _record(cls: Any, value: dict[str, object], where: str) -> Any:
    hints, required = _fields(cls)
    for key in value:
        if key not in hints:
            near = difflib.get_close_matches(key, hints, 1)
            hint = f" (did you mean '{near[0]}'?)" if near else ""
            _fail(where, f"unknown key {_show(key)}{hint}; known: {', '.join(hints)}")
    if missing := [name for name in required if name not in value]:
        _fail(where, f"key '{missing[0]}' is missing")
    prefix = f"{where}." if where else ""
    return cls(**{key: _read(hints[key], v, prefix + key) for key, v in value.items()})


def _mapping(hint: Any, value: dict[str, object], where: str) -> dict[str, Any]:
    key, item = typing.get_args(hint)
    return {str(_scalar(key, k, where)): _read(item, v, f"{where}.{k}") for k, v in value.items()}


def _scalar(hint: Any, value: object, where: str) -> object:
    if isinstance(value, str) and _CONTROL.search(value):
        _fail(where, f"{_show(value)} holds a control character")
    if isinstance(value, int) and not 0 <= value < INT_LIMIT:
        _fail(where, f"{_show(value)} is out of range")
    if isinstance(value, float) and not math.isfinite(value):
        _fail(where, "is not finite")
    return float(value) if hint is float and isinstance(value, int) else value


def _fits(hint: Any, value: object) -> bool:
    """Whether the JSON kind of `value` is the one of `hint` (a bool is no int; an int is a float)."""
    if _is_union(hint):
        return any(_fits(option, value) for option in typing.get_args(hint))
    if dataclasses.is_dataclass(hint) or typing.get_origin(hint) is dict:
        return isinstance(value, dict)
    if typing.get_origin(hint) is tuple:
        return isinstance(value, list)
    if hint is float:
        return type(value) in (int, float)
    return type(value) is hint


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


@functools.cache
def _fields(cls: type) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Type of each field, and the fields that have no default."""
    hints = typing.get_type_hints(cls)
    fields = dataclasses.fields(cls)
    return {f.name: hints[f.name] for f in fields}, tuple(f.name for f in fields if f.default is dataclasses.MISSING)


# Values


def _check_model(model: ModelFacts) -> None:
    for name in ("vocab_size", "hidden_size", "layers", "heads", "kv_heads", "head_dim", "context", "trained_context"):
        limit = LAYER_LIMIT if name == "layers" else CONTEXT_LIMIT
        if not 1 <= getattr(model, name) <= limit:
            _fail(f"model.{name}", f"{getattr(model, name)} is not within 1..{limit}")
    if model.heads % model.kv_heads:
        _fail("model.kv_heads", f"{model.kv_heads} does not divide heads {model.heads}")
    if any(tap > model.layers for tap in model.taps):
        _fail("model.taps", f"names a layer past the {model.layers} of the model")
    if 2 * len(model.rope.inv_freq) != model.head_dim:
        _fail("model.rope.inv_freq", f"has {len(model.rope.inv_freq)} values for a head_dim of {model.head_dim}")


def _check_text(text: TextFacts, model: ModelFacts) -> None:
    if not 1 <= text.tokens <= model.vocab_size:
        _fail("text.tokens", f"{text.tokens} is not within 1..{model.vocab_size} (model.vocab_size)")
    for token in (*text.eos_ids, *([] if text.bos_id is None else [text.bos_id])):
        if token >= text.tokens:
            _fail("text", f"token id {token} is not below text.tokens {text.tokens}")


def _check_graph(graph: GraphSpec, where: str, networks: tuple[str, ...]) -> None:
    for name, known in (("network", networks), ("role", ROLES), ("lowering", LOWERINGS)):
        if getattr(graph, name) not in known:
            _fail(f"{where}.{name}", f"{_show(getattr(graph, name))} is not one of {', '.join(known)}")
    if graph.width == 0 or graph.past == 0:
        _fail(where, "width and past are at least 1")
    for side in ("inputs", "outputs"):
        tensors = getattr(graph, side)
        _unique(f"{where}.{side}", [t.name for t in tensors])
        for tensor in tensors:
            if tensor.dtype not in DTYPES:
                _fail(f"{where}.{side}", f"dtype {_show(tensor.dtype)} is not one of {', '.join(DTYPES)}")


def _check_files(facts: Iterable[FileFact]) -> None:
    seen = {MANIFEST: MANIFEST}
    for fact in facts:
        if not file_name_is_safe(fact.file):
            _fail("", f"file name {_show(fact.file)} is not allowed (letters, digits, . _ -, no folder, at most 128)")
        if not _SHA256.fullmatch(fact.sha256):
            _fail("", f"SHA-256 of {fact.file} is not 64 lower-case hex digits")
        if fact.file.lower() in seen:
            _fail("", f"two files are called {fact.file} ({seen[fact.file.lower()]})")
        seen[fact.file.lower()] = fact.file


def _check_draft(draft: DraftFact) -> None:
    if not file_name_is_safe(draft.folder):
        _fail("draft.folder", f"{_show(draft.folder)} is not allowed (letters, digits, . _ -, no path, at most 128)")
    if not _SHA256.fullmatch(draft.sha256):
        _fail("draft.sha256", "is not 64 lower-case hex digits")


def file_name_is_safe(name: str) -> bool:
    """One path component that means the same file on every system."""
    return bool(_NAME.fullmatch(name)) and not name.endswith(".") and not _DEVICE.fullmatch(name)


def _unique(where: str, names: list[str]) -> None:
    if len(set(names)) != len(names):
        _fail(where, f"two are called {_show(next(n for n in names if names.count(n) > 1))}")


# Messages and writing


def _fail(where: str, problem: str) -> NoReturn:
    raise SpecError(f"{MANIFEST}{': ' + ascii(where)[1:-1][:200] if where else ''} {problem}; {FIX}")


def _show(value: object) -> str:
    """A value for a message: ASCII, short."""
    text = ascii(value) if not isinstance(value, dict | list | int) or isinstance(value, bool) else ""
    if isinstance(value, int) and not isinstance(value, bool):
        text = str(value) if abs(value) < INT_LIMIT else f"of {value.bit_length()} bits"
    return text if len(text) <= 60 else text[:60] + "..."


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
    if _is_union(hint):
        return " or ".join(_describe(o) for o in typing.get_args(hint))
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
