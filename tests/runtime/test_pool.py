"""The pool's file: what is kept, for how long, who may read it, what happens to files that are none."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from spec_edge.models.contract import BadUsage
from spec_edge.runtime import pool as module
from spec_edge.runtime.pool import MAGIC, Pool, default_path

DAY = 86400.0


class Clock:
    now = 1e9

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "pool.json"


def test_nothing_is_written_before_save(path: Path) -> None:
    pool = Pool(path, "t")
    pool.add([1, 2, 3])
    assert pool.texts == ((1, 2, 3),)
    assert not path.parent.exists()
    assert pool.save()
    assert Pool(path, "t").texts == ((1, 2, 3),)
    assert [p.name for p in path.parent.iterdir()] == ["pool.json"]


@pytest.mark.usefixtures("keeps_modes")
def test_only_its_owner_may_read_it(path: Path) -> None:
    pool = Pool(path, "t")
    pool.add([1])
    old = os.umask(0)
    try:
        assert pool.save()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        path.chmod(0o644)
        assert pool.save()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    finally:
        os.umask(old)


def test_cap_drops_the_oldest(path: Path) -> None:
    pool = Pool(path, "t", tokens=5)
    for text in ([1, 2], [3, 4], [5, 6]):
        pool.add(text)
    assert pool.texts == ((2,), (3, 4), (5, 6))
    pool.save()
    assert Pool(path, "t", tokens=5).texts == ((2,), (3, 4), (5, 6))
    assert Pool(path, "t", tokens=2).texts == ((5, 6),)
    pool.add(range(9))
    assert pool.texts == ((4, 5, 6, 7, 8),)
    assert pool.save()
    assert Pool(path, "t").texts == ((4, 5, 6, 7, 8),)


def test_expiry(path: Path) -> None:
    clock = Clock()
    pool = Pool(path, "t", days=2, clock=clock)
    pool.add([1])
    clock.now += 1.5 * DAY
    pool.add([2])
    pool.save()
    clock.now += DAY
    assert Pool(path, "t", days=2, clock=clock).texts == ((2,),)
    assert Pool(path, "t", days=2, clock=clock).save()
    assert json.loads(path.read_bytes())["texts"] == [[1e9 + 1.5 * DAY, [2]]]


def test_erase(path: Path) -> None:
    pool = Pool(path, "t")
    pool.erase()
    pool.add([1, 2])
    pool.save()
    assert pool.automaton.tokens == 3
    pool.erase()
    assert pool.texts == ()
    assert pool.automaton.tokens == 0
    assert not path.exists()
    assert pool.save()
    assert Pool(path, "t").texts == ()


@pytest.mark.parametrize(
    "data",
    [
        b"my diary",
        b"{}",
        MAGIC,
        MAGIC + b' "tokenizer": "t"}',
        MAGIC + b' "tokenizer": "other", "texts": []}',
        MAGIC + b' "tokenizer": "t", "texts": [[1.0, [1, -2]]]}',
        MAGIC + b' "tokenizer": "t", "texts": [[1.0, [1, true]]]}',
        MAGIC + b' "tokenizer": "t", "texts": [[NaN, [1]]]}',
        MAGIC + b' "tokenizer": "t", "texts": [[1.0]]}',
        MAGIC + b' "tokenizer": "t", "texts": [[1.0, 5]]}',
        MAGIC + b' "tokenizer": "t", "texts": ' + b"[" * 100_000,
        MAGIC + b' "tokenizer": "\xff"}',
    ],
)
def test_a_damaged_or_foreign_file_is_ignored_and_kept(path: Path, data: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(data)
    pool = Pool(path, "t")
    assert pool.texts == ()
    assert pool.note is not None
    assert "\n" not in pool.note
    assert str(path) in pool.note
    pool.add([1])
    assert not pool.save()
    assert path.read_bytes() == data


def test_erase_leaves_what_is_no_pool(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"my diary")
    with pytest.raises(BadUsage, match="not a pool"):
        Pool(path, "t").erase()
    assert path.read_bytes() == b"my diary"
    path.write_bytes(MAGIC + b" cut off")
    pool = Pool(path, "t")
    pool.erase()
    pool.add([1])
    assert pool.save()


def test_too_large_a_file_is_not_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool(path, "t")
    pool.add(range(100))
    pool.save()
    monkeypatch.setattr(module, "LIMIT", 50)
    assert "too large" in (Pool(path, "t").note or "")


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    pool = Pool(tmp_path / "file" / "pool.json", "t")
    pool.add([1])
    assert not pool.save()


WRITER = """
import sys
from pathlib import Path
from spec_edge.runtime.pool import Pool
for i in range(15):
    pool = Pool(Path(sys.argv[1]), "t")
    assert pool.note is None, pool.note
    pool.add([int(sys.argv[2]), i])
    print(pool.save())
"""


def test_concurrent_writers_do_not_corrupt(path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(path)]
    writers = [subprocess.Popen([*command, str(n)], stdout=subprocess.PIPE, text=True) for n in range(3)]
    out = [w.communicate()[0] for w in writers]
    assert [w.returncode for w in writers] == [0, 0, 0]
    if os.name == "posix":  # elsewhere a file that is being read cannot be replaced, and save says so
        assert set("".join(out).split()) == {"True"}
    pool = Pool(path, "t")
    assert pool.note is None
    assert len(pool.texts) >= 15
    assert set(pool.texts) <= {(n, i) for n in range(3) for i in range(15)}
    assert [p.name for p in path.parent.iterdir()] == ["pool.json"]


def test_searches_follow_what_is_added(path: Path) -> None:
    pool = Pool(path, "t", tokens=6)
    pool.add([1, 2, 3])
    assert pool.ngrams(3, 4).find(1) == [(2, 3)]
    assert pool.automaton.tokens == 4
    pool.add([1, 5, 6])
    assert pool.ngrams(3, 4).find(1) == [(5, 6), (2, 3)]
    assert pool.automaton.tokens == 8
    pool.add([7, 8, 9])  # the first text leaves, and the searches with it
    assert pool.ngrams(3, 4).find(1) == [(5, 6)]
    assert pool.automaton.tokens == 8
    pool.add([])
    assert len(pool.texts) == 2


def test_default_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("XDG_DATA_HOME", "LOCALAPPDATA", "HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    found = default_path("my-editor", "0123456789abcdef" * 4)
    assert found.name == "my-editor-0123456789abcdef.json"
    for bad in ("", "../up", "a b", "x" * 65):
        with pytest.raises(BadUsage, match="name"):
            default_path(bad, "0" * 64)
    for tokens, days in ((0, 1.0), (1, 0.0), (1, float("nan"))):
        with pytest.raises(BadUsage):
            Pool(tmp_path / "p", "t", tokens, days)
