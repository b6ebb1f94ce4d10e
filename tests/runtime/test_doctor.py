"""What a machine has and lacks; a provider that crashes or hangs when it is asked is a line."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from spec_edge.runtime import asking, cli, compiled_store, doctor, doctor_text, hardware, remembered
from spec_edge.runtime.asking import Provider, ask_first
from spec_edge.runtime.bundle import open_bundle
from spec_edge.runtime.compiled_store import Entry, Made
from spec_edge.runtime.doctor import examine, runs
from spec_edge.runtime.doctor_child import MARK
from spec_edge.runtime.known_bad import known_bad
from spec_edge.runtime.providers.provider import ProviderMissing
from spec_edge.targets.target import target

CHILD = f"""
import json, os, sys, time
names = sys.argv[1:] or ["cpu", "crashing", "fine", "hanging", "last"]
def tell(**values):
    print("noise of a driver", flush=True)
    sys.stdout.write("\\n{MARK}" + json.dumps(values) + "\\n")
    sys.stdout.flush()
tell(names=names)
for name in names:
    tell(name=name, state="begun")
    if name == "crashing":
        os.abort()
    if name == "hanging":
        time.sleep(60)
    tell(name=name, state="ready", device="cpu", found="a device", driver="7", versions={{"p": "1"}})
"""


@pytest.fixture
def child(tmp_path: Path) -> list[str]:
    (tmp_path / "child.py").write_text(CHILD, encoding="utf-8")
    return [sys.executable, str(tmp_path / "child.py")]


@pytest.mark.filterwarnings("default")
def test_a_provider_that_crashes_or_hangs_is_a_line(child: list[str]) -> None:
    found = asking.asked(child, 3.0)
    assert {name: one.state for name, one in found.items()} == {
        "cpu": "ready",
        "crashing": "silent",
        "fine": "ready",
        "hanging": "silent",
        "last": "ready",
    }
    assert "crashed (" in found["crashing"].reason and "when it was asked" in found["crashing"].reason
    assert found["hanging"].reason == "it did not answer within 3 s when it was asked"
    assert found["last"] == Provider("last", "ready", "cpu", "a device", "7", {"p": "1"})


def test_no_child_at_all(tmp_path: Path) -> None:
    assert asking.asked([str(tmp_path / "nothing")], 3.0) == {}
    assert asking.asked([sys.executable, "-c", "raise SystemExit(3)"], 20.0) == {}
    names = f"print('{MARK}' + '{{\"names\": [\"a\"]}}')"
    assert asking.asked([sys.executable, "-c", names], 20.0) == {}


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("name", "said"), [("crashing", "it crashed ("), ("hanging", "it did not answer within 3 s")])
def test_a_driver_that_kills_is_asked_once(child: list[str], tmp_path: Path, name: str, said: str) -> None:
    """Before it is loaded into the program; the answer is kept."""
    for command in (child, [str(tmp_path / "nothing")]):
        with pytest.raises(ProviderMissing, match=r"'spec-edge doctor --recompile' makes it ask again") as error:
            ask_first(name, command, tmp_path / "asked", 3.0)
        assert error.value.message.startswith(said)
    ask_first("fine", child, tmp_path / "asked", 20.0)
    (only,) = (p for p in (tmp_path / "asked").iterdir() if '"silent": ""' in p.read_text())
    only.unlink()
    ask_first("fine", child, tmp_path / "asked", 20.0)
    assert only.exists()


def test_a_frozen_app_is_not_started_as_if_it_were_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr(asking, "asked", lambda *_: pytest.fail("asked"))
    ask_first("openvino-npu", folder=tmp_path)


def test_a_target_runs_on_the_first_that_is_ready() -> None:
    profile = target("lunar-lake")
    chain = tuple(p.name for p in profile.providers)
    found = {name: Provider(name, "missing", reason="no device") for name in chain}
    assert runs(profile, found).here == ""
    found["cpu"] = Provider("cpu", "ready")
    one = runs(profile, found)
    assert (one.here, one.chain) == ("cpu", chain) and one.before["openvino-npu"] == "no device"
    found["openvino-npu"] = Provider("openvino-npu", "ready")
    assert runs(profile, found).here == "openvino-npu" and not runs(profile, found).before
    del found["openvino-npu"]
    assert runs(profile, found).before["openvino-npu"] == "it is unknown here"
    assert "bfloat16" in runs(target("ryzen-ai-xdna1"), found).refuses


@pytest.fixture(scope="module")
def whole(tiny: Path) -> doctor.Report:
    return examine(tiny)


def test_this_machine(whole: doctor.Report, tiny: Path) -> None:
    states = {one.name: one for one in whole.providers}
    assert states["cpu"].state == "ready" and "onnxruntime" in states["cpu"].versions
    assert not [one for one in whole.providers if one.state in ("silent", "broken")]
    assert all(one.reason and one.install for one in whole.providers if one.state == "missing")
    assert {one.target: one.here for one in whole.targets}["cpu"] in ("native", "cpu")
    assert whole.packages["onnxruntime"] and not whole.warnings
    assert whole.bundle is not None and whole.bundle.runs.here == "cpu"  # fp32 has no native kernels
    assert "native" in whole.bundle.runs.before
    graphs = {graph.name: graph for graph in whole.bundle.graphs}
    assert set(graphs) == {graph.name for graph in open_bundle(tiny).manifest.graphs}
    assert graphs["verify_8_64"].operations > 7 * graphs["verify_1_64"].operations > 0
    assert json.loads(json.dumps(asdict(whole)))["bundle"]["model"] == "tiny"


def test_the_text_names_everything(whole: doctor.Report) -> None:
    bad = replace(
        whole,
        warnings=("a bad pair",),
        hardware=(hardware.Device("AMD XDNA2 NPU", "1022:17f0", "ryzen-ai"),),
        providers=(*whole.providers, Provider("new", "silent", reason="it crashed when it was asked")),
    )
    text = doctor_text.text(bad)
    assert "WARNING          a bad pair" in text and "export for --target ryzen-ai" in text
    assert "no: it crashed when it was asked" in text
    for name in [one.name for one in whole.providers] + [one.target for one in whole.targets]:
        assert name in text
    assert max(map(len, text.splitlines())) <= 120


def test_compiled_graphs_are_added_up(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = open_bundle(tiny).manifest
    sums = facts.graphs[0].file.sha256, facts.weights.sha256
    made = Made("openvino-npu", "NPU", facts.graphs[0].name, *sums, 1.0, None)
    other = replace(made, weights_sha256="0" * 64)
    sign = replace(made, provider="webgpu")  # which has no compiled form
    kept = [Entry(tmp_path, m, size, 0.0) for m, size in ((made, 300), (made, 20), (other, 4000), (sign, 1))]
    monkeypatch.setattr(doctor, "entries", lambda: tuple(kept))
    found = examine(tiny, [sys.executable, "-c", ""])
    assert found.bundle is not None
    assert found.tried_graphs == 1 and "1 more were tried" in doctor_text.text(found)
    assert found.compiled_graphs == 3 and found.compiled_bytes == 4320 and found.bundle.compiled_bytes == 320
    assert found.bundle.graphs[0].compiled == {"openvino-npu": 320}


@pytest.mark.parametrize("as_json", [False, True])
def test_the_command(tiny: Path, whole: doctor.Report, as_json: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "examine", lambda folder: whole if folder == tiny else None)
    result = CliRunner().invoke(cli.main, ["doctor", "-m", str(tiny), *(["--json"] if as_json else [])])
    assert result.exit_code == 0, result.output
    if as_json:
        assert json.loads(result.stdout)["bundle"]["runs"]["chain"] == ["native", "cpu"]
    else:
        assert "providers: what can run a graph here" in result.stdout and "GFLOP" in result.stdout


def test_recompile_forgets_what_was_kept(
    own_cache: Path, whole: doctor.Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "examine", lambda _: whole)
    remembered.remember(remembered.folder_of("smoke"), "a device", {"kl": 0.0})
    compiled_store.store_folder().mkdir(parents=True)
    compiled_store.remember(compiled_store.store_folder(), "f" * 64, "it hung", 5.0)
    assert len(list(own_cache.rglob("*.json"))) == 2
    for count in (1, 0):
        result = CliRunner().invoke(cli.main, ["doctor", "--recompile"])
        assert result.exit_code == 0 and result.stderr.startswith(f"{count} compiled graphs and failures are forgotten")
        assert f"{count} looks at devices are forgotten" in result.stderr
    assert not list(own_cache.rglob("*.json"))


def test_no_bundle_is_one_line(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli.main, ["doctor", "-m", str(tmp_path)])
    assert result.exit_code == 2 and "holds no bundle.json" in result.stderr


@pytest.mark.parametrize(
    ("versions", "said"),
    [
        ({"onnxruntime-ep-openvino": "1.8.0", "onnxruntime": "1.31.1"}, "does not work with ONNX Runtime 1.31.1"),
        ({"onnxruntime-ep-openvino": "1.8.0", "onnxruntime": "1.32.0"}, "onnxruntime-ep-openvino>=1.8.1"),
        ({"onnxruntime": "1.24.1"}, "symbolic link"),
        ({"onnxruntime": "1.32.0", "onnxruntime-gpu": "1.32.0"}, "overwrite each other's files"),
        ({"onnxruntime": "1.24.0", "onnxruntime-qnn": "2.7.0"}, "needs ONNX Runtime 1.24.2 or later"),
        ({"onnxruntime": "1.24.2", "onnxruntime-ep-webgpu": "0.4.0"}, "needs ONNX Runtime 1.24.4 or later"),
    ],
)
def test_known_bad_pairs(versions: dict[str, str], said: str) -> None:
    assert any(said in line for line in known_bad(versions))


@pytest.mark.parametrize(
    "versions",
    [
        {},
        {"onnxruntime": "1.32.0"},
        {"onnxruntime-ep-openvino": "1.8.0", "onnxruntime": "1.30.0"},
        {"onnxruntime-ep-openvino": "1.8.1", "onnxruntime": "1.32.0", "onnxruntime-qnn": "2.7.0"},
        {"onnxruntime": "1.33.0.dev20261101", "onnxruntime-ep-webgpu": "0.4.0"},
    ],
)
def test_pairs_that_nothing_is_known_against(versions: dict[str, str]) -> None:
    assert known_bad(versions) == []


def test_what_is_on_the_bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Linux tells it, in files."""
    monkeypatch.setattr(sys, "platform", "linux")
    listed = [
        ("8086", "643e", "0x120000"),
        ("1022", "17f0", "0x118000"),
        ("10de", "2684", "0x030000"),
        ("10de", "22ba", "0x040300"),  # the same card's sound
        ("8086", "1234", "0x020000"),
    ]
    for i, (vendor, device, kind) in enumerate(listed):
        place = tmp_path / f"0000:00:{i:02}.0"
        try:
            place.mkdir()
        except OSError:
            pytest.skip("this file system takes no colon in a name, as PCI addresses have, which was just tried")
        for name, value in (("vendor", f"0x{vendor}"), ("device", f"0x{device}"), ("class", kind)):
            (place / name).write_text(f"{value}\n")
    (tmp_path / "odd").mkdir()
    found = hardware.devices(tmp_path)
    assert [(one.pci, one.target) for one in found] == [
        ("1022:17f0", "ryzen-ai"),
        ("10de:2684", "cuda"),
        ("8086:643e", "lunar-lake"),
    ]
    assert hardware.devices(tmp_path / "none") == ()


def test_every_device_has_a_target() -> None:
    for name in {entry[1] for entry in (*hardware.NPUS.values(), *hardware.GPUS.values())}:
        assert target(name).name == name


def test_the_doctor_imports_nothing_heavy() -> None:
    """In a process of its own: the report is made without ONNX Runtime or OpenVINO in it."""
    code = (
        "import sys; from spec_edge.runtime.doctor import examine; examine(None, [sys.executable, '-c', '']); "
        "print([m for m in ('onnxruntime', 'openvino') if m in sys.modules])"
    )
    import subprocess

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ})
    assert done.stdout.strip() == "[]", done.stderr
