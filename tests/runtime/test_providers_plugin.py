"""ONNX Runtime's other providers: how they are found, chosen and refused. Devices are fakes, but for the CPU's."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest

from spec_edge.models.plugins import known
from spec_edge.runtime import known_bad
from spec_edge.runtime.bundle import open_bundle
from spec_edge.runtime.providers import _plugin, _windows_ml, openvino_ep, qnn
from spec_edge.runtime.providers._onnxruntime import TELLS_PLACEMENT
from spec_edge.runtime.providers._plugin import Plugin, compile_plugin, find_plugin, open_plugin, provider_of
from spec_edge.runtime.providers.checks import reason
from spec_edge.runtime.providers.opening import job, on_cpu, opener, run_once, usable
from spec_edge.runtime.providers.provider import PACKAGE, Job, ProviderFailed, ProviderMissing, provider

EP = "FakeExecutionProvider"
FAKE = Plugin("fake", EP, "npu", False, "pip install fake", package="fake-ep")
ON_CPU = Plugin("fake", "CPUExecutionProvider", "cpu", True, "")
"""ONNX Runtime's own CPU, taken for a plug-in."""


def device(kind: str = "NPU", **metadata: str) -> Any:
    hardware = SimpleNamespace(type=f"OrtHardwareDeviceType.{kind}", vendor="Maker", metadata=metadata)
    return SimpleNamespace(ep_name=EP, device=hardware, ep_metadata={"version": "7"})


class Runtime:
    """What _plugin.py asks of ONNX Runtime. A library that is registered brings its devices."""

    __version__ = "1.32.0"

    def __init__(self, *devices: Any, builtin: tuple[str, ...] = (), broken: bool = False) -> None:
        self.devices, self.builtin, self.broken = devices, builtin, broken
        self.registered: list[tuple[str, str]] = []

    def get_ep_devices(self) -> list[Any]:
        return list(self.devices) if self.registered else []

    def get_available_providers(self) -> list[str]:
        return list(self.builtin)

    def register_execution_provider_library(self, name: str, path: str) -> None:
        if self.broken:
            raise RuntimeError("wrong ELF class\nmore")
        self.registered.append((name, path))


@pytest.fixture
def packaged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake provider's own Python package."""
    monkeypatch.setitem(sys.modules, "fake_ep", SimpleNamespace(get_library_path=lambda: "/there/fake.so"))


def missing(plugin: Plugin, options: Mapping[str, str] | None = None) -> str:
    with pytest.raises(ProviderMissing) as caught:
        find_plugin(plugin, options or {})
    assert "\n" not in caught.value.message
    return str(caught.value.message)


@pytest.mark.usefixtures("packaged")
def test_a_library_is_registered_once_and_its_device_found(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime(device("CPU"), device(Description="The NPU", driver_version="32.0"))
    monkeypatch.setattr(_plugin, "ort", runtime)
    for _ in range(2):
        found = find_plugin(FAKE, {})
        assert (found.device, found.driver) == ("The NPU", "32.0")
        assert found.versions == {"onnxruntime": "1.32.0", EP: "7"}
    assert runtime.registered == [(EP, "/there/fake.so")]


def test_what_is_not_installed_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_plugin, "ort", Runtime())
    assert missing(FAKE) == "fake is not installed; pip install fake"
    assert missing(dataclasses.replace(FAKE, builtin=True)) == "fake is not installed; pip install fake"


@pytest.mark.usefixtures("packaged")
def test_a_machine_without_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_plugin, "ort", Runtime(device("CPU"), device("GPU")))
    assert missing(FAKE) == "fake is installed, but finds no NPU on this machine"


@pytest.mark.usefixtures("packaged")
def test_a_library_that_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_plugin, "ort", Runtime(broken=True))
    assert missing(FAKE) == "fake cannot be loaded from fake.so: wrong ELF class more"


def test_a_damaged_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> str:
        raise FileNotFoundError("no library")

    monkeypatch.setitem(sys.modules, "fake_ep", SimpleNamespace(get_library_path=gone))
    monkeypatch.setattr(_plugin, "ort", Runtime())
    assert missing(FAKE) == "fake-ep is damaged (no library); install it again"


def test_a_part_of_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_plugin, "ort", Runtime(builtin=(EP,)))
    assert find_plugin(dataclasses.replace(FAKE, builtin=True), {}).device == EP
    assert missing(FAKE).startswith("fake is not installed")


def test_a_driver_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_plugin, "ort", Runtime(builtin=(EP,)))
    monkeypatch.setattr(_plugin.platform, "system", lambda: "Linux")
    plugin = dataclasses.replace(FAKE, builtin=True, libraries={"Linux": "libno-such-driver.so.1"})
    assert missing(plugin) == "fake needs the driver's library libno-such-driver.so.1, which does not load here"
    assert find_plugin(dataclasses.replace(plugin, libraries={"Windows": "no.dll"}), {})


@pytest.mark.parametrize(
    ("library", "says"), [("", "Windows ML knows FakeExecutionProvider but has not installed it"), ("C:\\fake.dll", "")]
)
def test_windows_ml_brings_the_library(monkeypatch: pytest.MonkeyPatch, library: str, says: str) -> None:
    runtime = Runtime(device())
    monkeypatch.setattr(_plugin, "ort", runtime)
    monkeypatch.setattr(_plugin.platform, "system", lambda: "Windows")
    monkeypatch.setattr(_plugin, "catalogue", lambda: (_windows_ml.Entry(EP, "1.8", library),))
    if says:
        assert missing(FAKE).startswith(says)
    else:
        assert find_plugin(FAKE, {}).device == "Maker NPU" and runtime.registered == [(EP, library)]


def test_the_catalogue_is_read_in_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_windows_ml.importlib.util, "find_spec", lambda _: object())
    says = [sys.executable, "-c", 'import os; print(\'noise\'); print(\'[["E", "1", "p"]]\', flush=True); os._exit(3)']
    assert _windows_ml.catalogue(says) == (_windows_ml.Entry("E", "1", "p"),)
    for code in ("", "print('no json')", "print('[[1]]')", "import os; os.abort()"):
        assert _windows_ml.catalogue([sys.executable, "-c", code]) == ()
    monkeypatch.setattr(_windows_ml, "TIMEOUT_S", 0.5)
    assert _windows_ml.catalogue([sys.executable, "-c", "import time; time.sleep(60)"]) == ()
    assert _windows_ml.catalogue(["no-such-program"]) == ()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "frozen", True, raising=False)
        patch.setattr(_windows_ml.subprocess, "run", pytest.fail)
        assert _windows_ml.catalogue() == ()
    monkeypatch.setattr(_windows_ml.importlib.util, "find_spec", lambda _: None)
    assert _windows_ml.catalogue(says) == ()


def test_nothing_is_downloaded() -> None:
    """Only what Windows has installed is made ready."""

    class Listed:
        def __init__(self, state: str) -> None:
            self.name, self.version, self.library_path = state, "1", f"{state}.dll"
            self.ready_state, self.made_ready = SimpleNamespace(name=state), False

        def ensure_ready(self) -> None:
            self.made_ready = True

    listed = [Listed(state) for state in ("Ready", "NotReady", "NotPresent")]
    package = SimpleNamespace(EpCatalog=lambda: SimpleNamespace(find_all_providers=lambda: listed))
    assert json.loads(json.dumps(_windows_ml.main(package))) == [
        ["Ready", "1", "Ready.dll"],
        ["NotReady", "1", "NotReady.dll"],
        ["NotPresent", "1", ""],
    ]
    assert [entry.made_ready for entry in listed] == [True, True, False]


@pytest.mark.parametrize(
    ("plugin", "runtime", "works"),
    [("1.8.0", "1.30.0", True), ("1.8.0", "1.31.1", False), ("1.8.0", "1.32.0", False), ("1.8.1", "1.32.0", True)],
)
def test_known_bad_pairs(monkeypatch: pytest.MonkeyPatch, plugin: str, runtime: str, works: bool) -> None:
    versions = {"onnxruntime": runtime, known_bad.OPENVINO_EP: plugin}
    reason = known_bad.openvino_ep(versions)
    assert bool(reason) != works and (works or "pip install 'onnxruntime-ep-openvino>=1.8.1'" in reason)
    monkeypatch.setattr(_plugin, "_versions", lambda _: versions)
    if not works:
        with pytest.raises(ProviderMissing, match=r"1\.8\.0 does not work with ONNX Runtime"):
            openvino_ep.PROVIDER.find({})
    assert known_bad.openvino_ep({"onnxruntime": "1.32.0"}) == ""


def test_which_device() -> None:
    npu, gpu, cpu = (device(kind) for kind in ("NPU", "GPU", "CPU"))
    assert [qnn.fits(d, "npu", {}) for d in (npu, gpu, cpu)] == [True, False, False]
    assert qnn.fits(cpu, "npu", {qnn.PREPARE: "1"})
    assert qnn.shown({qnn.PREPARE: "1", "htp_arch": "73"}) == "HTP v73, its compiler only" and qnn.shown({}) == ""
    assert [openvino_ep.fits(d, "npu", {"device_type": "GPU"}) for d in (npu, gpu, cpu)] == [False, True, False]
    assert qnn.defaults().keys() in ({"backend_type"}, {"backend_path"})


def verify_job(folder: Path, options: Mapping[str, str] | None = None) -> Job:
    bundle = open_bundle(folder)
    return job(bundle, bundle.graphs("target", "verify")[0], 1, options or {})


@pytest.mark.skipif(not TELLS_PLACEMENT, reason="this ONNX Runtime, older than 1.24, does not tell where nodes run")
def test_opening_for_a_device(tiny: Path) -> None:
    """Through add_provider_for_devices, with the same results as by name."""
    bundle = open_bundle(tiny)
    graph = bundle.graphs("target", "verify")[0]
    opened = opener(bundle, provider_of(ON_CPU), 1)(graph)
    assert opened.placement.keys() == {"fake"} and opened.placement["fake"] > 10
    assert len(getattr(opened, "names")["fake"]) == opened.placement["fake"]  # noqa: B009
    feeds = {t.name: np.ones(t.shape, t.dtype) for t in graph.inputs}
    results = [run_once(made, graph, feeds) for made in (opened, on_cpu(bundle, 1)(graph))]
    for name in results[0]:
        np.testing.assert_array_equal(results[0][name], results[1][name])


def test_session_options_are_told_from_the_providers(tiny: Path) -> None:
    open_plugin(ON_CPU, verify_job(tiny, {"session.intra_op.allow_spinning": "0"})).close()
    with pytest.raises(ProviderFailed, match="fake") as caught:
        open_plugin(dataclasses.replace(ON_CPU, device="npu", fits=lambda *_: True), verify_job(tiny))
    assert "\n" not in caught.value.message, "an NPU's session may not fall back to the CPU"


@pytest.mark.parametrize(
    ("kind", "nodes", "refused"),
    [
        ("npu", {"fake": 40}, False),
        ("npu", {"fake": 39, "cpu": 1}, True),
        ("npu", {"cpu": 40}, True),
        ("gpu", {"fake": 30, "cpu": 10}, False),
        ("gpu", {"cpu": 40}, True),
        ("npu", {}, False),
    ],
)
def test_nodes_that_went_to_the_cpu(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, kind: str, nodes: dict[str, int], refused: bool
) -> None:
    closed: list[bool] = []
    opened = SimpleNamespace(placement=nodes, close=lambda: closed.append(True))
    monkeypatch.setattr(_plugin, "_opened", lambda *_: opened)
    plugin = dataclasses.replace(FAKE, device=kind)
    if not refused:
        assert open_plugin(plugin, verify_job(tiny)) is opened
        return
    with pytest.raises(
        ProviderFailed, match=r"did not take all of verify_1_64\.onnx: \d+ nodes there, \d+ nodes on cpu"
    ):
        open_plugin(plugin, verify_job(tiny))
    assert closed


@pytest.mark.usefixtures("packaged")
def test_open_sizes_never_reach_a_compiler(tiny: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """AMD's was reported to hang on them for ever."""
    monkeypatch.setattr(_plugin, "open_session", pytest.fail)
    bundle = open_bundle(tiny)
    asked = job(bundle, bundle.graphs("target", "step")[1])
    for call in (lambda: open_plugin(FAKE, asked), lambda: compile_plugin(FAKE, asked, tmp_path / "graph")):
        with pytest.raises(ProviderFailed, match="fake takes fixed sizes only, and wide leaves 'S' open"):
            call()


def test_what_compiles_nothing_leaves_nothing(tiny: Path, tmp_path: Path) -> None:
    """ONNX Runtime's own CPU has no compiled form."""
    with pytest.raises(ProviderFailed, match="compile"):
        compile_plugin(ON_CPU, verify_job(tiny), tmp_path / "graph.onnx")
    assert not list(tmp_path.iterdir())


def test_a_runtimes_own_words_without_its_source() -> None:
    code = "[ONNXRuntimeError] : 1 : FAIL : "
    assert reason(f"{code}/src/a.cc:393 virtual x f(const A&) {code}it is\ntoo big.\n") == "it is too big."
    assert reason("Exception from src/a.cpp:35:\nException from src/b.cpp:7:\nNot Implemented\n\n") == "Not Implemented"
    assert reason("plain") == "plain" and len(reason("x" * 1000)) == 300


def test_every_provider_says_what_to_install() -> None:
    """No provider's file needs its package to be imported, and those that are here can be used."""
    names = known(PACKAGE, "PROVIDER")
    assert {"cpu", "openvino-npu", "qnn", "vitisai", "cuda", "webgpu", "directml"} <= set(names)
    for name in names:
        found = provider(name)
        assert found.name == name and found.install and found.device in ("cpu", "gpu", "npu")
        assert not (found.fused and not found.symbolic)
    assert "cpu" in [found.name for found in usable()]
    asked = {name: provider(name).keeps for name in names if provider(name).compile is not None}
    assert [name for name, keeps in asked.items() if keeps] == [
        *("openvino-ep", "openvino-gpu", "openvino-npu", "qnn", "tensorrt-rtx", "vitisai")
    ]
    assert [name for name, keeps in asked.items() if not keeps] == ["cuda", "directml", "migraphx", "webgpu"]
    assert onnxruntime.__version__
