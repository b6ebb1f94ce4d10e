"""What `-m` may name, and the export on first use."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from spec_edge.models.contract import BadUsage, SpecError
from spec_edge.runtime import cli, resolve
from spec_edge.runtime.resolve import bundle_folder, open_model
from spec_edge.runtime.termination import SaidInterrupt

MAKE = "import sys, pathlib; p = pathlib.Path(sys.argv[-1]); p.mkdir(); (p / 'bundle.json').write_text('{}')"
Exporter = Callable[[str], list[list[str]]]


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Exporter:
    """Runs a script instead of spec-export; the list grows by each command that would have run."""

    def replace(script: str) -> list[list[str]]:
        commands: list[list[str]] = []
        popen = subprocess.Popen

        def start(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
            commands.append(command)
            return popen([sys.executable, "-c", script, command[-1]], **options)

        monkeypatch.setattr(resolve.subprocess, "Popen", start)
        return commands

    return replace


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    path = tmp_path / "My Model.gguf"
    path.write_bytes(b"GGUF")
    return path


def test_a_bundle_is_itself(tiny: Path, tmp_path: Path) -> None:
    assert bundle_folder(str(tiny), tmp_path) == tiny


def test_a_file_is_exported_once(gguf: Path, tmp_path: Path, exporter: Exporter) -> None:
    commands = exporter(MAKE)
    folder = bundle_folder(str(gguf), tmp_path / "c")
    assert folder.name.startswith("my-model-gguf-") and (folder / "bundle.json").is_file()
    assert bundle_folder(str(gguf), tmp_path / "c") == folder
    assert len(commands) == 1 and commands[0][1:5] == ["-m", "spec_edge.export", str(gguf.resolve()), "-o"]
    assert [p.name for p in folder.parent.iterdir()] == [folder.name]
    gguf.write_bytes(b"GGUF2")
    assert bundle_folder(str(gguf), tmp_path / "c") != folder


def test_aliases_hub_ids_and_folders(tmp_path: Path, exporter: Exporter) -> None:
    commands = exporter(MAKE)
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").write_text("{}")
    names = ["smollm2-135m", "org/name", str(tmp_path / "hf")]
    folders = {bundle_folder(name, tmp_path / "c") for name in names}
    assert len(folders) == 3
    assert [c[3] for c in commands] == [*names[:2], str((tmp_path / "hf").resolve())]


@pytest.mark.parametrize(
    "name", ["none.gguf", "smollm", "a/b/c", "../x", "/nowhere/at/all", "-o", "org/name:tag", "", "https://x.y/z"]
)
def test_what_does_not_exist(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exporter: Exporter) -> None:
    monkeypatch.chdir(tmp_path)
    commands = exporter(MAKE)
    with pytest.raises(BadUsage, match=r"does not exist; name a bundle|neither a bundle"):
        bundle_folder(name, tmp_path / "c")
    assert not commands


def test_a_folder_of_something_else(tmp_path: Path) -> None:
    with pytest.raises(BadUsage, match=r"neither a bundle .* nor a model"):
        bundle_folder(str(tmp_path), tmp_path / "c")


@pytest.mark.skipif(not Path("/dev/null").is_char_device(), reason="/dev/null, which the test names, is no device here")
def test_what_is_no_regular_file(tmp_path: Path) -> None:
    with pytest.raises(BadUsage, match="'/dev/null' is neither a file nor a folder"):
        bundle_folder("/dev/null", tmp_path / "c")


def test_without_the_extra(gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve, "NEEDED", ("no_such_package",))
    with pytest.raises(SpecError, match=r'no_such_package is not installed: pip install "spec-edge\[export\]"'):
        bundle_folder(str(gguf), tmp_path / "c")


@pytest.mark.parametrize("code", [1, 2])
def test_a_failed_export(
    gguf: Path, tmp_path: Path, exporter: Exporter, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    exporter(f"import sys; sys.exit({code})")
    with pytest.raises(SpecError, match="failed; the reason is on standard error") as caught:
        bundle_folder(str(gguf), tmp_path / "c")
    assert caught.value.exit_code == code
    caught.value.show()
    assert capsys.readouterr().err == ""  # the child has said it
    assert list((tmp_path / "c").iterdir()) == []


def test_an_interrupted_export_is_said_once(
    gguf: Path, own_cache: Path, exporter: Exporter, capfd: pytest.CaptureFixture[str]
) -> None:
    exporter("import sys; print('interrupted; nothing was left behind', file=sys.stderr); sys.exit(130)")
    result = CliRunner().invoke(cli.main, ["run", "-m", str(gguf), "hello"])
    assert result.exit_code == 130 and result.output == ""
    assert capfd.readouterr().err == "interrupted; nothing was left behind\n"
    with pytest.raises(KeyboardInterrupt):
        bundle_folder(str(gguf), own_cache / "c")
    assert list((own_cache / "c").iterdir()) == []


@pytest.mark.parametrize("hears", [True, False])
def test_ctrl_c_ends_the_child(
    gguf: Path, tmp_path: Path, exporter: Exporter, monkeypatch: pytest.MonkeyPatch, hears: bool
) -> None:
    """One that hears it says so itself; of one that does not nothing stays, and whoever called says it."""
    monkeypatch.setattr(resolve, "CHILD_S", 60.0 if hears else 0.2)
    children: list[subprocess.Popen[bytes]] = []
    popen, wait = subprocess.Popen, subprocess.Popen.wait
    begin = "import os, sys, time, pathlib; p = pathlib.Path(sys.argv[-1]); "
    work = "p.with_name(f'.{p.name}.partial-{os.getpid()}').mkdir(); "
    exporter(begin + ("sys.exit(130)" if hears else work + "time.sleep(60)"))

    def interrupted(child: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        children.append(child)
        if timeout is None and len(children) == 1:
            raise KeyboardInterrupt
        return wait(child, timeout)

    monkeypatch.setattr(popen, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        bundle_folder(str(gguf), tmp_path / "c")
    assert isinstance(caught.value, SaidInterrupt) == hears
    assert children[0].returncode is not None
    assert list((tmp_path / "c").iterdir()) == []


def test_two_exports_at_once(gguf: Path, tmp_path: Path, exporter: Exporter) -> None:
    """While this one ran, another process has published the same bundle: it is the one."""
    exporter(MAKE + "; sys.exit(1)")
    folder = bundle_folder(str(gguf), tmp_path / "c")
    assert [p.name for p in folder.parent.iterdir()] == [folder.name]


def test_the_export_is_told_the_final_folder(gguf: Path, tmp_path: Path, exporter: Exporter) -> None:
    """Its summary and its errors name a folder that the user can find."""
    commands = exporter(MAKE)
    folder = bundle_folder(str(gguf), tmp_path / "c")
    assert commands[0][-2:] == ["-o", str(folder)]


def test_a_damaged_bundle_of_the_cache_is_made_again(
    tiny: Path, gguf: Path, tmp_path: Path, exporter: Exporter, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = exporter(f"import shutil, sys; shutil.copytree({str(tiny)!r}, sys.argv[-1])")
    found = open_model(str(gguf), tmp_path / "c")
    for _ in range(2):
        assert open_model(str(gguf), tmp_path / "c") == found and len(commands) == 1
    (found.folder / "weights.bin").write_bytes(b"1" * 64)
    assert open_model(str(gguf), tmp_path / "c") == found and len(commands) == 2
    note = "note: bundle file weights.bin has changed (its SHA-256 differs); the bundle is made again\n"
    assert capsys.readouterr().err == note
    (found.folder / "weights.bin").write_bytes(b"1" * 64)
    with pytest.raises(SpecError, match="has changed"):  # named by its own path it is the user's
        open_model(str(found.folder), tmp_path / "c")


def test_a_cache_that_cannot_be_written(gguf: Path, tmp_path: Path, exporter: Exporter) -> None:
    exporter(MAKE)
    (tmp_path / "c").write_text("a file")
    with pytest.raises(SpecError, match=r"cannot write the cache folder .* -o FOLDER, then -m FOLDER"):
        bundle_folder(str(gguf), tmp_path / "c")


def test_old_leftovers_go(gguf: Path, tmp_path: Path, exporter: Exporter, monkeypatch: pytest.MonkeyPatch) -> None:
    exporter(MAKE)
    old = tmp_path / "c" / ".x.partial-1"
    old.mkdir(parents=True)
    monkeypatch.setattr(resolve, "STALE_S", -1)
    bundle_folder(str(gguf), tmp_path / "c")
    assert not old.exists()
