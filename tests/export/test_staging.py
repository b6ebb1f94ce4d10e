"""A bundle appears whole or not at all, and nothing is left beside it."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import numpy as np
import pytest

from spec_edge.export.staging import staged
from spec_edge.models.contract import MANIFEST, SpecError
from spec_edge.models.store import WeightStore


class Full:
    """A file on a full disk."""

    def write(self, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(len(data)))

    def close(self) -> None: ...


def _bundle(folder: Path, text: str = "old") -> Path:
    folder.mkdir()
    (folder / MANIFEST).write_text(text, "utf-8")
    return folder


def test_published_on_success_only(tmp_path: Path) -> None:
    output = tmp_path / "new" / "bundle"
    with staged(output, replace=False) as work:
        (work / "file").write_text("x", "utf-8")
        assert not output.exists()
    assert (output / "file").read_text("utf-8") == "x"
    assert [p.name for p in output.parent.iterdir()] == ["bundle"]


@pytest.mark.parametrize("error", [SpecError("no"), KeyboardInterrupt(), RuntimeError("bug")])
def test_nothing_is_left_behind(tmp_path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)), staged(tmp_path / "bundle", replace=False) as work:
        (work / "file").write_text("x", "utf-8")
        raise error
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"No space left.*free some space") as caught, staged(tmp_path / "b", False):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert "\n" not in caught.value.message
    assert list(tmp_path.iterdir()) == []


def test_a_bundle_is_replaced_only_when_asked(tmp_path: Path) -> None:
    output = _bundle(tmp_path / "bundle")
    with pytest.raises(SpecError, match="--force"), staged(output, replace=False):
        raise AssertionError("must not start")
    with staged(output, replace=True) as work:
        (work / MANIFEST).write_text("new", "utf-8")
    assert (output / MANIFEST).read_text("utf-8") == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["bundle"]


def test_an_old_bundle_survives_a_failed_export(tmp_path: Path) -> None:
    output = _bundle(tmp_path / "bundle")
    with pytest.raises(KeyboardInterrupt), staged(output, replace=True):
        raise KeyboardInterrupt
    assert (output / MANIFEST).read_text("utf-8") == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["bundle"]


def test_a_bundle_that_came_meanwhile_is_kept(tmp_path: Path) -> None:
    """Two exports into one folder: the second to end is dropped, as it would have been had it begun later."""
    output = tmp_path / "bundle"
    with pytest.raises(SpecError, match="already holds a bundle; add --force"), staged(output, replace=False) as work:
        (work / MANIFEST).write_text("second", "utf-8")
        _bundle(output, "first")
    assert (output / MANIFEST).read_text("utf-8") == "first"
    assert [p.name for p in tmp_path.iterdir()] == ["bundle"]


def test_a_full_disk_names_the_users_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights are written into a hidden folder, of which the user knows nothing."""
    output = tmp_path / "bundle"
    with pytest.raises(SpecError) as caught, staged(output, replace=False) as work, WeightStore(work / "w") as store:
        store._file.close()
        monkeypatch.setattr(store, "_file", Full())
        store.add("a", np.zeros(3, np.float32))
    assert caught.value.message == f"cannot write {output}: {os.strerror(errno.ENOSPC)}; free some space"


def test_other_peoples_files_are_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"meow")
    (tmp_path / "plain").write_text("x", "utf-8")
    for name, message, code in (("photos", "holds other files", 1), ("plain", "is a file", 2)):
        with pytest.raises(SpecError, match=message) as caught, staged(tmp_path / name, replace=True):
            raise AssertionError("must not start")
        assert caught.value.exit_code == code
    assert (tmp_path / "photos" / "cat.jpg").read_bytes() == b"meow"


def test_an_unwritable_place_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", "utf-8")
    with (
        pytest.raises(SpecError, match=r"cannot write .*choose another folder"),
        staged(tmp_path / "file" / "b", False),
    ):
        raise AssertionError("must not start")


def test_leftovers_of_killed_exports_are_swept(tmp_path: Path) -> None:
    stale, fresh = tmp_path / ".bundle.partial-1", tmp_path / ".bundle.partial-2"
    for folder in (stale, fresh):
        folder.mkdir()
    os.utime(stale, (0, time.time() - 7 * 3600))
    with staged(tmp_path / "bundle", replace=False):
        pass
    assert {p.name for p in tmp_path.iterdir()} == {"bundle", ".bundle.partial-2"}
