"""Weight schemes: what they store, how far from the checkpoint, and that graphs compute with exactly that."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from spec_edge.models.blockwise import BlockTensor
from spec_edge.models.contract import BadUsage, SpecError
from spec_edge.models.drafter import own_scheme
from spec_edge.models.forms import Form
from spec_edge.models.plugins import known
from spec_edge.models.schemes import int4, int8
from spec_edge.models.schemes.scheme import blocks_of, rounded, scheme
from spec_edge.models.store import WeightStore
from spec_edge.models.stored import Blocks, Dense, merged, store_model

STEPS = [Form("step", name, None, None, 192) for name in ("fused", "portable")]
IDS = [int(x) for x in np.random.default_rng(6).integers(0, 256, 24)]
BLOCK_FLOATS = hnp.arrays(np.float32, (2, 2, 32), elements=st.floats(-4, 4, width=32))


def logits(lab: Any, tiny: Any, name: str, folder: Path, form: Form, accuracy_level: int = 0) -> NDArray[np.float32]:
    chosen = replace(scheme(name), accuracy_level=accuracy_level)
    sessions = lab.export(folder, tiny, chosen, [form])
    out: NDArray[np.float32] = lab.runners[form.lowering](sessions[form.name], tiny, 64).run(IDS)
    return out


def rms(x: NDArray[np.float32]) -> float:
    return float(np.sqrt(np.mean(np.square(x, dtype=np.float64))))


@pytest.mark.parametrize("model", ["llama-gqa-tied", "llama-mha-untied", "qwen2-bias-tied"])
@pytest.mark.parametrize("offset", [False, True], ids=["symmetric", "offset"])
@pytest.mark.parametrize(("bits", "block"), [(4, 32), (8, 32), (8, 16)])
def test_keep_computes_with_the_files_own_values(
    lab: Any, tmp_path: Path, model: str, bits: int, block: int, offset: bool
) -> None:
    tiny = lab.quantised(model, bits, block, offset)
    want, _ = lab.hf_logits(tiny, IDS)
    for form in STEPS:
        exact = logits(lab, tiny, "keep", tmp_path, form)
        assert np.abs(exact - want).max() <= 1e-4
    if block >= 32:
        rounded_inputs = logits(lab, tiny, "keep", tmp_path, STEPS[0], accuracy_level=4)
        assert 1e-4 < rms(rounded_inputs - want) <= 0.05 * rms(want)


@pytest.mark.parametrize("model", ["llama-gqa-tied", "llama-mha-untied"])
def test_keep_head4_rounds_the_head_alone(lab: Any, tmp_path: Path, model: str) -> None:
    """A head of its own, 4 bits of the file's values; the embedding beside it stays what it is in the file."""
    tiny = lab.quantised(model, 8, 32, False)
    name = "model.embed_tokens.weight" if tiny.config.tied else "lm_head.weight"
    head = scheme("keep-head4").head
    assert head is not None
    four = head(tiny.weights, name)
    assert isinstance(four, BlockTensor) and (four.bits, four.block, four.offset) == (4, 32, None)
    kept = scheme("keep").pack(tiny.weights, name)
    assert rms(four.dense() - kept.dense()) <= 0.12 * rms(kept.dense())
    want = logits(lab, tiny, "keep", tmp_path, STEPS[0])
    for form in STEPS:
        got = logits(lab, tiny, "keep-head4", tmp_path, form)
        assert 1e-3 * rms(want) < rms(got - want) <= 0.12 * rms(want)
    nodes = onnx.load(tmp_path / f"{STEPS[0].name}.onnx", load_external_data=False).graph.node
    bits = {n.name: a.i for n in nodes if n.op_type == "MatMulNBits" for a in n.attribute if a.name == "bits"}
    assert {n for n, b in bits.items() if b == 4} == {n for n in bits if "lm_head" in n} and set(bits.values()) == {
        4,
        8,
    }
    (gather,) = (n for n in nodes if n.op_type == "GatherBlockQuantized")
    assert {a.name: a.i for a in gather.attribute}["bits"] == 8


def test_keep_merges_only_equal_forms(lab: Any, tmp_path: Path) -> None:
    """v_proj has 8 bits where q and k have 4; gate has an offset where up has none."""
    tiny = lab.quantised("llama-gqa-tied", 4, 32, False)
    other = lab.quantised("llama-gqa-tied", 8, 32, True)
    for name in ("model.layers.0.self_attn.v_proj.weight", "model.layers.1.mlp.gate_proj.weight"):
        tiny.weights.packed[name] = other.weights.packed[name]
        tiny.weights.tensors[name] = other.weights.tensors[name]
    name = "model.layers.0.mlp.down_proj.weight"
    del tiny.weights.packed[name]
    want, _ = lab.hf_logits(tiny, IDS)
    for form in STEPS:
        assert np.abs(logits(lab, tiny, "keep", tmp_path, form) - want).max() <= 1e-4
    kinds = Counter(n.op_type for n in onnx.load(tmp_path / "step-fused.onnx", load_external_data=False).graph.node)
    # Layer 0: q, k, v apart, o, gate|up, a dense down. Layer 1: qkv, o, gate and up apart, down. And lm_head.
    assert kinds["MatMulNBits"] == 5 + 5 + 1


def test_keep_leaves_unquantised_tensors_as_precise_as_they_are(lab: Any) -> None:
    half = np.linspace(-1, 1, 64, dtype=np.float16).astype(np.float32).reshape(2, 32)
    full = (half + np.float32(1e-5)).astype(np.float32)
    weights = lab.weights({"half": half, "full": full, "huge": full * 1e6})
    pack = scheme("keep").pack
    assert [pack(weights, n).dtype for n in ("half", "full", "huge")] == [np.float16, np.float32, np.float32]
    assert np.array_equal(pack(weights, "half"), half)


def test_keep_refuses_a_checkpoint_without_quantised_tensors(lab: Any, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="not quantised"):
        lab.export(tmp_path, lab.tiny("llama-gqa-tied"), scheme("keep"), [])


@pytest.mark.parametrize(("name", "limit"), [("fp32", 1e-4), ("fp16", 0.01), ("int8", 0.05), ("int4", 1.0)])
def test_every_scheme_stays_within_its_error(lab: Any, tmp_path: Path, name: str, limit: float) -> None:
    """limit: root mean square logit error over that of the logits. int4 on random weights is only roughly right."""
    tiny = lab.tiny("qwen2-bias-untied")
    want, _ = lab.hf_logits(tiny, IDS)
    got = [logits(lab, tiny, name, tmp_path, form) for form in STEPS]
    assert rms(got[0] - want) <= limit * rms(want)
    assert np.abs(got[0] - got[1]).max() <= 1e-4


def test_known_schemes_and_a_misspelt_one() -> None:
    assert known("spec_edge.models.schemes", "SCHEME") == (
        *("a16w8", "fp16", "fp32", "int4", "int4-all", "int4-channel", "int4-g128", "int8", "int8-channel", "keep"),
        "keep-head4",
    )
    with pytest.raises(BadUsage, match=r"unknown precision 'in8'. Did you mean 'int8'\?"):
        scheme("in8")


def test_int4_keeps_the_vocabulary_in_int8(lab: Any) -> None:
    tiny = lab.tiny("llama-mha-untied")
    bits = {n: scheme("int4").pack(tiny.weights, n).bits for n, w in tiny.weights.tensors.items() if w.ndim == 2}
    assert {n for n, b in bits.items() if b == 8} == {"model.embed_tokens.weight", "lm_head.weight"}
    assert set(bits.values()) == {4, 8}


@pytest.mark.parametrize(("precision", "own"), [("keep", "int4-all"), ("int4", "int4-all"), ("int8", "int8")])
def test_a_drafter_takes_four_bits_where_the_bundle_may(lab: Any, precision: str, own: str) -> None:
    assert own_scheme(precision, (100, 64)) == own and own_scheme(precision, (7, 33)) == "fp16"
    tiny = lab.tiny("llama-mha-untied")
    assert scheme("int4-all").pack(tiny.weights, "lm_head.weight").bits == 4


def test_fp16_refuses_what_float16_cannot_hold(lab: Any) -> None:
    with pytest.raises(SpecError, match="beyond float16"):
        scheme("fp16").pack(lab.weights({"w": np.full((1, 32), 1e5, np.float32)}), "w")


def test_blocks_must_divide_the_inputs() -> None:
    with pytest.raises(SpecError, match="w has 40 inputs"):
        blocks_of(np.zeros((2, 40), np.float32), "w")


@given(BLOCK_FLOATS)
def test_int8_error_is_at_most_half_a_step(w: NDArray[np.float32]) -> None:
    packed = rounded(w, 8, int8.absmax)
    assert packed.q.min() >= 1
    step = packed.scale[..., None]
    assert (np.abs(packed.dense().reshape(w.shape) - w) <= step * 0.5001 + 1e-30).all()


@given(BLOCK_FLOATS)
def test_int4_is_never_worse_than_the_plain_absmax_grid(w: NDArray[np.float32]) -> None:
    ours = rounded(w, 4, int4.least_squares)
    plain = rounded(w, 4, lambda x: np.abs(x).max(axis=-1) / np.float32(7))

    def error(packed: BlockTensor) -> NDArray[np.float64]:
        return ((packed.dense().reshape(w.shape).astype(np.float64) - w) ** 2).sum(-1)

    assert (error(ours) <= error(plain) * 1.02 + 1e-9).all()
    assert ours.q.max() <= 15


def test_an_exact_grid_is_found_again() -> None:
    """Weights that lie on a 4-bit grid with -8 in each block come back exactly."""
    rng = np.random.default_rng(0)
    q = rng.integers(0, 16, (8, 4, 32)).astype(np.uint8)
    q[..., 0] = 0
    scale = rng.uniform(0.1, 1, (8, 4)).astype(np.float32)
    w = BlockTensor(4, 32, q, scale).dense().reshape(q.shape)
    again = rounded(w, 4, int4.least_squares)
    assert np.array_equal(again.q, q)
    assert np.allclose(again.scale, scale, rtol=1e-6)


def test_merged_stacks_rows() -> None:
    a, b = np.ones((2, 4), np.float32), np.zeros((1, 4), np.float32)
    whole = merged([a, b])
    assert isinstance(whole, np.ndarray)
    assert whole.tolist() == [[1] * 4, [1] * 4, [0] * 4]
    assert merged([a, b.astype(np.float16)]) is None


def test_a_tied_table_is_stored_once_and_merged_groups_too(lab: Any, tmp_path: Path) -> None:
    tiny = lab.quantised("llama-gqa-tied", 4, 32, True)
    with WeightStore(tmp_path / "weights.bin") as store:
        stored = store_model(tiny.config, tiny.rope, tiny.weights, scheme("keep"), store, 64)
        assert stored.head is stored.embedding
        assert "model.embed_tokens:q4" in store
        assert "lm_head:q4" not in store
        size = store.fact().bytes
    assert {len(g) for g in stored.groups.values()} == {1}
    assert all(isinstance(g[0].matrix, Blocks) for g in stored.groups.values())
    weights = sum(np.prod(s) for s in (tiny.weights.shape(n) for n in tiny.weights.packed))
    assert size < weights * (0.5 + 8 / 32) * 1.3 + 64 * 32 * 4 + 20000


def test_dense_schemes_store_the_layout_that_matmul_reads(lab: Any, tmp_path: Path) -> None:
    tiny = lab.tiny("llama-gqa-tied")
    with WeightStore(tmp_path / "weights.bin") as store:
        stored = store_model(tiny.config, tiny.rope, tiny.weights, scheme("fp32"), store, 64)
    down = stored.groups["model.layers.1.mlp.down"][0].matrix
    assert isinstance(down, Dense)
    raw = (tmp_path / "weights.bin").read_bytes()[down.weight.offset : down.weight.offset + down.weight.length]
    want = tiny.weights.dense("model.layers.1.mlp.down_proj.weight")
    assert np.array_equal(np.frombuffer(raw, "<f4").reshape(down.weight.shape), want.T)


@pytest.mark.parametrize("form", STEPS, ids=lambda f: f.lowering)
def test_rounded_activations_leave_rows_independent(lab: Any, tmp_path: Path, form: Form) -> None:
    """accuracy_level 4 rounds each row by itself: rejected rows change no bit of the accepted ones."""
    tiny = lab.quantised("llama-gqa-tied", 4, 32, True)
    session = lab.export(tmp_path, tiny, scheme("keep"), [form])[form.name]
    rows = [lab.runners[form.lowering](session, tiny, 64).run([*IDS[:4], *[other] * 4])[:4] for other in (0, 9, 255)]
    assert np.array_equal(rows[0], rows[1])
    assert np.array_equal(rows[0], rows[2])
