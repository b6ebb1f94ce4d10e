"""config.json files as published with well-known models are read; the sizes are the models' own."""

from __future__ import annotations

from typing import Any

import pytest

from spec_edge.models import llama, qwen2
from spec_edge.models.checkpoint import RopeScaling
from spec_edge.models.family import Family, family, gguf_names, tensor_shapes

SMOLLM2: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 576,
    "initializer_range": 0.041666666666666664,
    "intermediate_size": 1536,
    "is_llama_config": True,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "pad_token_id": 2,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_interleaved": False,
    "rope_scaling": None,
    "rope_theta": 100000,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16", "fp16": "float16"}},
    "transformers_version": "4.42.3",
    "use_cache": True,
    "vocab_size": 49152,
}
LLAMA32: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 128256,
}
QWEN25: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "hidden_act": "silu",
    "hidden_size": 896,
    "initializer_range": 0.02,
    "intermediate_size": 4864,
    "max_position_embeddings": 32768,
    "max_window_layers": 21,
    "model_type": "qwen2",
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}


def test_smollm2() -> None:
    config = llama.config_from_hf(SMOLLM2)
    assert (config.layers, config.heads, config.kv_heads, config.head_dim) == (30, 9, 3, 64)
    assert (config.rope_theta, config.rope_scaling, config.tied, config.context) == (100000.0, None, True, 8192)
    assert len(tensor_shapes(config)) == 272


def test_llama32() -> None:
    config = llama.config_from_hf(LLAMA32)
    assert config.rope_scaling == RopeScaling(32.0, 1.0, 4.0, 8192)
    assert tensor_shapes(config)["model.layers.15.self_attn.k_proj.weight"] == (512, 2048)


def test_qwen25() -> None:
    config = qwen2.config_from_hf(QWEN25)
    assert config.qkv_bias and config.rope_theta == 1e6
    assert tensor_shapes(config)["model.layers.0.self_attn.q_proj.bias"] == (896,)


@pytest.mark.parametrize("config", [SMOLLM2, LLAMA32, QWEN25])
def test_every_tensor_has_one_gguf_name(config: dict[str, Any]) -> None:
    found = family(config["model_type"], "here").config_from_hf(config)
    names = gguf_names(found)
    assert names.keys() == tensor_shapes(found).keys()
    assert len(set(names.values())) == len(names)


@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_families_meet_their_contract(name: str) -> None:
    found = family(name, "here")
    assert isinstance(found, Family) and found.name == name and found.hf_architectures
