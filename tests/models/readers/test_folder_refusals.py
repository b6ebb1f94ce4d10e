"""Hugging Face folders that are incomplete or of a variant that is not supported: one clear line each."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from tiny_models import edit_json, tiny_llama, tiny_qwen2

from spec_edge.models.contract import SpecError
from spec_edge.models.open import open_checkpoint

Save = Callable[..., Path]


@pytest.fixture
def llama(tmp_path: Path, save_folder: Save) -> Path:
    return save_folder(tiny_llama(), tmp_path / "model")


@pytest.fixture
def shards(tmp_path: Path, save_folder: Save) -> Path:
    return save_folder(tiny_llama(), tmp_path / "shards", max_shard_size="100KB")


def message(folder: Path) -> str:
    with pytest.raises(SpecError) as caught:
        open_checkpoint(folder)
    assert "\n" not in caught.value.message and len(caught.value.message) < 600
    return str(caught.value.message)


CONFIG: dict[str, tuple[dict[str, Any], str]] = {
    "activation": ({"hidden_act": "gelu"}, "'hidden_act' = 'gelu' is not supported"),
    "attention bias": ({"attention_bias": True}, "'attention_bias' = True is not supported for llama"),
    "mlp bias": ({"mlp_bias": True}, "'mlp_bias' = True"),
    "rope": ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "rope type 'yarn' is not supported"),
    "old rope": (
        {"rope_parameters": ..., "rope_scaling": {"type": "linear", "factor": 2.0}},
        "rope type 'linear' is not supported",
    ),
    "rope option": ({"rope_parameters": {"rope_type": "default", "factor": 2.0}}, "rope option 'factor'"),
    "llama3": ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "'low_freq_factor' must be a positive"),
    "partial": ({"partial_rotary_factor": 0.5}, "'partial_rotary_factor' = 0.5"),
    "partial in rope": (
        {"rope_parameters": {"partial_rotary_factor": 0.5}},
        "'partial_rotary_factor' is not supported",
    ),
    "window": ({"sliding_window": 1024}, "'sliding_window' is in use"),
    "window switch": ({"use_sliding_window": True}, "'sliding_window' is in use"),
    "layer types": ({"layer_types": ["sliding_attention", "full_attention"]}, "'layer_types'"),
    "quantised": ({"quantization_config": {"quant_method": "fp8"}}, "'quantization_config' = {'quant_method': 'fp8'}"),
    "experts": ({"num_local_experts": 8}, "'num_local_experts' = 8"),
    "code": ({"auto_map": {"AutoModel": "x.Y"}}, "'auto_map'"),
    "unknown": ({"logit_softcap": 30.0}, "'logit_softcap' = 30.0 is not supported"),
    "type": ({"model_type": "gemma2"}, "architecture 'gemma2' is not supported. Supported: llama, qwen2"),
    "odd type": ({"model_type": ["llama"]}, "no 'model_type'"),
    "class": ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
    "heads": ({"num_attention_heads": "four"}, "'num_attention_heads' must be a positive integer, not 'four'"),
    "limit": ({"hidden_size": 10**18}, "'hidden_size' must be below 2147483648, not 1000000000000000000"),
    "no size": ({"hidden_size": ...}, "'hidden_size' must be a positive integer, not None"),
    "division": ({"num_attention_heads": 5, "head_dim": ...}, "hidden_size 64 does not divide into 5 heads"),
    "eps": ({"rms_norm_eps": -1}, "'rms_norm_eps' must be a positive number"),
    "tied": ({"tie_word_embeddings": "yes"}, "'tie_word_embeddings' must be true or false"),
    "eos": ({"eos_token_id": "x"}, "'eos_token_id' must be a token id"),
    "eos range": ({"eos_token_id": 300}, "end-of-text id 300 is not one of the 259 tokens"),
    "vocabulary": ({"vocab_size": 100}, "'model.embed_tokens.weight' has shape [320, 64]"),
}


@pytest.mark.parametrize("name", CONFIG)
def test_unsupported_option_is_named(name: str, llama: Path) -> None:
    changes, expected = CONFIG[name]
    edit_json(llama / "config.json", **changes)
    assert expected in message(llama)


def test_settings_that_change_nothing_are_accepted(llama: Path) -> None:
    silent = {"attention_dropout": 0.1, "use_cache": True, "transformers.js_config": {"x": 1}, "is_llama_config": True}
    off = {"rope_interleaved": False, "mlp_bias": None, "quantization_config": None, "sliding_window": None}
    before = open_checkpoint(llama).config
    edit_json(llama / "config.json", **silent, **off)
    assert open_checkpoint(llama).config == before


def test_qwen2_window_counts_only_when_switched_on(tmp_path: Path, save_folder: Save) -> None:
    folder = save_folder(tiny_qwen2(), tmp_path / "model")
    edit_json(folder / "config.json", sliding_window=4096, use_sliding_window=False, max_window_layers=1)
    open_checkpoint(folder)
    edit_json(folder / "config.json", use_sliding_window=True)
    assert "'sliding_window' is in use" in message(folder)


FILES = {
    "config": ("config.json", None, "no config.json"),
    "bad config": ("config.json", b"{", "config.json is not valid JSON"),
    "list config": ("config.json", b"[]", "config.json must hold a JSON object"),
    "deep config": ("config.json", b"[" * 200_000, "config.json is not valid JSON"),
    "weights": ("model.safetensors", None, "has no model.safetensors and no model.safetensors.index.json"),
    "empty weights": ("model.safetensors", b"", "model.safetensors is truncated"),
    "huge header": ("model.safetensors", b"\xff" * 64, "is not a safetensors file"),
    "bad header": ("model.safetensors", struct.pack("<Q", 8) + b"notjson!", "is not a safetensors file"),
    "pickle": ("model.safetensors", b"\x80\x04\x95" + b"\0" * 64, "is truncated|is not a safetensors file"),
    "tokenizer": ("tokenizer.json", None, "has no tokenizer; tokenizer.json is needed"),
    "bad tokenizer": ("tokenizer.json", b"{}", "tokenizer.json is not usable"),
    "bad settings": ("tokenizer_config.json", b"7", "tokenizer_config.json must hold a JSON object"),
    "long template": ("chat_template.jinja", b"x" * 300_000, "chat_template.jinja has 300000 bytes; at most 262144"),
    "odd template": ("chat_template.jinja", b"\xff\xfe", "chat_template.jinja is not UTF-8"),
}


@pytest.mark.parametrize("name", FILES)
def test_missing_or_damaged_file_is_named(name: str, llama: Path) -> None:
    file, content, expected = FILES[name]
    if content is None:
        (llama / file).unlink()
    else:
        (llama / file).write_bytes(content)
    found = message(llama)
    assert any(part in found for part in expected.split("|"))


def test_sentencepiece_alone_is_not_enough(llama: Path) -> None:
    (llama / "tokenizer.json").rename(llama / "tokenizer.model")
    assert "has only a SentencePiece tokenizer.model; tokenizer.json is needed" in message(llama)


def test_truncated_weights_name_both_sizes(llama: Path) -> None:
    content = (llama / "model.safetensors").read_bytes()
    (llama / "model.safetensors").write_bytes(content[:-5])
    assert f"need {len(content)} bytes, the file has {len(content) - 5}" in message(llama)


def rewrite(folder: Path, **changes: Any) -> None:
    """Replace tensors of the folder's one weight file; None removes one."""
    tensors = {**load_file(folder / "model.safetensors"), **changes}
    save_file({n: t for n, t in tensors.items() if t is not None}, folder / "model.safetensors")


def test_unread_tensor_is_named(llama: Path) -> None:
    rewrite(llama, **{"model.layers.0.self_attn.q_norm.weight": np.ones(16, np.float32)})
    assert "does not read: model.layers.0.self_attn.q_norm.weight" in message(llama)


def test_old_rotary_buffers_are_not_read(llama: Path) -> None:
    rewrite(llama, **{"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(8, np.float32)})
    assert "model.layers.0.self_attn.rotary_emb.inv_freq" not in open_checkpoint(llama).weights.names()


def test_missing_tensor_is_named(llama: Path) -> None:
    rewrite(llama, **{"model.norm.weight": None})
    assert "no tensor 'model.norm.weight'" in message(llama)


def test_untied_model_without_a_head_is_an_error(llama: Path) -> None:
    rewrite(llama, **{"lm_head.weight": None})
    assert "no tensor 'lm_head.weight', and config.json says tie_word_embeddings = false" in message(llama)


def test_head_beside_tied_embeddings_is_not_read(llama: Path) -> None:
    edit_json(llama / "config.json", tie_word_embeddings=True)
    weights = open_checkpoint(llama).weights
    assert "lm_head.weight" not in weights.names()


def test_unsupported_tensor_type_is_named(llama: Path) -> None:
    rewrite(llama, **{"model.norm.weight": np.ones(64, np.int8)})
    assert "'model.norm.weight' is of type I8, which is not supported. Supported: F32, F16, BF16" in message(llama)


def test_weight_that_is_not_finite_is_an_error(llama: Path) -> None:
    rewrite(llama, **{"model.norm.weight": np.full(64, np.nan, np.float32)})
    with pytest.raises(SpecError, match="not a finite number"):
        open_checkpoint(llama).weights.dense("model.norm.weight")


@pytest.mark.parametrize("name", ["../m.safetensors", "/etc/x.safetensors", "a\\b.safetensors", "C:x.safetensors", 7])
def test_shard_outside_the_folder_is_refused(name: object, shards: Path) -> None:
    index = shards / "model.safetensors.index.json"
    content = json.loads(index.read_text(encoding="utf-8"))
    content["weight_map"]["model.norm.weight"] = name
    index.write_text(json.dumps(content), encoding="utf-8")
    assert "only .safetensors files in the folder are read" in message(shards)


def test_missing_shard_is_named(shards: Path) -> None:
    first = min(shards.glob("*.safetensors"))
    first.unlink()
    assert f"it has no file {first.name}" in message(shards)


def test_tensor_in_two_shards_is_an_error(shards: Path) -> None:
    first, second, *_ = sorted(shards.glob("*.safetensors"))
    twice = next(iter(load_file(first)))
    save_file({**load_file(second), twice: load_file(first)[twice]}, second)
    assert f"tensor '{twice}' is in two files" in message(shards)


def test_index_that_disagrees_with_the_files_is_an_error(shards: Path) -> None:
    index = shards / "model.safetensors.index.json"
    content = json.loads(index.read_text(encoding="utf-8"))
    content["weight_map"]["extra"] = min(content["weight_map"].values())
    index.write_text(json.dumps(content), encoding="utf-8")
    assert "tensor 'extra' is not in the file" in message(shards)


def test_end_ids_and_template_of_every_file(llama: Path) -> None:
    edit_json(llama / "config.json", eos_token_id=[257])
    edit_json(llama / "generation_config.json", eos_token_id=258)
    text = open_checkpoint(llama).text
    assert text.eos_ids == (256, 257, 258)
    assert (text.tokens, text.bos_id, text.add_bos, text.chat_template) == (259, 256, False, "{{ messages }}")
    (llama / "chat_template.jinja").write_text("{{ file }}", encoding="utf-8")
    assert open_checkpoint(llama).text.chat_template == "{{ file }}"


def test_template_list_gives_the_default_one(llama: Path) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    edit_json(llama / "tokenizer_config.json", chat_template=named)
    assert open_checkpoint(llama).text.chat_template == "plain"


@given(data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_safetensors_never_crash(data: st.DataObject, llama: Path) -> None:
    path = llama / "model.safetensors"
    sound = path.read_bytes()
    header = int.from_bytes(sound[:8], "little")
    content = bytearray(sound)
    for at in data.draw(st.lists(st.integers(0, header + 8), min_size=1, max_size=4)):
        content[at] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        open_checkpoint(llama)
    except SpecError as error:
        assert "\n" not in error.message
    finally:
        path.write_bytes(sound)
