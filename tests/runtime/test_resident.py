"""The cache in a device's memory: what crosses, what stays, what is recorded. The CPU stands in for the device."""

from __future__ import annotations

import dataclasses
import gc
import shutil
import weakref
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from spec_edge.models.contract import GraphSpec, SpecError
from spec_edge.runtime.api import load
from spec_edge.runtime.bundle import Bundle, open_bundle
from spec_edge.runtime.draft import EMPTY, Draft
from spec_edge.runtime.providers import cuda
from spec_edge.runtime.providers._onnxruntime import NOT_RECORDED, Memory, OrtOpened, OrtPlaced, session_options
from spec_edge.runtime.providers._plugin import RECORDS, Plugin, find_plugin
from spec_edge.runtime.providers.opening import job, on_cpu, run_once
from spec_edge.runtime.providers.provider import ProviderFailed, provider
from spec_edge.runtime.sessions import choose, resident
from spec_edge.runtime.sessions.portable import PortableSession
from spec_edge.runtime.sessions.resident import ResidentSession

ON_CPU = Plugin("fake", "CPUExecutionProvider", "cpu", True, "")
TREE = Draft((5, 6, 7, 8, 9), (-1, -1, 0, 1, 3), (True,) * 5)


@pytest.fixture
def bundle(tiny_resident: Path) -> Bundle:
    return open_bundle(tiny_resident)


def prompt(count: int) -> list[int]:
    return [int(t) for t in np.random.default_rng(count).integers(0, 200, count)]


def test_keeping_writes_the_named_rows_in_place(bundle: Bundle) -> None:
    """Bound to itself, the past changes at those slots and nowhere else; without that, a copy comes out."""
    graph = bundle.graphs("cache", "keep")[0]
    rng, sizes = np.random.default_rng(0), {"P": 32, "S": 6, "R": 2}
    shapes = {t.name: tuple(sizes.get(str(d), d) for d in t.shape) for t in graph.inputs}
    feeds: dict[str, Any] = {t.name: rng.normal(size=shapes[t.name]).astype(t.dtype) for t in graph.inputs}
    heads = shapes["past_key.0"][1]
    feeds["rows"] = np.array([1, 4])
    feeds["at"] = np.array([[[(0, h, slot) for slot in (7, 8)] for h in range(heads)]])
    opened = on_cpu(bundle, 1)(graph)
    copied = run_once(opened, graph, feeds)
    before = {name: array.copy() for name, array in feeds.items()}
    opened.bind(feeds, {name: feeds[name.replace("kept", "past")] for name in copied})()
    for name, kept in copied.items():
        past, new = (before[name.replace("kept", side)] for side in ("past", "new"))
        expected = past.copy()
        expected[:, :, 7:9] = new[:, :, [1, 4]]
        np.testing.assert_array_equal(kept, expected)
        np.testing.assert_array_equal(feeds[name.replace("kept", "past")], expected)


def test_keys_and_values_never_cross(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step sends ids, positions and masks, and takes the logits and what is wanted."""
    session = ResidentSession(bundle, on_cpu(bundle, 1))
    session.prefill(prompt(20))
    session.verify(3, TREE)
    session.commit((0, 2, 4))
    crossed: list[tuple[int, ...]] = []
    for way in ("write", "read"):
        inner: Any = getattr(OrtPlaced, way)

        def spy(placed: Any, *args: Any, inner: Any = inner) -> Any:
            crossed.append(tuple(placed.value.shape()))
            return inner(placed, *args)

        monkeypatch.setattr(OrtPlaced, way, spy)
    model = bundle.manifest.model
    session.verify(4, TREE)
    session.commit((0, 1))
    size, slots = 6, 256
    sent = [(1, size), (size,), *[(1, 1, size, model.head_dim)] * 2, (1, 1, size, slots), (1, 1, size, size)]
    assert sorted(crossed) == sorted([*sent, (1, size, model.vocab_size)])


def test_the_cache_grows_on_the_device(bundle: Bundle) -> None:
    sessions = [kind(bundle, on_cpu(bundle, 1)) for kind in (ResidentSession, PortableSession)]
    ids = prompt(250)
    for session in sessions:
        session.prefill(ids)
    for token in range(8):
        both = [session.verify(token, Draft.chain((1, 2))).logits for session in sessions]
        np.testing.assert_allclose(*both, atol=1e-5)
        for session in sessions:
            session.commit((0,))
    resident: Any = sessions[0]
    assert resident._past.slots == 512 and resident.length == 258
    with pytest.raises(SpecError, match="do not fit into the context of 1024"):
        resident.prefill(prompt(767))


def test_prompts_of_any_length_leave_one_set_of_buffers(bundle: Bundle) -> None:
    session: Any = ResidentSession(bundle, on_cpu(bundle, 1))
    for count in (5, 9, 5, 40):
        session.truncate(0)
        session.prefill(prompt(count))
    assert session._prefill[0][0] == 40 and not session._runs
    session.verify(1, EMPTY)
    session.verify(1, TREE)
    assert [key[:2] for key in session._runs] == [(1, 1), (6, 6)]


def test_bad_calls(bundle: Bundle) -> None:
    session = ResidentSession(bundle, on_cpu(bundle, 1))
    session.prefill([1, 2, 3])
    with pytest.raises(SpecError, match="cannot commit rows"):
        session.commit((0,))
    session.verify(1, TREE)
    for rows in ((), (0, 0), (2, 1), (0, 6), (-1,)):
        with pytest.raises(SpecError, match="cannot commit rows"):
            session.commit(rows)
    placed = on_cpu(bundle, 1)(bundle.graphs("cache", "keep")[0]).place((2, 3), "float32")  # type: ignore[attr-defined]
    with pytest.raises(ProviderFailed, match=r"an array \[3, 2\] is no \[2, 3\]"):
        placed.write(np.zeros((3, 2), np.float32))


def test_closing_gives_the_device_back(bundle: Bundle) -> None:
    graphs: list[OrtOpened] = []

    def opener(graph: GraphSpec) -> OrtOpened:
        asked = job(bundle, graph, 1)
        graphs.append(OrtOpened(ort.InferenceSession(str(asked.model), session_options(asked))))
        return graphs[-1]

    session = ResidentSession(bundle, opener)
    session.prefill([1, 2, 3])
    session.verify(1, TREE)
    held = [weakref.ref(graph._session) for graph in graphs]
    session.close()
    gc.collect()
    assert [ref() for ref in held] == [None, None]
    for run in (lambda: session.prefill([1, 2, 3]), lambda: session.verify(1, TREE)):
        with pytest.raises(SpecError, match="closed"):
            run()


def test_only_the_last_shapes_keep_buffers(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resident, "KEPT", 3)
    session: Any = ResidentSession(bundle, on_cpu(bundle, 1))
    session.prefill(prompt(5))
    for width in (1, 2, 3, 1, 4):
        session.verify(1, Draft.chain(tuple(range(width - 1))) if width > 1 else EMPTY)
    assert [key[0] for key in session._runs] == [3, 1, 4]


def test_a_provider_without_such_memory_is_refused(bundle: Bundle) -> None:
    closed: list[bool] = []
    opened: Any = SimpleNamespace(placement={}, bind=None, close=lambda: closed.append(True))
    with pytest.raises(SpecError, match="without access to the device's memory"):
        ResidentSession(bundle, lambda _: opened)
    assert closed == [True]


class Recording:
    """An ONNX Runtime session that tells under which number each run was made."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.numbers = inner, list[str]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def run_with_iobinding(self, binding: Any, options: Any) -> None:
        self.numbers.append(options.get_run_config_entry("gpu_graph_id"))
        self.inner.run_with_iobinding(binding, options)


def test_each_shape_of_a_verify_run_is_recorded_apart(bundle: Bundle) -> None:
    """CUDA replays a run over the addresses it saw: a number stands for one shape and one set of buffers."""
    spies: list[Recording] = []

    def opener(graph: GraphSpec) -> OrtOpened:
        asked = job(bundle, graph, 1)
        spies.append(Recording(ort.InferenceSession(str(asked.model), session_options(asked))))
        return OrtOpened(spies[-1], memory=Memory("cpu", "0", records=True))

    session = ResidentSession(bundle, opener)
    session.prefill(prompt(200))
    for draft in (EMPTY, TREE, EMPTY, TREE):
        session.verify(1, draft)
        session.commit((0,))
    session.prefill(prompt(60))  # the cache moves
    session.verify(1, EMPTY)
    step, keep = spies
    assert step.numbers == [NOT_RECORDED, "1", "2", "1", "2", NOT_RECORDED, "3"]
    assert set(keep.numbers) == {NOT_RECORDED}


def test_cuda_keeps_its_cache_and_records_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cuda.PROVIDER.resident and not cuda.PROVIDER.keeps
    monkeypatch.delenv(cuda.SWITCH, raising=False)
    assert cuda.defaults() == {}
    monkeypatch.setenv(cuda.SWITCH, "1")
    assert cuda.defaults() == {RECORDS: "1"}
    fake = dataclasses.replace(ON_CPU, defaults=cuda.defaults)  # what was tried without it is asked anew
    assert find_plugin(fake, {}).versions[RECORDS] == "1" and RECORDS not in find_plugin(ON_CPU, {}).versions


def test_the_session_is_chosen_by_bundle_and_provider(tiny: Path, bundle: Bundle) -> None:
    kinds = [choose._kind(b, provider(name)) for b, name in ((bundle, "cuda"), (bundle, "webgpu"))]
    assert kinds == [ResidentSession, PortableSession]
    assert choose._kind(open_bundle(tiny), provider("cuda")) is PortableSession
    assert choose.form(bundle, provider("cuda")) == choose.form(bundle, provider("webgpu"))  # the same graph


def _texts(folder: Path) -> Mapping[str, str]:
    with load(folder, threads=1) as llm:
        return {m: llm.generate("aba ab", max_new_tokens=24, method=m).text for m in ("plain", "suffix", "lookahead")}


@pytest.mark.usefixtures("own_cache")
def test_whole_generations(tiny_resident: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through `load`, the text of every method is what the CPU's own session writes."""
    expected = _texts(tiny_resident)
    monkeypatch.setattr(choose, "_kind", lambda _bundle, _on: ResidentSession)
    assert _texts(tiny_resident) == expected


def test_a_graph_of_another_models_cache_is_refused(tiny_resident: Path, tmp_path: Path, remake: Any) -> None:
    shutil.copytree(tiny_resident, tmp_path / "b")
    *others, keep = open_bundle(tmp_path / "b").manifest.graphs
    inputs = tuple(dataclasses.replace(t, shape=(1, 3, *t.shape[2:])) if "." in t.name else t for t in keep.inputs)
    with pytest.raises(SpecError, match=r"model\.kv_heads 2 is not the 3 of graph keep"):
        remake(tmp_path / "b", graphs=(*others, dataclasses.replace(keep, inputs=inputs)))
    with pytest.raises(SpecError, match="whose tensors are not those of a graph that keeps rows"):
        remake(tmp_path / "b", graphs=(*others, dataclasses.replace(keep, outputs=keep.outputs[1:])))
