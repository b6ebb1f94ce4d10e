"""GGUF models that are damaged or of a variant that is not supported: one clear line each."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_models import gguf_keys, gguf_tensors, tiny_llama, tiny_qwen2, write_gguf

from spec_edge.models.contract import SpecError
from spec_edge.models.open import open_checkpoint

ZEROS = (np.zeros((64, 64), np.float32), "F32")


def message(path: Path) -> str:
    with pytest.raises(SpecError) as caught:
        open_checkpoint(path)
    assert "\n" not in caught.value.message and len(caught.value.message) < 600
    return str(caught.value.message)


def test_missing_path(tmp_path: Path) -> None:
    assert "there is no file or folder" in message(tmp_path / "nothing.gguf")


def test_another_kind_of_file(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("This is no model at all, whatever it is called.", encoding="utf-8")
    assert "is not a GGUF file" in message(tmp_path / "notes.txt")


@pytest.mark.parametrize("arch", ["mamba", "gemma2", "phi3", "../llama", "__init__"])
def test_unsupported_architecture_is_named(arch: str, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "x.gguf", arch, {}, {"t": ZEROS})
    assert f"architecture '{arch}' is not supported. Supported: llama, qwen2" in message(path)


def test_no_architecture(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"GGUF" + (3).to_bytes(4, "little") + bytes(32))
    assert "no key 'general.architecture'" in message(tmp_path / "x.gguf")


KEYS: dict[str, tuple[dict[str, Any], str]] = {
    "rope type": ({"llama.rope.scaling.type": "yarn"}, "'llama.rope.scaling.type' = 'yarn' is not supported"),
    "rope factor": ({"llama.rope.scaling.factor": 2.0}, "'llama.rope.scaling.factor' = 2.0 is not supported"),
    "experts": ({"llama.expert_count": 8}, "'llama.expert_count' = 8 is not supported"),
    "window": ({"llama.attention.sliding_window": 4096}, "sliding_window' = 4096 is not supported"),
    "unknown": ({"llama.attention.scale": 0.5}, "'llama.attention.scale' = 0.5 is not supported"),
    "unknown array": ({"llama.some.list": [1, 2]}, "'llama.some.list'"),
    "partial rotary": ({"llama.rope.dimension_count": 8}, "'llama.rope.dimension_count' = 8 is not supported"),
    "value length": ({"llama.attention.value_length": 8}, "'llama.attention.value_length' = 8"),
    "heads per layer": ({"llama.attention.head_count_kv": [2, 2]}, "head_count_kv' is of type ndarray, not int"),
    "no heads": ({"llama.attention.head_count": 0}, "number of heads is 0"),
    "head groups": ({"llama.attention.head_count_kv": 3}, "4 heads do not divide into 3"),
    "no layers": ({"llama.block_count": ...}, "no key 'llama.block_count'"),
    "layers": ({"llama.block_count": 1 << 30}, "number of layers is 1073741824"),
    "more layers": ({"llama.block_count": 3}, "no tensor 'model.layers.2.input_layernorm.weight'"),
    "fewer layers": ({"llama.block_count": 1}, "does not read: blk.1.attn_k.weight, blk.1.attn_norm.weight"),
    "size": ({"llama.embedding_length": 128}, "'model.embed_tokens.weight' has shape [320, 64]"),
    "inner size": ({"llama.feed_forward_length": 128}, "mlp.gate_proj.weight' has shape [96, 64]"),
    "vocabulary": ({"llama.vocab_size": 300}, "'llama.vocab_size' = 300, but token_embd.weight has 320 rows"),
    "eps": ({"llama.attention.layer_norm_rms_epsilon": 0.0}, "not a positive number"),
    "theta": ({"llama.rope.freq_base": float("nan")}, "not a positive number"),
    "wrong type": ({"llama.block_count": "two"}, "'llama.block_count' is of type str, not int"),
}


@pytest.mark.parametrize("name", KEYS)
def test_unsupported_option_is_named(name: str, tmp_path: Path) -> None:
    changes, expected = KEYS[name]
    model = tiny_llama()
    path = write_gguf(tmp_path / "x.gguf", "llama", gguf_keys(model, changes), gguf_tensors(model))
    assert expected in message(path)


def test_options_that_are_off_are_accepted(tmp_path: Path) -> None:
    model = tiny_llama()
    off = {"llama.expert_count": 0, "llama.rope.scaling.type": "none", "llama.attention.sliding_window": 0}
    open_checkpoint(write_gguf(tmp_path / "x.gguf", "llama", gguf_keys(model, off), gguf_tensors(model)))


TENSORS: dict[str, tuple[dict[str, Any], str]] = {
    "unread": (
        {"blk.0.attn_q_norm.weight": (np.ones(16, np.float32), "F32")},
        "does not read: blk.0.attn_q_norm.weight",
    ),
    "bias": ({"blk.0.attn_q.bias": (np.ones(64, np.float32), "F32")}, "does not read: blk.0.attn_q.bias"),
    "missing": ({"blk.1.ffn_up.weight": None}, "no tensor 'model.layers.1.mlp.up_proj.weight'"),
    "no embedding": ({"token_embd.weight": None}, "no tensor 'token_embd.weight'"),
    "shape": ({"blk.1.ffn_up.weight": ZEROS}, "shape [64, 64], its configuration says [96, 64]"),
    "type": ({"blk.1.attn_output.weight": (np.zeros((64, 256), np.float32), "TQ2_0")}, "shape [64, 256]"),
    "rope shape": (
        {"rope_freqs.weight": (np.ones(4, np.float32), "F32")},
        "must be F32 of 8 values",
    ),
    "rope zero": ({"rope_freqs.weight": (np.zeros(8, np.float32), "F32")}, "not positive"),
}


@pytest.mark.parametrize("name", TENSORS)
def test_unexpected_tensor_is_named(name: str, tmp_path: Path) -> None:
    changes, expected = TENSORS[name]
    model = tiny_llama()
    tensors = {n: t for n, t in {**gguf_tensors(model), **changes}.items() if t is not None}
    assert expected in message(write_gguf(tmp_path / "x.gguf", "llama", gguf_keys(model), tensors))


def test_unsupported_tensor_type_is_named(tmp_path: Path) -> None:
    model = tiny_llama(hidden_size=256, num_attention_heads=4)
    tensors = gguf_tensors(model)
    tensors["blk.0.ffn_up.weight"] = (tensors["blk.0.ffn_up.weight"][0], "TQ2_0")
    path = write_gguf(tmp_path / "x.gguf", "llama", gguf_keys(model), tensors)
    assert "'model.layers.0.mlp.up_proj.weight' is of type TQ2_0, which is not supported" in message(path)


def test_qwen2_without_its_biases_is_incomplete(tmp_path: Path) -> None:
    model = tiny_qwen2()
    tensors = {name: t for name, t in gguf_tensors(model).items() if not name.endswith(".bias")}
    path = write_gguf(tmp_path / "x.gguf", "qwen2", gguf_keys(model), tensors)
    assert "no tensor 'model.layers.0.self_attn.q_proj.bias'" in message(path)


def test_qwen2_does_not_read_rope_factors(tmp_path: Path) -> None:
    model = tiny_qwen2()
    tensors = {**gguf_tensors(model), "rope_freqs.weight": (np.ones(8, np.float32), "F32")}
    path = write_gguf(tmp_path / "x.gguf", "qwen2", gguf_keys(model), tensors)
    assert "does not read: rope_freqs.weight" in message(path)


def test_source_is_the_files_hash_and_progress_covers_it(tmp_path: Path) -> None:
    model = tiny_llama()
    path = write_gguf(tmp_path / "tiny.gguf", "llama", gguf_keys(model), gguf_tensors(model))
    seen: list[tuple[int, int]] = []
    checkpoint = open_checkpoint(path, lambda done, total: seen.append((done, total)))
    content = path.read_bytes()
    assert checkpoint.source.sha256 == hashlib.sha256(content).hexdigest()
    assert (checkpoint.source.kind, checkpoint.source.name, checkpoint.source.bytes) == (
        "gguf",
        "tiny.gguf",
        len(content),
    )
    assert seen[-1] == (len(content), len(content))
    assert checkpoint.name == "tiny"


@pytest.fixture(scope="module")
def tiny_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = tiny_llama(tie_word_embeddings=True)
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    return write_gguf(path, "llama", gguf_keys(model), gguf_tensors(model))


@given(data=st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_models_never_crash(data: st.DataObject, tiny_file: Path, tmp_path: Path) -> None:
    """Any bytes of the header changed: a SpecError, or a checkpoint whose tensors can be read."""
    content = bytearray(tiny_file.read_bytes())
    for at in data.draw(st.lists(st.integers(0, 8000), min_size=1, max_size=4)):
        content[at] = data.draw(st.integers(0, 255))
    path = tmp_path / "damaged.gguf"
    path.write_bytes(content)
    try:
        weights = open_checkpoint(path).weights
        for name in weights.names():
            weights.dense(name)
            weights.blocks(name)
    except SpecError as error:
        assert "\n" not in error.message
