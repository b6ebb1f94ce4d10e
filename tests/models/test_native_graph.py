"""Fused graphs on the native kernels: transformers' logits, and the same bits whatever runs beside a row."""

from __future__ import annotations

import weakref
from dataclasses import replace
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from spec_edge.models.contract import FileFact
from spec_edge.models.decoder import build
from spec_edge.models.forms import Form
from spec_edge.models.schemes.scheme import scheme
from spec_edge.models.store import WeightStore
from spec_edge.models.stored import store_model
from spec_edge.runtime.native.library import instructions
from spec_edge.runtime.native.opened import NativeOpened, untranslatable
from spec_edge.runtime.providers.provider import ProviderFailed

pytestmark = pytest.mark.usefixtures("native_kernels")

FORM = Form("step", "fused", None, None, 192)
IDS = [int(x) for x in np.random.default_rng(6).integers(0, 256, 24)]
SLOTS = 64


class Session:
    """As much of an ONNX Runtime session as a runner of the lab uses, over the native kernels."""

    def __init__(self, folder: Path, tiny: Any, name: str = "keep", form: Form = FORM, threads: int = 2) -> None:
        with WeightStore(folder / "weights.bin") as store:
            stored = store_model(tiny.config, tiny.rope, tiny.weights, scheme(name), store, form.context, ("float32",))
        model, signature = build(tiny.config, stored, form)
        self.file = folder / f"{form.name}.onnx"
        self.file.write_bytes(model.SerializeToString())
        self.spec = signature.spec("target", FileFact(self.file.name, 0, ""))
        self.opened = NativeOpened(self.file, folder / "weights.bin", self.spec, threads)

    def get_inputs(self) -> list[Any]:
        return [SimpleNamespace(name=t.name, type="tensor(float)") for t in self.spec.inputs]

    def get_outputs(self) -> list[Any]:
        return [SimpleNamespace(name=t.name) for t in self.spec.outputs]

    def run(self, _names: None, feeds: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
        rows, asked = feeds["input_ids"].shape[1], len(feeds["rows"])
        sizes = {"S": rows, "R": asked, "M": SLOTS}
        feeds = {name: np.ascontiguousarray(array) for name, array in feeds.items()}
        out = {}
        for t in self.spec.outputs:
            past = feeds.get(t.name.replace("present", "past"))
            shape = [sizes[d] if isinstance(d, str) else d for d in t.shape]
            out[t.name] = np.zeros(shape, np.float32) if past is None else past
        self.opened.bind(feeds, out)()
        return list(out.values())


def runner(lab: Any, folder: Path, tiny: Any, slots: int = SLOTS, **options: Any) -> Any:
    return lab.runners["fused"](Session(folder, tiny, **options), tiny, slots)


def rms(x: NDArray[np.float32]) -> float:
    return float(np.sqrt(np.mean(np.square(x, dtype=np.float64))))


@pytest.mark.parametrize("model", ["llama-gqa-tied", "llama-mha-untied", "llama3-rope", "qwen2-bias-untied"])
@pytest.mark.parametrize(("bits", "block", "offset"), [(4, 32, False), (4, 32, True), (8, 32, False)])
def test_logits_are_transformers_but_for_rounded_activations(
    lab: Any, tmp_path: Path, model: str, bits: int, block: int, offset: bool
) -> None:
    tiny = lab.quantised(model, bits, block, offset)
    want, hidden = lab.hf_logits(tiny, IDS)
    made = runner(lab, tmp_path, tiny)
    got = made.run(IDS)
    assert rms(got - want) <= 0.05 * rms(want)
    assert rms(made.out["hidden"][0] - hidden) <= 0.05 * rms(hidden)


def test_matrices_of_several_forms_stand_side_by_side(lab: Any, tmp_path: Path) -> None:
    """v_proj has 8 bits where q and k have 4; gate has no offset where up has one."""
    tiny, other = lab.quantised("qwen2-bias-tied", 4, 32, True), lab.quantised("qwen2-bias-tied", 8, 32, False)
    plain = lab.quantised("qwen2-bias-tied", 4, 32, False)
    for name, source in (("layers.0.self_attn.v_proj", other), ("layers.1.mlp.gate_proj", plain)):
        for part in ("packed", "tensors"):
            getattr(tiny.weights, part)[f"model.{name}.weight"] = getattr(source.weights, part)[f"model.{name}.weight"]
    want, _ = lab.hf_logits(tiny, IDS)
    assert rms(runner(lab, tmp_path, tiny).run(IDS) - want) <= 0.05 * rms(want)


@pytest.mark.parametrize("name", ["int4", "int8"])
def test_schemes_of_our_own_run_too(lab: Any, tmp_path: Path, name: str) -> None:
    tiny = lab.tiny("llama-gqa-tied")
    exact = lab.export(tmp_path, tiny, replace(scheme(name), accuracy_level=0), [FORM])[FORM.name]
    want = lab.runners["fused"](exact, tiny, SLOTS).run(IDS)
    assert rms(runner(lab, tmp_path, tiny, name=name).run(IDS) - want) <= 0.05 * rms(want)


@pytest.mark.parametrize("name", ["fp32", "fp16", "int4-g128", "int8-channel"])
def test_what_has_no_kernel_is_named(lab: Any, tmp_path: Path, name: str) -> None:
    with pytest.raises(ProviderFailed, match=r"has no native form: \w+ '/"):
        Session(tmp_path, lab.tiny("llama-gqa-tied"), name)


@settings(max_examples=25)
@given(seed=st.integers(0, 999), threads=st.integers(1, 3))
def test_a_tree_leaves_what_plain_steps_leave(
    lab: Any, tmp_path_factory: pytest.TempPathFactory, seed: int, threads: int
) -> None:
    """Bit for bit: logits and cache of a random path through a random tree, against the same tokens one by one."""
    rng = np.random.default_rng(seed)
    tiny = lab.quantised("llama-gqa-tied", 4, 32, True)
    folder = tmp_path_factory.mktemp("tree")
    plain, tree = (runner(lab, folder, tiny, threads=n) for n in (1, threads))
    count = int(rng.integers(2, 14))
    parents = [-1] + [int(rng.integers(0, i)) for i in range(1, count)]
    ids = [int(i) for i in rng.integers(0, 256, count)]
    mask, depth = np.eye(count, dtype=bool), [0] * count
    for i in range(1, count):
        mask[i] |= mask[parents[i]]
        depth[i] = depth[parents[i]] + 1
    before = int(rng.integers(1, 20))
    plain.run(IDS[:1])
    plain.commit([0])
    for token in IDS[1:before]:
        plain.run([token])
        plain.commit([0])
    tree.run(IDS[:before])
    tree.commit(range(before))
    path = [int(i) for i in np.flatnonzero(mask[count - 1])]
    logits = tree.run(ids, depth, mask)
    tree.commit(path)
    for row in path:
        np.testing.assert_array_equal(plain.run([ids[row]])[0], logits[row])
        plain.commit([0])
    for name, past in plain.cache.items():
        np.testing.assert_array_equal(past[:, :, : plain.length], tree.cache[name][:, :, : tree.length])


@pytest.mark.parametrize(("rows", "threads"), [(48, 1), (48, 2), (48, 3), (150, 1), (150, 2), (150, 3)])
def test_a_long_run_leaves_what_plain_steps_leave(
    lab: Any, tmp_path: Path, instruction_set: str, rows: int, threads: int
) -> None:
    """Bit for bit, with every set of instructions: so many rows that their kernels are others, and so many that threads
    keep to parts of them, of which there may be fewer than threads."""
    tiny = lab.quantised("llama-gqa-tied", 4, 32, True)
    ids = [int(x) for x in np.random.default_rng(7).integers(0, 256, rows)]
    plain, long = (runner(lab, tmp_path, tiny, threads=n, slots=160) for n in (1, threads))
    logits = long.run(ids)
    long.commit(range(len(ids)))
    instructions("AVX2")
    try:
        for row, token in enumerate(ids):
            np.testing.assert_array_equal(plain.run([token])[0], logits[row])
            plain.commit([0])
    finally:
        instructions(instruction_set)
    for name, past in plain.cache.items():
        np.testing.assert_array_equal(past[:, :, : len(ids)], long.cache[name][:, :, : len(ids)])


def test_taps_are_the_residual_stream(lab: Any, tmp_path: Path) -> None:
    tiny = lab.quantised("llama-gqa-tied", 8, 32, False)
    form = Form("step", "fused", None, None, 192, taps=(0, 1))
    native = runner(lab, tmp_path, tiny, form=form)
    native.run(IDS)
    reference = lab.runners["fused"](lab.export(tmp_path, tiny, scheme("keep"), [form])[form.name], tiny, SLOTS)
    reference.run(IDS)
    taps, want = native.out["taps"][0], reference.out["taps"][0]
    assert taps.shape == want.shape
    np.testing.assert_allclose(taps[:, :96], want[:, :96], rtol=1e-6, atol=1e-6)
    assert rms(taps[:, 96:] - want[:, 96:]) <= 0.05 * rms(want[:, 96:])


def test_asked_rows_are_the_last_of_a_prefill(lab: Any, tmp_path: Path) -> None:
    tiny = lab.quantised("llama-gqa-tied", 4, 32, True)
    made = runner(lab, tmp_path, tiny)
    every = made.run(IDS)
    np.testing.assert_array_equal(made.run(IDS, rows=[len(IDS) - 1])[0], every[-1])


@pytest.mark.parametrize(
    ("name", "value"),
    [("input_ids", 256), ("input_ids", -1), ("position_ids", 192), ("rows", 3), ("seqlens_k", SLOTS), ("seqlens_k", 0)],
)
def test_inputs_out_of_range_are_refused_before_they_are_read(lab: Any, tmp_path: Path, name: str, value: int) -> None:
    tiny = lab.quantised("llama-gqa-tied", 4, 32, False)
    made = runner(lab, tmp_path, tiny)
    feeds = {"input_ids": np.array([[1, 2, 3]], np.int32), "rows": np.array([0], np.int32)}
    feeds |= made.feeds(np.arange(3), np.tri(3, dtype=bool)) | {f"past_{k}": v for k, v in made.cache.items()}
    feeds[name][...] = value
    with pytest.raises(ProviderFailed, match="that is not there"):
        made.session.run(None, feeds)


def test_a_closed_graph_says_so(lab: Any, tmp_path: Path) -> None:
    session = Session(tmp_path, lab.quantised("llama-gqa-tied", 4, 32, False))
    session.opened.close()
    session.opened.close()
    with pytest.raises(ProviderFailed, match="closed"):
        session.opened.bind({}, {})
    assert untranslatable(session.file.read_bytes(), session.spec) == ""


def test_graphs_with_as_many_threads_share_them(lab: Any, tmp_path: Path) -> None:
    """Two programs at once take turns, and one that is closed leaves the threads to the other."""
    tiny = lab.quantised("llama-gqa-tied", 4, 32, True)
    one, two, other = (Session(tmp_path, tiny, threads=n) for n in (2, 2, 3))
    assert one.opened._threads is two.opened._threads is not other.opened._threads
    want = lab.runners["fused"](other, tiny, SLOTS).run(IDS)
    runners = [lab.runners["fused"](session, tiny, SLOTS) for session in (one, two)]
    found: list[NDArray[np.float32]] = []

    def often(runner: Any) -> None:
        found.extend(runner.run(IDS).copy() for _ in range(20))

    beside = [Thread(target=often, args=(runner,)) for runner in runners]
    for thread in beside:
        thread.start()
    for thread in beside:
        thread.join()
    assert len(found) == 40
    one.opened.close()
    one.opened.close()
    with pytest.raises(ProviderFailed, match="closed"):
        runners[0].run(IDS)
    for logits in (*found, runners[1].run(IDS)):
        np.testing.assert_array_equal(logits, want)
    kept = weakref.ref(two.opened._threads)
    two.opened.close()
    assert kept() is None
