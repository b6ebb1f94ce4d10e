"""Opened checkpoints against transformers: logits of tiny models, from folders and from GGUF files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tiny_models import edit_json, gguf_keys, gguf_tensors, tiny_llama, tiny_qwen2, transformers_logits, write_gguf
from tokenizers import Tokenizer
from transformers import LlamaConfig, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from spec_edge.models.open import open_checkpoint
from spec_edge.models.reference import forward, inv_freq, logits

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
MODELS: dict[str, tuple[Callable[..., PreTrainedModel], dict[str, Any]]] = {
    "llama": (tiny_llama, {}),
    "llama tied": (tiny_llama, {"tie_word_embeddings": True}),
    "llama head_dim": (tiny_llama, {"head_dim": 32}),
    "llama rope": (tiny_llama, {"rope_parameters": LLAMA3}),
    "llama theta": (tiny_llama, {"rope_parameters": {"rope_type": "default", "rope_theta": 123456.0}}),
    "qwen2": (tiny_qwen2, {}),
    "qwen2 tied": (tiny_qwen2, {"tie_word_embeddings": True}),
    "qwen2 no groups": (tiny_qwen2, {"num_key_value_heads": 4}),
}
TOLERANCE = 5e-5
Save = Callable[..., Path]


@pytest.fixture
def ids() -> NDArray[np.int64]:
    return np.random.default_rng(5).integers(0, 256, 100)


@pytest.mark.parametrize("name", MODELS)
def test_folder_gives_transformers_logits(name: str, tmp_path: Path, save_folder: Save, ids: NDArray[np.int64]) -> None:
    make, changes = MODELS[name]
    model = make(**changes)
    checkpoint = open_checkpoint(save_folder(model, tmp_path / "model"))
    found = logits(checkpoint.config, checkpoint.weights, ids)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, transformers_logits(model, ids), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", [n for n in MODELS if n != "llama rope"])
def test_gguf_gives_the_folders_weights_and_logits(
    name: str, tmp_path: Path, save_folder: Save, ids: NDArray[np.int64]
) -> None:
    make, changes = MODELS[name]
    model = make(**changes)
    folder = open_checkpoint(save_folder(model, tmp_path / "model"))
    dim = folder.config.head_dim
    arch = model.config.model_type
    sizes = {f"{arch}.attention.key_length": dim, f"{arch}.attention.value_length": dim}
    path = write_gguf(tmp_path / "tiny.gguf", arch, gguf_keys(model, sizes), gguf_tensors(model))
    file = open_checkpoint(path)
    assert file.weights.names() == folder.weights.names()
    for tensor in folder.weights.names():
        assert file.weights.shape(tensor) == folder.weights.shape(tensor)
        np.testing.assert_array_equal(file.weights.dense(tensor), folder.weights.dense(tensor), err_msg=tensor)
    found = logits(file.config, file.weights, ids)
    np.testing.assert_allclose(found, transformers_logits(model, ids), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("make", [tiny_llama, tiny_qwen2])
def test_quantised_rows_have_the_order_of_dense_ones(make: Callable[..., PreTrainedModel], tmp_path: Path) -> None:
    model = make()
    arch = model.config.model_type
    path = write_gguf(tmp_path / "tiny.gguf", arch, gguf_keys(model), gguf_tensors(model, "Q8_0"))
    weights = open_checkpoint(path).weights
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    packed = 0
    for name in weights.names():
        blocks = weights.blocks(name)
        if blocks is None:
            assert weights.dense(name).ndim == 1
            continue
        packed += 1
        np.testing.assert_array_equal(blocks.dense(), weights.dense(name))
        assert np.abs(blocks.dense() - state[name]).max() < np.abs(state[name]).max() / 100
    assert packed == 2 * 7 + 2


def test_gguf_rope_factors_are_the_llama3_scaling(tmp_path: Path, ids: NDArray[np.int64]) -> None:
    model = tiny_llama(rope_parameters=LLAMA3)
    plain = LLAMA3["rope_theta"] ** -(np.arange(0, 16, 2) / 16)  # type: ignore[operator]
    factors = (plain / model.model.rotary_emb.inv_freq.numpy()).astype(np.float32)
    tensors = {**gguf_tensors(model), "rope_freqs.weight": (factors, "F32")}
    checkpoint = open_checkpoint(write_gguf(tmp_path / "tiny.gguf", "llama", gguf_keys(model), tensors))
    assert checkpoint.config.rope_factors is not None and checkpoint.config.rope_factors[0] == pytest.approx(1.0)
    found = logits(checkpoint.config, checkpoint.weights, ids)
    np.testing.assert_allclose(found, transformers_logits(model, ids), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("context", [64, 8192])
def test_llama3_frequencies_equal_transformers(context: int, tmp_path: Path, save_folder: Save) -> None:
    rope = {**LLAMA3, "rope_theta": 500000.0, "original_max_position_embeddings": context}
    model = tiny_llama(rope_parameters=rope, head_dim=64)
    checkpoint = open_checkpoint(save_folder(model, tmp_path / "model"))
    found, scale = inv_freq(checkpoint.config)
    theirs = LlamaRotaryEmbedding(LlamaConfig(**model.config.to_dict()))
    np.testing.assert_allclose(found, theirs.inv_freq.numpy(), rtol=1e-6)
    assert scale == theirs.attention_scaling


def test_older_rope_keys_mean_the_same(tmp_path: Path, save_folder: Save) -> None:
    folder = save_folder(tiny_llama(rope_parameters=LLAMA3), tmp_path / "model")
    now = open_checkpoint(folder).config
    scaling = {key: value for key, value in LLAMA3.items() if key not in ("rope_theta", "rope_type")}
    old = {"rope_theta": 5000.0, "rope_scaling": {**scaling, "type": "llama3"}}
    edit_json(folder / "config.json", rope_parameters=..., **old)
    assert open_checkpoint(folder).config == now


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights_are_exact(dtype: torch.dtype, tmp_path: Path, save_folder: Save) -> None:
    model = tiny_llama().to(dtype)
    checkpoint = open_checkpoint(save_folder(model, tmp_path / "model"))
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(checkpoint.weights.dense(name), value.float().numpy())
        assert checkpoint.weights.blocks(name) is None


def test_shards_are_the_same_model(tmp_path: Path, save_folder: Save) -> None:
    model = tiny_qwen2()
    whole = open_checkpoint(save_folder(model, tmp_path / "whole"))
    folder = save_folder(model, tmp_path / "shards", max_shard_size="100KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    shards = open_checkpoint(folder)
    for name in whole.weights.names():
        np.testing.assert_array_equal(shards.weights.dense(name), whole.weights.dense(name))
    assert shards.weights.names() == whole.weights.names()
    assert shards.source.bytes == sum(f.stat().st_size for f in folder.glob("*.safetensors"))


def test_texts_do_not_see_each_other(tmp_path: Path, save_folder: Save, ids: NDArray[np.int64]) -> None:
    checkpoint = open_checkpoint(save_folder(tiny_llama(), tmp_path / "model"))
    texts = [ids, ids[:7], ids[50:]]
    together = np.concatenate(list(forward(checkpoint.config, checkpoint.weights, texts)))
    alone = [logits(checkpoint.config, checkpoint.weights, text) for text in texts]
    np.testing.assert_allclose(together, np.concatenate(alone), rtol=0, atol=TOLERANCE)


def test_logits_come_in_pieces(tmp_path: Path, save_folder: Save) -> None:
    checkpoint = open_checkpoint(save_folder(tiny_llama(), tmp_path / "model"))
    pieces = [len(p) for p in forward(checkpoint.config, checkpoint.weights, [[1] * 200, [2] * 200])]
    assert sum(pieces) == 400 and max(pieces) <= 256


@pytest.mark.real
def test_smollm2_equals_transformers_reading_of_the_same_file(
    smollm2_gguf: Path, smollm2_in_transformers: dict[str, Any]
) -> None:
    """transformers undoes the permutation of q and k by code of its own."""
    checkpoint = open_checkpoint(smollm2_gguf)
    model, theirs = smollm2_in_transformers["model"], smollm2_in_transformers["tensors"]
    assert theirs.keys() == checkpoint.weights.names()
    differing = [n for n in theirs if not np.array_equal(checkpoint.weights.dense(n), theirs[n].numpy())]
    assert differing == []
    text = "Gravity is a force by which all things with mass attract one another. In 1687 Newton wrote of it."
    ids = np.array(Tokenizer.from_str(checkpoint.text.tokenizer_json.decode()).encode(text * 3).ids[:60])
    assert len(ids) == 60
    found = logits(checkpoint.config, checkpoint.weights, ids)
    assert np.abs(found - transformers_logits(model, ids)).max() < 2e-4
