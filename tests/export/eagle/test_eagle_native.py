"""EAGLE drafters on the native kernels: the rows of ONNX Runtime's fp32 graphs but for rounding, in any company."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_edge.models.contract import GraphSpec
from spec_edge.runtime.bundle import Bundle
from spec_edge.runtime.draft import ROOT
from spec_edge.runtime.eagle_rows import Level
from spec_edge.runtime.native.opened import NativeOpened, untranslatable
from spec_edge.runtime.native.state import Untranslatable
from spec_edge.runtime.native.translate import translate
from spec_edge.runtime.onnx_nodes import nodes_of
from spec_edge.runtime.onnx_tensors import tensors_of
from spec_edge.runtime.providers.opening import on_cpu
from spec_edge.runtime.providers.provider import Opener, ProviderFailed
from spec_edge.runtime.sessions.eagle import EagleSession

pytestmark = pytest.mark.usefixtures("native_kernels")
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "norm-before-residual": {"norm_before_residual": True},
    "3.1": {"fc_norm": True, "norm_output": True},
    "norm-before-fc": {"norm_before_fc": True, "norm_output": True},
    "two-layers": {"layers": 2},
    "whole-vocabulary": {"drafted": 96},
    "borrowed-head": {"drafted": 96, "own_head": False},
}
UNKNOWN = ("3.1",)
"""Taps that are normed one by one come from a Split, which has no stage."""


@pytest.fixture(scope="module")
def lab(eagle: Any) -> Any:
    """The lab with heads of 32, which the kernels have."""
    module = sys.modules[eagle.Shape.__module__]
    patch = pytest.MonkeyPatch()
    patch.setattr(module, "DIM", 32)
    yield eagle
    patch.undo()


def bundles(lab: Any, folder: Path, name: str, *precisions: str) -> list[Bundle]:
    more = OPTIONS[name]
    shape = replace(lab.Shape(taps=(2, 2, 1), drafted=40), **more)
    stated = {key: value for key, value in more.items() if key not in ("layers", "drafted", "own_head")}
    config = lab.base_config(shape, draft_vocab_size=shape.drafted, architectures=["LlamaForCausalLMEagle3"], **stated)
    drafter = lab.write_drafter(folder / "drafter", shape, lab.random_state(shape), lab.Dialect(config))
    return [lab.make_bundle(folder / p, lab.tiny(), drafter, p) for p in precisions]


def native(bundle: Bundle, threads: int = 2) -> Opener:
    return lambda graph: NativeOpened(bundle.path(graph.file), bundle.path(bundle.manifest.weights), graph, threads)


def rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(x, dtype=np.float64))))


def near(level: Level, want: Level) -> None:
    for got, exact in ((level.hidden, want.hidden), (level.logits, want.logits)):
        assert rms(got - exact) <= 0.06 * rms(exact)
    laws = level.logits - level.logits.max(1, keepdims=True)
    laws = laws - np.log(np.exp(laws).sum(1, keepdims=True))
    np.testing.assert_allclose(level.logprobs, -np.sort(-laws, axis=1)[:, : level.ids.shape[1]], atol=1e-5)


@pytest.mark.parametrize("name", [name for name in OPTIONS if name not in UNKNOWN])
def test_rows_are_those_of_onnx_runtime(lab: Any, tmp_path: Path, name: str) -> None:
    """Prompt, catch-up, two levels of a tree; `exact` follows what the native rows fed back."""
    rounded, exact = bundles(lab, tmp_path, name, "int8", "fp32")
    session, reference = EagleSession(rounded, native(rounded)), EagleSession(exact, on_cpu(exact, 1))
    rng = np.random.default_rng(3)
    read = rng.normal(size=(44, 96)).astype(np.float32)
    text = rng.integers(1, lab.vocab, 44).tolist()
    for start, end in ((0, 40), (40, 41), (41, 44)):
        level = session.extend(text[start:end], read[start:end])
        near(level, reference.extend(text[start:end], read[start:end]))
    assert session.length == 44
    ids = np.arange(lab.vocab) if session.vocabulary is None else session.vocabulary
    assert level.ids[0, 0] == ids[level.logits[0].argmax()]
    for tokens, parents in (([3, 7, 9], [ROOT] * 3), ([4, 5, 6, 3], [1, 0, 1, 2])):
        hidden = np.repeat(level.hidden[:1], len(tokens), 0)
        level = session.expand(tokens, hidden, parents)
        near(level, reference.expand(tokens, hidden, parents))
    session.truncate(20)
    reference.truncate(20)
    near(session.extend(text[20:22], read[20:22]), reference.extend(text[20:22], read[20:22]))
    session.close()


def test_a_row_is_the_same_in_every_company_and_on_any_threads(lab: Any, tmp_path: Path) -> None:
    (bundle,) = bundles(lab, tmp_path, "plain", "int8")
    rng = np.random.default_rng(4)
    read, text = rng.normal(size=(9, 96)).astype(np.float32), rng.integers(1, 90, 9).tolist()
    one, many = EagleSession(bundle, native(bundle, 1)), EagleSession(bundle, native(bundle, 3))
    for token, row in zip(text, read, strict=True):
        last = one.extend([token], row[None])
    together = many.extend(text, read)
    for field in ("ids", "logprobs", "hidden", "logits"):
        np.testing.assert_array_equal(getattr(last, field), getattr(together, field))
    alone = [one.expand([t], last.hidden, [ROOT]) for t in (5, 6)]
    level = many.expand([5, 6], np.repeat(together.hidden, 2, 0), [ROOT, ROOT])
    np.testing.assert_array_equal(np.concatenate([x.hidden for x in alone]), level.hidden)


def test_what_has_no_kernel_is_said(lab: Any, tmp_path: Path) -> None:
    for name in UNKNOWN:
        (bundle,) = bundles(lab, tmp_path / name, name, "int8")
        (fuse,) = bundle.graphs("eagle", "fuse")
        assert "Split" in untranslatable(bundle.path(fuse.file).read_bytes(), fuse)
    (bundle,) = bundles(lab, tmp_path / "fp32", "plain", "fp32")
    (step,) = (g for g in bundle.graphs("eagle", "step") if g.lowering == "fused")
    assert untranslatable(bundle.path(step.file).read_bytes(), step)


@pytest.fixture(scope="module")
def graphs(lab: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Bundle, list[GraphSpec]]:
    (bundle,) = bundles(lab, tmp_path_factory.mktemp("graphs"), "plain", "int8")
    return bundle, [g for g in bundle.manifest.graphs if g.network == "eagle" and g.lowering == "fused"]


@settings(max_examples=200)
@given(data=st.data())
def test_no_change_ends_in_another_error(graphs: Any, mangle: Any, data: st.DataObject) -> None:
    bundle, specs = graphs
    assert {spec.role for spec in specs} == {"step", "fuse"}
    spec = data.draw(st.sampled_from(specs))
    raw = bundle.path(spec.file).read_bytes()
    nodes, tensors = mangle(data, nodes_of(raw).nodes, tensors_of(raw))
    try:
        translate(nodes, tensors, spec)
    except Untranslatable as error:
        assert str(error) and "\n" not in str(error)


def test_inputs_that_are_not_there_are_refused(graphs: Any) -> None:
    bundle, specs = graphs
    sizes = {"S": 3, "R": 1, "M": 64, "P": 64, "T": 64}
    for spec in specs:
        opened = native(bundle, 1)(spec)
        arrays = {t.name: np.zeros([sizes.get(d, d) for d in t.shape], t.dtype) for t in spec.inputs}
        outputs = {t.name: np.zeros([sizes.get(d, d) for d in t.shape], t.dtype) for t in spec.outputs}
        outputs |= {name.replace("past", "present"): a for name, a in arrays.items() if name.startswith("past")}
        run = opened.bind(arrays, outputs)
        if "seqlens_k" in arrays:
            arrays["seqlens_k"][0] = 2
        run()
        for name in set(arrays) - {"total_len"}:
            with pytest.raises(ProviderFailed, match=r"lacks an input|which the model has not"):
                opened.bind({k: v for k, v in arrays.items() if k != name}, outputs)
        for name in ({"features", "taps"} & arrays.keys()) | ({"top_ids"} & outputs.keys()):
            wrong = {name: np.zeros((1, 2, 5), np.float32)}
            with pytest.raises(ProviderFailed, match="where the graph has"):
                opened.bind(*({**a, **{k: v for k, v in wrong.items() if k in a}} for a in (arrays, outputs)))
        opened.close()
        with pytest.raises(ProviderFailed, match="closed"):
            run()
