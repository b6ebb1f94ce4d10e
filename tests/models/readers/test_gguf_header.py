"""The GGUF header reader: sound files, cut files, hostile files."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_models import write_gguf

from spec_edge.models import gguf_file
from spec_edge.models.contract import SpecError
from spec_edge.models.gguf_file import read_gguf


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def key(name: str, code: int, payload: bytes) -> bytes:
    return text(name) + struct.pack("<I", code) + payload


def tensor(name: str, dims: list[int], code: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, code, offset)


def header(tensors: int = 0, keys: int = 0, version: int = 3, magic: bytes = b"GGUF") -> bytes:
    return magic + struct.pack("<IQQ", version, tensors, keys)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    values = np.arange(4 * 64, dtype=np.float32).reshape(4, 64)
    path = tmp_path_factory.mktemp("sound") / "sound.gguf"
    keys = {"a.number": 7, "a.real": 0.5, "a.flag": True, "a.text": "é", "a.texts": ["x", "yy"], "a.numbers": [1, 2]}
    return write_gguf(path, "llama", keys, {"one": (values, "F32"), "two": (values + 1, "Q8_0")})


def test_reads_what_the_gguf_package_writes(sound: Path) -> None:
    file = read_gguf(sound)
    assert file.meta["general.architecture"] == "llama"
    assert (file.meta["a.number"], file.meta["a.real"], file.meta["a.flag"]) == (7, 0.5, True)
    assert (file.meta["a.text"], file.meta["a.texts"]) == ("é", ("x", "yy"))
    np.testing.assert_array_equal(file.meta["a.numbers"], [1, 2])
    assert {n: (t.shape, t.kind, t.nbytes) for n, t in file.tensors.items()} == {
        "one": ((4, 64), "F32", 1024),
        "two": ((4, 64), "Q8_0", 272),
    }
    np.testing.assert_array_equal(file.raw("one").view("<f4"), np.arange(256).reshape(4, 64))


def test_every_field_equals_the_gguf_packages_reader(sound: Path) -> None:
    theirs = gguf.GGUFReader(sound)
    for entry in theirs.tensors:
        np.testing.assert_array_equal(read_gguf(sound).raw(entry.name).ravel(), entry.data.view(np.uint8).ravel())


def test_nothing_is_held_open(sound: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(sound.read_bytes())
    file = read_gguf(copy)
    file.raw("one")
    copy.rename(tmp_path / "moved.gguf")
    with pytest.raises(SpecError, match="cannot read"):
        file.raw("one")


def test_a_file_cut_after_it_was_opened_is_an_error(sound: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(sound.read_bytes())
    file = read_gguf(copy)
    copy.write_bytes(sound.read_bytes()[:-64])
    with pytest.raises(SpecError, match="became shorter"):
        file.raw("two")


def test_every_truncation_names_the_file_and_both_sizes(sound: Path, tmp_path: Path) -> None:
    whole = sound.read_bytes()
    cut = tmp_path / "cut.gguf"
    needed = max(t.offset + t.nbytes for t in read_gguf(sound).tensors.values())
    for size in [0, 3, 23, 24, 30, 100, 200, needed - 1]:
        cut.write_bytes(whole[:size])
        with pytest.raises(SpecError) as caught:
            read_gguf(cut)
        message = caught.value.message
        assert "cut.gguf is truncated" in message and str(size) in message and "\n" not in message
    assert f"need {needed} bytes, the file has {needed - 1}" in message


@dataclass
class Work:
    """Sizes of the pieces of a file that were looked at, and the most memory in use, in bytes."""

    pieces: list[int] = field(default_factory=list)
    allocated: int = 0


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Work]:
    work, skip = Work(), gguf_file._Cursor.skip

    def noting(cursor: gguf_file._Cursor, count: int) -> int:
        work.pieces.append(count)
        return skip(cursor, count)

    monkeypatch.setattr(gguf_file._Cursor, "skip", noting)
    tracemalloc.start()
    try:
        yield work
    finally:
        work.allocated = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()


PAD = b"\0" * 4096
HOSTILE = {
    "magic": (b"PK\x03\x04" + PAD, "is not a GGUF file: it begins with"),
    "version": (header(version=1) + PAD, "version 1, 2 and 3 are supported"),
    "big-endian": (header(version=3 << 24) + PAD, "big-endian"),
    "keys": (header(keys=1 << 17) + PAD, "131072 keys, at most 65536"),
    "tensors": (header(tensors=1 << 21) + PAD, "2097152 tensors, at most 1048576"),
    "tensors past the end": (header(tensors=1 << 20) + PAD, "is truncated"),
    "keys past the end": (header(keys=1 << 16) + PAD, "is truncated"),
    "string": (header(keys=1) + struct.pack("<Q", 1 << 40) + PAD, "a string of 1099511627776 bytes"),
    "string past the end": (header(keys=1) + struct.pack("<Q", 1 << 19) + PAD, "is truncated"),
    "not UTF-8": (header(keys=1) + struct.pack("<Q", 2) + b"\xff\xfe" + PAD, "not UTF-8"),
    "empty key": (header(keys=1) + PAD, "an empty key"),
    "value type": (header(keys=1) + key("k", 13, b"") + PAD, "unknown type 13"),
    "array type": (header(keys=1) + key("k", 9, struct.pack("<IQ", 9, 1)) + PAD, "an array of type 9"),
    "array": (header(keys=1) + key("k", 9, struct.pack("<IQ", 8, 1 << 30)) + PAD, "1073741824 array elements"),
    "array past the end": (header(keys=1) + key("k", 9, struct.pack("<IQ", 8, 1 << 22)) + PAD, "is truncated"),
    "same key": (header(keys=2) + key("k", 0, b"\1") * 2 + PAD, "'k' appears twice"),
    "dimensions": (header(tensors=1) + tensor("t", [1] * 5) + PAD, "has 5 dimensions"),
    "no dimensions": (header(tensors=1) + tensor("t", []) + PAD, "has 0 dimensions"),
    "zero": (header(tensors=1) + tensor("t", [4, 0]) + PAD, r"has shape \[4, 0\]"),
    "huge": (header(tensors=1) + tensor("t", [1 << 62] * 4) + PAD, "is truncated: its tensors need"),
    "tensor type": (header(tensors=1) + tensor("t", [4], 999) + PAD, "'t' is of unknown type 999"),
    "block": (header(tensors=1) + tensor("t", [33], 2) + PAD, "which Q4_0 blocks of 32 cannot fill"),
    "offset": (header(tensors=1) + tensor("t", [4], 0, 4) + PAD, "not aligned to 32"),
    "far offset": (header(tensors=1) + tensor("t", [4], 0, 1 << 63) + PAD, "is truncated"),
    "same tensor": (header(tensors=2) + tensor("t", [4]) * 2 + PAD, "'t' appears twice"),
    "alignment": (
        header(tensors=1, keys=1) + key("general.alignment", 4, struct.pack("<I", 48)) + tensor("t", [4]) + PAD,
        "alignment 48 is not a power of two",
    ),
    "large alignment": (
        header(tensors=1, keys=1) + key("general.alignment", 4, struct.pack("<I", 1 << 21)) + tensor("t", [4]) + PAD,
        "alignment 2097152 is not",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_headers_are_refused_at_once(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few pieces of the file are looked at and little memory is taken, whatever counts and sizes it claims."""
    content, message = HOSTILE[name]
    path = tmp_path / "hostile.gguf"
    path.write_bytes(content)
    with counted(monkeypatch) as work, pytest.raises(SpecError, match=message) as caught:
        read_gguf(path)
    assert len(work.pieces) < 30 and work.allocated < 1 << 20
    assert "\n" not in caught.value.message and len(caught.value.message) < 400


@pytest.mark.usefixtures("makes_holes")
def test_a_tensor_far_into_a_large_file(tmp_path: Path) -> None:
    """Past 4 GiB: no number of 32 bits anywhere."""
    path, far = tmp_path / "large.gguf", 5 << 30
    head = header(tensors=1) + tensor("t", [4], 0, far)
    with path.open("wb") as file:
        file.write(head)
        file.seek((len(head) + 31) // 32 * 32 + far)
        file.write(np.arange(4, dtype="<f4").tobytes())
    np.testing.assert_array_equal(read_gguf(path).raw("t").view("<f4"), [[0, 1, 2, 3]])


def test_strings_are_capped_in_all(tmp_path: Path) -> None:
    count = 70
    big = struct.pack("<Q", 1 << 20) + b"x" * (1 << 20)
    path = tmp_path / "strings.gguf"
    path.write_bytes(header(keys=1) + key("k", 9, struct.pack("<IQ", 8, count)) + big * count)
    with pytest.raises(SpecError, match="more than 67108864 bytes of strings"):
        read_gguf(path)


def test_array_elements_are_capped_in_all(tmp_path: Path) -> None:
    part = struct.pack("<IQ", 0, 1 << 21) + b"\0" * (1 << 21)
    path = tmp_path / "arrays.gguf"
    path.write_bytes(header(keys=3) + b"".join(key(f"k{i}", 9, part) for i in range(3)))
    with pytest.raises(SpecError, match="more than 4194304 array elements in all"):
        read_gguf(path)


@given(
    edits=st.lists(st.tuples(st.integers(0, 1023), st.integers(0, 255)), max_size=6),
    cut=st.integers(0, 2048),
)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_headers_never_crash(sound: Path, tmp_path: Path, edits: list[tuple[int, int]], cut: int) -> None:
    content = bytearray(sound.read_bytes())
    for at, value in edits:
        content[at % len(content)] = value
    path = tmp_path / "damaged.gguf"
    path.write_bytes(content[:cut])
    try:
        file = read_gguf(path)
    except SpecError as error:
        assert "\n" not in error.message
        return
    for name in file.tensors:
        file.raw(name)


@pytest.mark.real
def test_the_real_header_is_read_and_nothing_else(smollm2_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with counted(monkeypatch) as work:
        file = read_gguf(smollm2_gguf)
    assert len(file.meta) == 33 and len(file.tensors) == 272
    strings = sum(len(v) for v in file.meta.values() if isinstance(v, tuple))
    assert len(work.pieces) < 2 * strings + 10 * (33 + 272)  # a length and a text each, a few numbers beside
    assert sum(work.pieces) <= min(t.offset for t in file.tensors.values())
