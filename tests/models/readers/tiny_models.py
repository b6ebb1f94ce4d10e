"""Tiny checkpoints: transformers makes the models, gguf writes GGUF files of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VOCAB = 320
"""Embedding rows; the tokenizer has fewer tokens, as in padded models."""

SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 256,
    "eos_token_id": 258,
    "attn_implementation": "eager",
}


def _randomised(model: PreTrainedModel) -> PreTrainedModel:
    """Weights and biases large enough that a wrong order of rows or a lost bias shows in the logits."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, value in model.named_parameters():
            noise = torch.randn(value.shape, generator=generator)
            if "norm" in name:
                value.copy_(1 + noise * 0.1)
            else:
                value.copy_(noise * (0.5 if value.ndim == 1 else 2 / value.shape[-1] ** 0.5))
    return model.eval()


def tiny_llama(**changes: Any) -> PreTrainedModel:
    return _randomised(LlamaForCausalLM(LlamaConfig(**{**SIZES, "tie_word_embeddings": False, **changes})))


def tiny_qwen2(**changes: Any) -> PreTrainedModel:
    return _randomised(Qwen2ForCausalLM(Qwen2Config(**{**SIZES, "tie_word_embeddings": False, **changes})))


def edit_json(path: Path, **changes: Any) -> None:
    """Set keys of a JSON file; a value of `...` removes the key."""
    content = json.loads(path.read_text(encoding="utf-8"))
    content.update(changes)
    kept = {key: value for key, value in content.items() if value is not ...}
    path.write_text(json.dumps(kept), encoding="utf-8")


STEMS = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_tensor_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if not stem.startswith("model.layers."):
        return f"{STEMS[stem]}.{kind}"
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}.{STEMS[rest]}.{kind}"


def interleaved(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """q or k rows as converters write them for the GGUF architecture "llama"."""
    return weight.reshape(heads, 2, -1, weight.shape[-1]).swapaxes(1, 2).reshape(weight.shape)


def tokenizer_keys(tokens: list[str], merges: list[tuple[str, str]], pre: str, types: list[int]) -> dict[str, Any]:
    """Tokenizer metadata; the last three tokens are those of `SPECIALS`."""
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [f"{a} {b}" for a, b in merges],
        "tokenizer.ggml.bos_token_id": len(tokens) - 3,
        "tokenizer.ggml.eos_token_id": len(tokens) - 1,
    }


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    kinds = {list: writer.add_array, bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
    if value != []:  # the writer cannot tell an empty array's type
        kinds.get(type(value), writer.add_string)(key, value)


def write_gguf(path: Path, arch: str, keys: dict[str, Any], tensors: dict[str, tuple[NDArray[Any], str]]) -> Path:
    """Write tensors (float32 values, type to store them as) under GGUF names."""
    writer = gguf.GGUFWriter(path, arch)
    for key, value in keys.items():
        _add(writer, key, value)
    for name, (values, kind) in tensors.items():
        quant = gguf.GGMLQuantizationType[kind]
        plain = kind in ("F32", "F16")
        writer.add_tensor(name, gguf.quants.quantize(values, quant), raw_dtype=None if plain else quant)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_keys(model: PreTrainedModel, changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """Metadata of a tiny model with a byte tokenizer; a value of `...` in `changes` removes the key."""
    config = model.config
    arch = config.model_type
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens, merges = [*alphabet, "Ġt", *SPECIALS], [("Ġ", "t")]
    keys = {
        f"{arch}.block_count": config.num_hidden_layers,
        f"{arch}.context_length": config.max_position_embeddings,
        f"{arch}.embedding_length": config.hidden_size,
        f"{arch}.feed_forward_length": config.intermediate_size,
        f"{arch}.attention.head_count": config.num_attention_heads,
        f"{arch}.attention.head_count_kv": config.num_key_value_heads,
        f"{arch}.rope.freq_base": float(config.rope_parameters["rope_theta"]),
        f"{arch}.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        **tokenizer_keys(tokens, merges, "gpt-2", [1] * 257 + [3] * 3),
        **(changes or {}),
    }
    return {key: value for key, value in keys.items() if value is not ...}


def gguf_tensors(model: PreTrainedModel, kind: str = "F32") -> dict[str, tuple[NDArray[Any], str]]:
    """The model's tensors as a converter writes them: matrices of type `kind`, the rest F32."""
    config = model.config
    heads = {"q_proj.weight": config.num_attention_heads, "k_proj.weight": config.num_key_value_heads}
    found: dict[str, tuple[NDArray[Any], str]] = {}
    for name, tensor in model.state_dict().items():
        if config.tie_word_embeddings and name == "lm_head.weight":
            continue
        values = tensor.float().numpy()
        count = next((n for ending, n in heads.items() if name.endswith(ending)), None)
        if config.model_type == "llama" and count is not None:
            values = interleaved(values, count)
        found[gguf_tensor_name(name)] = (np.ascontiguousarray(values), kind if values.ndim == 2 else "F32")
    return found


def transformers_logits(model: PreTrainedModel, ids: NDArray[np.int64]) -> NDArray[np.float32]:
    with torch.no_grad():
        found: NDArray[np.float32] = model(torch.from_numpy(ids)[None]).logits[0].float().numpy()
    return found
