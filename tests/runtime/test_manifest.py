"""bundle.json: what is written is read back, and nothing else is."""

from __future__ import annotations

import copy
import dataclasses
import json
import typing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spec_edge.models.contract import FileFact, Manifest, SpecError
from spec_edge.runtime import manifest as schema

QUICK = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="session")
def text(tiny: Path) -> bytes:
    return (tiny / "bundle.json").read_bytes()


def strategy(hint: Any) -> st.SearchStrategy[Any]:
    """Any value of a type of the contract (not always a sane one)."""
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        fields = {f.name: strategy(hints[f.name]) for f in dataclasses.fields(hint)}
        return st.builds(hint, **fields)
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is tuple:
        return st.lists(strategy(arguments[0]), max_size=3).map(tuple)
    if typing.get_origin(hint) is dict:
        return st.dictionaries(strategy(str), strategy(str), max_size=3)
    if arguments:
        return st.one_of(*(strategy(a) for a in arguments))
    plain = st.characters(blacklist_categories=("Cc", "Cs", "Zl", "Zp"))
    return {
        int: st.integers(0, 2**63 - 1),
        str: st.text(plain, max_size=10),
        float: st.floats(allow_nan=False, allow_infinity=False),
        bool: st.booleans(),
        type(None): st.none(),
    }[hint]


@QUICK
@given(strategy(Manifest))
def test_every_record_survives_the_round_trip(manifest: Manifest) -> None:
    """The reader and the layout alone; values are checked elsewhere."""
    tree = json.loads(schema._layout(schema._plain(manifest), 0))
    assert schema._read(Manifest, tree, "") == manifest


def test_written_bytes_are_stable(text: bytes) -> None:
    manifest = schema.read(text)
    assert schema.write(manifest) == text
    assert max(len(line) for line in text.decode().splitlines()) <= 140


MUTATIONS: list[tuple[str, str, str]] = [
    ('"format": 1', '"format": 2', "format version 2 is not 1"),
    ('"format": 1', '"format": true', "format version True is not 1"),
    ('"target": "cpu"', '"target": "cpu", "target": "cpu"', "key 'target' appears twice"),
    ('"target": "cpu"', '"targets": "cpu"', "unknown key 'targets' (did you mean 'target'?); known: format, model,"),
    ('"target": "cpu",', "", "key 'target' is missing"),
    ('"layers": 2', '"layers": true', "model.layers is a truth value True, not an integer"),
    ('"layers": 2', '"layers": 2.0', "model.layers is a number 2.0, not an integer"),
    ('"layers": 2', '"layers": -2', "model.layers -2 is out of range"),
    ('"layers": 2', '"layers": 0', "model.layers 0 is not within 1..1024"),
    ('"layers": 2', f'"layers": {10**30}', "model.layers of 100 bits is out of range"),
    ('"kv_heads": 2', '"kv_heads": 3', "model.kv_heads 3 does not divide heads 4"),
    ('"kl": 0.0', '"kl": NaN', "NaN is not a number of JSON"),
    ('"kl": 0.0', '"kl": 1e999', "quality.kl is not finite"),
    ('"kl": 0.0', '"kl": "0"', "quality.kl is text '0', not a number"),
    ('"bos_id": null', '"bos_id": "1"', "text.bos_id is text '1', not an integer or null"),
    ('"bos_id": null', '"bos_id": 999999', "token id 999999 is not below"),
    ('"name": "tiny"', '"name": "ti\\u001b[2Jny"', "holds a control character"),
    ('"name": "tiny"', '"name": "ti\\ud800ny"', "holds a control character"),
    ('"role": "step"', '"role": "stop"', "graphs[0].role 'stop' is not one of step, verify, prefill"),
    ('"network": "target"', '"network": "medusa"', "graphs[0].network 'medusa' is not one of target"),
    ('"dtype": "int32"', '"dtype": "i32"', "dtype 'i32' is not one of float32,"),
    ('"file": "weights.bin"', '"file": "../../x"', "file name '../../x' is not allowed"),
    ('"file": "weights.bin"', '"file": "Step.onnx"', "two files are called step.onnx (Step.onnx)"),
    ('"file": "weights.bin"', '"file": "BUNDLE.json"', "two files are called BUNDLE.json"),
    ('"sha256": "', '"sha256": "X', "is not 64 lower-case hex digits"),
    ('"shape": [1, "S"]', '"shape": [1, null]', "shape[1] is null None, not an integer or text"),
]


@pytest.mark.parametrize(("old", "new", "message"), MUTATIONS)
def test_one_wrong_thing_is_named(text: bytes, old: str, new: str, message: str) -> None:
    assert old in text.decode()
    with pytest.raises(SpecError) as caught:
        schema.read(text.decode().replace(old, new, 1).encode())
    assert message in caught.value.message
    assert caught.value.message.endswith("export the model again with this version of spec-edge")
    assert "\n" not in caught.value.message and caught.value.message.isascii()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"null",
        b"\xff",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"1" * 5000,
        b" " * (2**20 + 1),
        b"\xef\xbb\xbf{}",
    ],
)
def test_what_is_no_manifest_at_all(data: bytes) -> None:
    with pytest.raises(SpecError, match=r"^bundle\.json") as caught:
        schema.read(data)
    assert "\n" not in caught.value.message


@settings(QUICK, max_examples=150)
@given(data=st.data())
def test_damage_never_raises_anything_else(text: bytes, data: Any) -> None:
    where = data.draw(st.integers(0, len(text) - 1))
    damaged = bytearray(text)
    damaged[where : where + data.draw(st.integers(0, 5))] = data.draw(st.binary(max_size=5))
    _read_or_refuse(bytes(damaged))


@settings(QUICK, max_examples=150)
@given(data=st.data())
def test_any_value_anywhere_never_raises_anything_else(text: bytes, data: Any) -> None:
    tree = copy.deepcopy(json.loads(text))
    node: Any = tree
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(node[key], dict | list) or not node[key] or data.draw(st.booleans()):
            break
        node = node[key]
    leaf = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
    node[key] = data.draw(st.recursive(leaf, lambda s: st.lists(s, max_size=2) | st.dictionaries(st.text(), s)))
    _read_or_refuse(json.dumps(tree).encode())


def _read_or_refuse(data: bytes) -> None:
    try:
        manifest = schema.read(data)
    except SpecError as error:
        assert "\n" not in error.message and error.message.isascii()
    else:
        assert schema.read(schema.write(manifest)) == manifest


@pytest.mark.parametrize(
    "name", ["con", "NUL.txt", "COM1", "lpt9.onnx", "a.", "a ", "a/b", "a\\b", "..", ".x", "", "a:b", "x" * 129]
)
def test_unsafe_names(name: str) -> None:
    assert not schema.file_name_is_safe(name)


@pytest.mark.parametrize("name", ["a", "console.bin", "com10", "A-b_c.1.onnx", "x" * 128])
def test_safe_names(name: str) -> None:
    assert schema.file_name_is_safe(name)


def test_a_manifest_that_breaks_a_rule_is_not_written(text: bytes) -> None:
    manifest = schema.read(text)
    bad = dataclasses.replace(manifest, weights=FileFact("aux.bin", 1, "0" * 64))
    with pytest.raises(SpecError, match=r"file name 'aux\.bin' is not allowed"):
        schema.write(bad)
