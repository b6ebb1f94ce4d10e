"""Scales per channel: what is stored, that graphs compute with exactly that, and that a plan knows its size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from spec_edge.models import reference
from spec_edge.models.contract import SpecError
from spec_edge.models.decoder import build
from spec_edge.models.drafter import AsStored, own_scheme
from spec_edge.models.forms import Form
from spec_edge.models.planned import plannable, planned_model
from spec_edge.models.reference import hidden_states, logits
from spec_edge.models.schemes import int4, int8
from spec_edge.models.schemes.scheme import channels, scheme
from spec_edge.models.store import WeightStore
from spec_edge.models.stored import Channels, store_model

SCHEMES = ("int8-channel", "int4-channel", "int4-g128")
MODELS = ("llama-gqa-tied", "llama-mha-untied", "qwen2-bias-tied")
TABLE, SLOTS = 192, 64
FORMS = (
    Form("step", "fused", None, None, TABLE),
    Form("step", "portable", None, None, TABLE),
    Form("verify", "portable", 1, SLOTS, TABLE),
    Form("verify", "portable", 8, SLOTS, TABLE),
)
IDS = [int(x) for x in np.random.default_rng(6).integers(0, 256, 24)]
GROUPS = hnp.arrays(np.float32, (3, 2, 32), elements=st.floats(-4, 4, width=32))


def as_stored(tiny: Any, name: str) -> NDArray[np.float32]:
    """The numpy reference with the weights that the scheme makes."""
    return logits(tiny.config, AsStored(tiny.weights, scheme(name).pack), IDS)


def peaks(tiny: Any) -> dict[str, float]:
    """Largest magnitude that each norm and each group of projections reads."""
    found: dict[str, float] = {}
    hidden_states(tiny.config, tiny.weights, [IDS], lambda name, x: found.update({name: float(np.abs(x).max())}))
    return found


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("model", MODELS)
def test_graphs_compute_with_what_is_stored(lab: Any, tmp_path: Path, model: str, name: str) -> None:
    tiny = lab.tiny(model)
    want = as_stored(tiny, name)
    sessions = lab.export(tmp_path, tiny, scheme(name), FORMS)
    for form in FORMS:
        runner, width = lab.runners[form.lowering](sessions[form.name], tiny, SLOTS), form.width or len(IDS)
        for i in range(0, len(IDS), width):
            assert np.abs(runner.run(IDS[i : i + width]) - want[i : i + width]).max() <= 2e-4, form.name
            runner.commit(range(width))


@pytest.mark.parametrize("name", SCHEMES)
def test_half_precision(lab: Any, tmp_path: Path, name: str) -> None:
    tiny, form = lab.tiny("llama-gqa-tied"), Form("verify", "portable", 8, SLOTS, TABLE, "float16")
    want = as_stored(tiny, name)[:8]
    out = lab.runners["portable"](lab.export(tmp_path, tiny, scheme(name), [form])[form.name], tiny, SLOTS).run(IDS[:8])
    assert out.dtype == np.float16
    assert np.abs(out - want).max() <= 0.02 * np.abs(want).max()


@pytest.mark.parametrize("name", plannable())
def test_only_schemes_that_need_it_raise_the_opset(lab: Any, tmp_path: Path, name: str) -> None:
    tiny = lab.tiny("llama-gqa-tied")
    with WeightStore(tmp_path / "weights.bin") as store:
        stored = store_model(tiny.config, tiny.rope, tiny.weights, scheme(name), store, TABLE, peaks=peaks(tiny))
    for form in FORMS:
        opsets = {o.domain: o.version for o in build(tiny.config, stored, form)[0].opset_import}
        assert opsets[""] == (21 if name in SCHEMES else 17)


@pytest.mark.parametrize("name", plannable())
def test_a_plan_has_the_size_of_the_weights(lab: Any, tmp_path: Path, name: str) -> None:
    tiny, dtypes = lab.tiny("qwen2-bias-untied"), ("float32", "float16")
    with WeightStore(tmp_path / "weights.bin") as store:
        stored = store_model(tiny.config, tiny.rope, tiny.weights, scheme(name), store, TABLE, dtypes, peaks(tiny))
        size = store.fact().bytes
    planned, planned_size = planned_model(tiny.config, tiny.rope, name, "weights.bin", TABLE, dtypes)
    assert abs(planned_size - size) < 64
    assert planned.opset == stored.opset
    graphs = [build(tiny.config, which, FORMS[3])[0] for which in (planned, stored)]
    assert [n.op_type for n in graphs[0].graph.node] == [n.op_type for n in graphs[1].graph.node]


def test_a_tied_table_is_stored_once_and_in_eight_bits(lab: Any, tmp_path: Path) -> None:
    tiny = lab.tiny("llama-gqa-tied")
    with WeightStore(tmp_path / "weights.bin") as store:
        stored = store_model(tiny.config, tiny.rope, tiny.weights, scheme("int4-channel"), store, TABLE)
        assert "lm_head:q8c" not in store
    assert stored.head is stored.embedding
    assert isinstance(stored.head, Channels)
    assert (stored.head.q.dtype, stored.head.q.shape) == ("int8", (256, 96))
    down = stored.groups["model.layers.1.mlp.down"][0].matrix
    assert isinstance(down, Channels)
    raw = (tmp_path / "weights.bin").read_bytes()[down.q.offset : down.q.offset + down.q.length]
    pairs = np.frombuffer(raw, np.uint8)
    halves = np.stack([pairs & 15, pairs >> 4], 1).reshape(-1).astype(np.int8)
    want = scheme("int4-channel").pack(tiny.weights, "model.layers.1.mlp.down_proj.weight")
    assert np.array_equal(((halves ^ 8) - 8).reshape(down.q.shape), want.q.T)


@given(GROUPS)
def test_eight_bits_are_within_half_a_step(w: NDArray[np.float32]) -> None:
    packed = channels(w, 8, int8.absmax)
    assert np.abs(packed.q).max() <= 127
    assert packed.group == 32
    step = packed.scale[..., None]
    assert (np.abs(packed.dense().reshape(w.shape) - w) <= step * 0.5001 + 1e-30).all()


@given(GROUPS)
def test_four_bits_are_never_worse_than_the_plain_grid(w: NDArray[np.float32]) -> None:
    ours = channels(w, 4, int4.least_squares)
    plain = channels(w, 4, lambda x: np.abs(x).max(axis=-1) / np.float32(7))
    errors = [((p.dense().reshape(w.shape).astype(np.float64) - w) ** 2).sum(-1) for p in (ours, plain)]
    assert (errors[0] <= errors[1] * 1.02 + 1e-9).all()
    assert (ours.q >= -8).all()
    assert (ours.q <= 7).all()


@pytest.mark.parametrize("name", SCHEMES)
def test_a_drafter_keeps_eight_bits_and_the_form(name: str) -> None:
    assert own_scheme(name, (100, 576)) == own_scheme(name, (7, 33)) == "int8-channel"


@pytest.mark.parametrize("model", MODELS)
def test_a16w8_rounds_what_projections_read(
    lab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    """Coarse steps, so that rounding is far above the tolerance: 6 bits each side."""
    tiny, form, most = lab.tiny(model), FORMS[3], peaks(lab.tiny(model))
    chosen = replace(scheme("a16w8"), steps=63)
    with WeightStore(tmp_path / "weights.bin") as store:
        stored = store_model(tiny.config, tiny.rope, tiny.weights, chosen, store, TABLE, peaks=most)
    (tmp_path / "graph.onnx").write_bytes(build(tiny.config, stored, form)[0].SerializeToString())
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(tmp_path / "graph.onnx"), options, providers=["CPUExecutionProvider"])
    out = lab.runners["portable"](session, tiny, SLOTS).run(IDS[:8])

    whole, plain = reference._project, logits(tiny.config, AsStored(tiny.weights, chosen.pack), IDS[:8])

    def project(weights: Any, name: str, x: NDArray[np.float32], bias: bool) -> NDArray[np.float32]:
        group = {"q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "gate_proj": "gate_up", "up_proj": "gate_up"}
        path, _, last = name.rpartition(".")
        step = np.float32(most[f"{path}.{group.get(last, last.removesuffix('_proj'))}"] / 63)
        return whole(weights, name, np.rint(x / step) * step, bias)

    monkeypatch.setattr(reference, "_project", project)
    want = logits(tiny.config, AsStored(tiny.weights, chosen.pack), IDS[:8])
    assert np.abs(want - plain).max() > 0.05
    assert np.abs(out - want).max() < 0.2 * np.abs(want - plain).max()


def test_a16w8_needs_what_the_check_text_showed(lab: Any, tmp_path: Path) -> None:
    tiny = lab.tiny("llama-gqa-tied")
    with (
        WeightStore(tmp_path / "weights.bin") as store,
        pytest.raises(SpecError, match=r"largest input of .*0\.self_attn"),
    ):
        store_model(tiny.config, tiny.rope, tiny.weights, scheme("a16w8"), store, TABLE)


@pytest.mark.real
def test_smollm2_in_int8_channel_equals_the_reference(lab: Any, smollm2_gguf: Path, tmp_path: Path) -> None:
    from spec_edge.models.open import open_checkpoint

    model, form = open_checkpoint(smollm2_gguf), Form("verify", "portable", 8, SLOTS, TABLE)
    stored = AsStored(model.weights, scheme("int8-channel").pack)
    want = logits(model.config, stored, IDS)
    tiny = lab.wrap(model.config, model.weights)
    runner = lab.runners["portable"](lab.export(tmp_path, tiny, scheme("int8-channel"), [form])[form.name], tiny, SLOTS)
    for i in range(0, len(IDS), 8):
        assert np.abs(runner.run(IDS[i : i + 8]) - want[i : i + 8]).max() <= 5e-4
        runner.commit(range(8))
