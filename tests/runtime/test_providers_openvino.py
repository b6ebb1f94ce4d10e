"""OpenVINO's providers: the CPU's, and the NPU plugin's over the CPU, against the reference and against numpy."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spec_edge.models.contract import SpecError
from spec_edge.runtime.bundle import Bundle, open_bundle
from spec_edge.runtime.draft import EMPTY, Draft
from spec_edge.runtime.drafters import lookahead, plain, prompt_lookup
from spec_edge.runtime.drafters.options import DrafterOptions
from spec_edge.runtime.engine import Engine, Limits
from spec_edge.runtime.providers import _openvino, openvino_cpu, openvino_gpu, openvino_npu
from spec_edge.runtime.providers.opening import job, on_cpu, opener, run_once
from spec_edge.runtime.providers.provider import Opener, ProviderFailed, ProviderMissing
from spec_edge.runtime.sessions.choose import open_session
from spec_edge.runtime.sessions.ort import OrtSession
from spec_edge.runtime.sessions.portable import PortableSession
from spec_edge.runtime.sessions.static import StaticSession

Reference = Callable[[list[int]], tuple[np.ndarray, np.ndarray]]
TREE = Draft((5, 6, 7, 8, 9), (-1, -1, 0, 1, 3), (True,) * 5)
OVER_CPU = {"NPU_USE_NPUW": "YES", "NPUW_DEVICES": "CPU"}
EXACT = {**OVER_CPU, "NPUW_F16IC": "NO", "INFERENCE_PRECISION_HINT": "f32"}


def prompt(count: int) -> list[int]:
    return [int(t) for t in np.random.default_rng(count).integers(0, 200, count)]


def on_openvino_cpu(bundle: Bundle, **options: str) -> Opener:
    return opener(bundle, openvino_cpu.PROVIDER, 1, options)


def on_npu(bundle: Bundle, options: Mapping[str, str] = EXACT) -> Opener:
    return opener(bundle, openvino_npu.PROVIDER, None, options)


@pytest.fixture(scope="module", params=["cpu", "npu over cpu"])
def kept(request: pytest.FixtureRequest, tiny: Path) -> Any:
    """One session for the whole file: each of its graphs takes a while to compile."""
    bundle = open_bundle(tiny)
    if request.param == "cpu":
        return PortableSession(bundle, on_openvino_cpu(bundle))
    return StaticSession(bundle, on_npu(bundle))


@pytest.fixture
def session(kept: Any) -> Any:
    kept.truncate(0)
    kept.wants = frozenset()
    return kept


def test_a_session_is_the_network(session: Any, network: Reference) -> None:
    """Prefill in chunks, a tree, a commit of one of its paths, and what follows it."""
    ids = prompt(40)
    session.wants = frozenset({"hidden"})
    output = session.prefill(ids)
    logits, hidden = network(ids)
    np.testing.assert_allclose(output.logits[0], logits[-1], atol=5e-5)
    np.testing.assert_allclose(output.hidden, hidden, atol=5e-5)
    found = session.verify(3, TREE).logits
    for row, path in {0: [], 1: [5], 2: [6], 3: [5, 7], 4: [6, 8], 5: [6, 8, 9]}.items():
        np.testing.assert_allclose(found[row], network([*ids, 3, *path])[0][-1], atol=5e-5)
    session.commit((0, 2, 4, 5))
    want = network([*ids, 3, 6, 8, 9, 11, 1])[0][-2:]
    np.testing.assert_allclose(session.verify(11, Draft.chain((1,))).logits, want, atol=5e-5)
    session.truncate(10)
    np.testing.assert_allclose(session.verify(4, EMPTY).logits[0], network([*ids[:10], 4])[0][-1], atol=5e-5)


def test_a_growing_text(tiny: Path, network: Reference) -> None:
    bundle = open_bundle(tiny)
    session, ids = PortableSession(bundle, on_openvino_cpu(bundle)), prompt(300)
    session.prefill(ids[:250])
    for token in ids[250:]:
        session.verify(token, EMPTY)
        session.commit((0,))
    np.testing.assert_allclose(session.verify(9, EMPTY).logits[0], network([*ids, 9])[0][-1], atol=1e-4)


@pytest.mark.parametrize("method", [plain, prompt_lookup, lookahead])
def test_greedy_text_is_the_references(session: Any, tiny: Path, method: Any) -> None:
    bundle = open_bundle(tiny)
    engines = []
    for runs in (OrtSession(bundle, on_cpu(bundle, 1)), session):
        engines.append(Engine(runs, method.create(DrafterOptions()), None, Limits(60, width=8)))
        list(engines[-1].generate(prompt(20)))
    assert engines[0].ids == engines[1].ids and len(engines[0].ids) > 40


def test_half_precision_over_the_npu_plugin(tiny_half: Path, network: Reference) -> None:
    """fp16 graphs with the plugin's own fp16 between its parts: within 0.05 of logits whose spread is about 1."""
    bundle = open_bundle(tiny_half)
    cut = {**OVER_CPU, "NPUW_ONLINE_PIPELINE": "REG"}
    session, ids = StaticSession(bundle, on_npu(bundle, cut)), prompt(37)
    session.prefill(ids)
    logits = session.verify(3, TREE).logits
    np.testing.assert_allclose(logits[5], network([*ids, 3, 6, 8, 9])[0][-1], atol=0.05)


def test_a_run_reads_and_writes_the_callers_memory(tiny: Path, tiny_half: Path) -> None:
    """In place, whatever the dtype: no copy is made at binding."""
    for folder in (tiny, tiny_half):
        bundle = open_bundle(folder)
        graph = next(g for g in bundle.graphs("target", "verify") if g.width == 4)
        for opens in (on_openvino_cpu(bundle), on_npu(bundle)):
            sides = ({t.name: np.zeros(t.shape, t.dtype) for t in side} for side in (graph.inputs, graph.outputs))
            inputs, outputs = sides
            call = opens(graph).bind(inputs, outputs)
            seen = []
            for token in (3, 4):
                inputs["input_ids"][...] = token
                call()
                seen.append(outputs["logits"].copy())
            assert np.abs(seen[0]).max() > 0 and np.abs(seen[0] - seen[1]).max() > 0.1


def test_where_the_nodes_are(tiny: Path) -> None:
    bundle = open_bundle(tiny)
    wide, narrow = bundle.graphs("target", "step")[1], bundle.graphs("target", "verify")[0]
    placed = on_openvino_cpu(bundle)(wide).placement
    assert placed.keys() == {"openvino-cpu"} and placed["openvino-cpu"] > 10
    assert on_npu(bundle)(narrow).placement.keys() == {"openvino-cpu"}, "NPUW over the CPU is not an NPU"


def test_which_session(tiny: Path) -> None:
    bundle = open_bundle(tiny)
    wide = open_session(bundle, openvino_cpu.PROVIDER, on_openvino_cpu(bundle))
    assert isinstance(wide, PortableSession)
    assert isinstance(open_session(bundle, openvino_npu.PROVIDER, on_npu(bundle)), StaticSession)


def test_a_compiled_graph_is_the_same(tiny: Path, tmp_path: Path) -> None:
    provider, options, bundle = openvino_npu.PROVIDER, EXACT, open_bundle(tiny)
    assert provider.compile is not None
    graph = bundle.graphs("target", "verify")[0]
    asked, file = job(bundle, graph, 1, options), tmp_path / "graph.blob"
    provider.compile(asked, file)
    assert [p.name for p in tmp_path.iterdir()] == ["graph.blob"]
    feeds = {t.name: np.ones(t.shape, t.dtype) for t in graph.inputs}
    both = [run_once(provider.open(j), graph, feeds) for j in (asked, dataclasses.replace(asked, artefact=file))]
    for name in both[0]:
        np.testing.assert_array_equal(both[0][name], both[1][name])
    file.write_bytes(b"no blob")
    with pytest.raises(ProviderFailed, match="OpenVINO cannot read the compiled") as caught:
        provider.open(dataclasses.replace(asked, artefact=file))
    assert "\n" not in caught.value.message


def test_a_graph_without_the_buffers_is_one_line(tiny: Path) -> None:
    bundle = open_bundle(tiny)
    opened = on_openvino_cpu(bundle)(bundle.graphs("target", "step")[1])
    with pytest.raises(ProviderFailed, match=r"refuses the buffers.*export the model again") as caught:
        opened.bind({"past_key.9": np.zeros(1)}, {})
    assert "\n" not in caught.value.message
    opened.close()
    with pytest.raises(ProviderFailed, match="closed"):
        opened.bind({}, {})


def test_a_graph_that_is_not_the_stated_one(tiny: Path) -> None:
    bundle = open_bundle(tiny)
    graph = bundle.graphs("target", "step")[1]
    inputs = (dataclasses.replace(graph.inputs[0], dtype="int64"), *graph.inputs[1:])
    with pytest.raises(SpecError, match=r"input 'input_ids' is int32\[1, 'S'\], but bundle.json says int64"):
        on_openvino_cpu(bundle)(dataclasses.replace(graph, inputs=inputs))


def test_an_unknown_option_and_a_symbolic_graph_are_refused_in_one_line(tiny: Path) -> None:
    bundle = open_bundle(tiny)
    graph = bundle.graphs("target", "step")[1]
    with pytest.raises(ProviderFailed, match=r"OpenVINO cannot open wide\.onnx on openvino-.*NO_SUCH_OPTION") as caught:
        on_openvino_cpu(bundle, NO_SUCH_OPTION="1")(graph)
    assert "\n" not in caught.value.message and "Exception from" not in caught.value.message
    with pytest.raises(ProviderFailed, match="openvino-npu takes fixed sizes only, and wide leaves 'S' open"):
        on_npu(bundle)(graph)


def test_a_wrong_shape_is_refused_in_one_line(tiny: Path) -> None:
    bundle = open_bundle(tiny)
    graph = bundle.graphs("target", "verify")[0]
    with pytest.raises(ProviderFailed, match="refuses the buffers"):
        on_openvino_cpu(bundle)(graph).bind({"input_ids": np.zeros((1, 9), np.int32)}, {})


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (openvino_npu, _openvino):
        monkeypatch.setattr(module, "devices", lambda: ("CPU",))
    with pytest.raises(ProviderMissing, match=r"OpenVINO sees no GPU here, only CPU; .*driver"):
        openvino_gpu.PROVIDER.find({})
    with pytest.raises(ProviderMissing, match=r"OpenVINO sees no NPU here, only CPU; .*driver"):
        openvino_npu.PROVIDER.find({})
    monkeypatch.setattr(openvino_npu.platform, "system", lambda: "Linux")
    monkeypatch.setattr(openvino_npu.ctypes.util, "find_library", lambda _: None)
    monkeypatch.setattr(openvino_npu.Path, "glob", lambda *_: iter(()))
    with pytest.raises(ProviderMissing, match="has no NPU compiler: install intel-driver-compiler-npu"):
        openvino_npu.PROVIDER.find({})
    assert openvino_npu.PROVIDER.find(OVER_CPU).device == "the NPU plugin over CPU"
    monkeypatch.setitem(sys.modules, "openvino", None)
    for provider in (openvino_cpu.PROVIDER, openvino_npu.PROVIDER):
        with pytest.raises(ProviderMissing, match="pip install openvino"):
            provider.find({})
        assert provider.install == "pip install openvino"


def test_nothing_runs_on_the_cpu_unless_it_is_said() -> None:
    """NPUW's own choice is "NPU,CPU"."""
    assert openvino_npu.runs_on({"NPU_USE_NPUW": "YES"}) == ("npu",) == openvino_npu.runs_on({"NPUW_DEVICES": "CPU"})
    assert openvino_npu.runs_on({"NPU_USE_NPUW": "YES", "NPUW_DEVICES": "NPU, CPU"}) == ("npu", "cpu")
    asked: Any = type("Asked", (), {"options": {"NPU_USE_NPUW": "YES"}})
    assert openvino_npu.defaults(asked)["NPUW_DEVICES"] == "NPU"
    assert openvino_npu.defaults(asked)["NPUW_FALLBACK_EXEC"] == "NO"


INTERRUPTED = """
import gc, sys, signal
from pathlib import Path
from spec_edge.runtime.bundle import open_bundle
from spec_edge.runtime.providers import _openvino, openvino_cpu
from spec_edge.runtime.providers.opening import opener
from spec_edge.runtime.sessions.choose import open_session

def opened():
    openvino_cpu.PROVIDER.find({})
    bundle = open_bundle(Path(sys.argv[1]))
    return open_session(bundle, openvino_cpu.PROVIDER, opener(bundle, openvino_cpu.PROVIDER, 1))

first = opened()
second = opened()
first.close()
second.close()
del first, second
gc.collect()
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_after_openvino_is_ctrl_c(tiny: Path) -> None:
    """Its CPU plugin changes the signal stack: two `Core`s that end in the wrong order made this a crash."""
    done = subprocess.run([sys.executable, "-c", INTERRUPTED, str(tiny)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "interrupted"), done.stderr
