"""A bundle is refused, by the file's name, unless every byte is the stated one."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from spec_edge.models.aliases import ALIASES
from spec_edge.models.contract import MANIFEST, BadUsage, SpecError
from spec_edge.runtime import bundle as folders
from spec_edge.runtime.bundle import open_bundle, sha256

FILES = ["weights.bin", "tokenizer.json", "chat_template.jinja", "step.onnx", "reference.npz", "prefill_16_64.onnx"]


@pytest.fixture
def copy(tiny: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny, tmp_path / "a bundle ✓ 束"))


def test_a_good_bundle_opens(copy: Path) -> None:
    bundle = open_bundle(copy)
    assert bundle.folder == copy.resolve()
    assert [g.name for g in bundle.graphs("target", "verify")][:3] == ["verify_1_64", "verify_4_64", "verify_8_64"]
    assert bundle.graphs("medusa", "step") == ()


def test_a_linked_folder_is_fine(copy: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    _link(link, copy)
    assert open_bundle(link).folder == copy.resolve()


@pytest.mark.parametrize("name", FILES)
def test_one_changed_byte(copy: Path, name: str) -> None:
    data = bytearray((copy / name).read_bytes())
    data[len(data) // 2] ^= 1
    (copy / name).write_bytes(data)
    with pytest.raises(SpecError, match=rf"bundle file {name} has changed .* spec-export tiny.gguf -o ") as caught:
        open_bundle(copy)
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda p: p.unlink(), "is missing"),
        (lambda p: p.write_bytes(p.read_bytes()[:-1]), "has 63 bytes, not 64"),
        (lambda p: (p.unlink(), p.mkdir()), "is not a regular file"),
    ],
)
def test_missing_short_and_odd_files(copy: Path, damage: Callable[[Path], object], message: str) -> None:
    damage(copy / "weights.bin")
    with pytest.raises(SpecError, match=f"bundle file weights.bin {message}"):
        open_bundle(copy)


def test_the_repair_names_what_the_user_called_the_model(copy: Path) -> None:
    """An alias's file has another name than the alias, and lies in the cache."""
    (copy / "weights.bin").write_bytes(b"")
    before = open_bundle_error(copy)
    manifest = (copy / MANIFEST).read_text("utf-8")
    made_from = json.loads(manifest)["source"]["sha256"]
    (copy / MANIFEST).write_text(manifest.replace(made_from, ALIASES["smollm2-135m"].sha256), "utf-8")
    assert "spec-export smollm2-135m -o" in open_bundle_error(copy)
    assert "spec-export smollm2-135m -o" not in before


def open_bundle_error(folder: Path) -> str:
    with pytest.raises(SpecError) as refused:
        open_bundle(folder)
    return refused.value.message


def test_a_link_out_of_the_folder(copy: Path, tmp_path: Path) -> None:
    shutil.move(copy / "weights.bin", tmp_path / "weights.bin")
    _link(copy / "weights.bin", tmp_path / "weights.bin")
    with pytest.raises(SpecError, match=r"weights\.bin is not a regular file inside"):
        open_bundle(copy)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_does_not_hang(copy: Path) -> None:
    (copy / "weights.bin").unlink()
    os.mkfifo(copy / "weights.bin")
    with pytest.raises(SpecError, match=r"weights\.bin is not a regular file"):
        open_bundle(copy)


def test_files_that_nobody_vouches_for(copy: Path) -> None:
    (copy / ".DS_Store").write_bytes(b"")
    (copy / "Thumbs.db").write_bytes(b"")
    open_bundle(copy)
    (copy / "other.bin").write_bytes(b"")
    with pytest.raises(SpecError, match=r"'other\.bin' is not listed in bundle\.json: remove it"):
        open_bundle(copy)


def test_what_is_not_a_bundle(tmp_path: Path) -> None:
    with pytest.raises(BadUsage, match="does not exist; make one: spec-export"):
        open_bundle(tmp_path / "none")
    with pytest.raises(BadUsage, match=r"holds no bundle\.json"):
        open_bundle(tmp_path)


def test_a_huge_manifest_is_not_read(copy: Path) -> None:
    with (copy / "bundle.json").open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(SpecError, match="more than 1048576"):
        open_bundle(copy)


def test_hashing_reads_large_pieces_into_one_buffer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(3 * folders.CHUNK + 1)
    pieces: list[int] = []
    memory: set[int] = set()

    class Digest:
        def update(self, piece: memoryview) -> None:
            pieces.append(len(piece))
            memory.add(id(piece.obj))

        def hexdigest(self) -> str:
            return ""

    want = hashlib.sha256(path.read_bytes()).hexdigest()
    assert sha256(path) == want
    monkeypatch.setattr(folders.hashlib, "sha256", Digest)
    sha256(path)
    assert pieces == [folders.CHUNK] * 3 + [1] and len(memory) == 1


def _link(link: Path, target: Path) -> None:
    try:
        link.symlink_to(target, target_is_directory=target.is_dir())
    except OSError:
        pytest.skip("this account may not make symbolic links (Windows without developer mode), as was just tried")
