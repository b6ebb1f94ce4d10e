"""A config.json enters; the `ModelConfig` of a Llama-like decoder leaves.

A setting that changes the network and is not carried out is refused by name; so is a key that nobody knows,
unless it is off.
"""

from __future__ import annotations

from math import isfinite

from spec_edge.models.checkpoint import ModelConfig, RopeScaling
from spec_edge.models.contract import SpecError
from spec_edge.models.family import Json, check_config

_HF_SILENT = frozenset(
    {
        "_model_name_or_path",
        "_name_or_path",
        "architectures",
        "attention_dropout",
        "base_model_name_or_path",
        "bos_token_id",
        "chunk_size_feed_forward",
        "cls_token_id",
        "dtype",
        "eos_token_id",
        "id2label",
        "initializer_range",
        "is_llama_config",
        "label2id",
        "mask_token_id",
        "max_window_layers",
        "medusa_num_heads",
        "medusa_num_layers",
        "model_type",
        "pad_token_id",
        "pretraining_tp",
        "return_dict",
        "sep_token_id",
        "tokenizer_class",
        "torch_dtype",
        "transformers.js_config",
        "transformers_version",
        "unk_token_id",
        "unsloth_fixed",
        "unsloth_version",
        "use_cache",
    }
)
"""Keys of config.json that do not change the logits of these networks."""
_HF_READ = frozenset(
    {
        "head_dim",
        "hidden_act",
        "hidden_size",
        "intermediate_size",
        "layer_types",
        "max_position_embeddings",
        "num_attention_heads",
        "num_hidden_layers",
        "num_key_value_heads",
        "rms_norm_eps",
        "rope_parameters",
        "rope_scaling",
        "rope_theta",
        "sliding_window",
        "tie_word_embeddings",
        "use_sliding_window",
        "vocab_size",
    }
)
_HF_ROPE = frozenset({"rope_type", "type", "rope_theta", "partial_rotary_factor"})
_HF_LLAMA3 = frozenset({"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"})

MOST = 1 << 31
"""Integers of a config.json are below this."""


def _where(key: str) -> str:
    return f"config.json: '{key}'"


def hf_integer(config: Json, key: str, default: int | None = None) -> int:
    value = config.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SpecError(f"{_where(key)} must be a positive integer, not {value!r}")
    if value >= MOST:
        raise SpecError(f"{_where(key)} must be below {MOST}, not {value}")
    return value


def hf_real(config: Json, key: str, default: float | None = None) -> float:
    value = config.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not (value > 0 and isfinite(value)):
        raise SpecError(f"{_where(key)} must be a positive number, not {value!r}")
    return float(value)


def _hf_rope(config: Json, kinds: tuple[str, ...]) -> tuple[float, RopeScaling | None]:
    """(theta, scaling) from `rope_parameters`, or from the older `rope_theta` and `rope_scaling`."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise SpecError(f"{_where('rope_parameters')} must be an object")
    theta = hf_real({**config, **rope}, "rope_theta", 10000.0)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in kinds:
        raise SpecError(f"config.json: rope type '{kind}' is not supported. Supported: {', '.join(kinds)}")
    if rope.get("partial_rotary_factor") not in (None, 1, 1.0):
        raise SpecError(f"{_where('partial_rotary_factor')} is not supported")
    allowed = _HF_ROPE | _HF_LLAMA3 if kind == "llama3" else _HF_ROPE
    if extra := sorted(k for k, v in rope.items() if k not in allowed and v is not None):
        raise SpecError(f"config.json: rope option '{extra[0]}' is not supported with rope type '{kind}'")
    if kind != "llama3":
        return theta, None
    low, high = hf_real(rope, "low_freq_factor"), hf_real(rope, "high_freq_factor")
    if high <= low:
        raise SpecError(f"{_where('high_freq_factor')} must be above low_freq_factor, not {high} and {low}")
    original = hf_integer(rope, "original_max_position_embeddings")
    return theta, RopeScaling(hf_real(rope, "factor"), low, high, original)


def _refuse_windows(config: Json) -> None:
    """A sliding window is in use where the switch is on, or where there is a window and no switch."""
    layers = config.get("layer_types") or []
    if not isinstance(layers, list) or any(kind != "full_attention" for kind in layers):
        raise SpecError(f"{_where('layer_types')} asks for attention other than full_attention, which is not supported")
    if config.get("use_sliding_window", config.get("sliding_window") is not None):
        raise SpecError(f"{_where('sliding_window')} is in use, which is not supported")


def _refuse_unknown(config: Json, name: str) -> None:
    """Any other key must be off: None, False, or an empty object."""
    for key in sorted(config.keys() - _HF_SILENT - _HF_READ):
        value = config[key]
        if not (value is None or value is False or value == {} or value == []):
            raise SpecError(f"{_where(key)} = {str(value)[:60]} is not supported for {name}")


def decoder_from_hf(config: Json, name: str, rope_kinds: tuple[str, ...], qkv_bias: bool) -> ModelConfig:
    """ModelConfig of a family that differs from Llama by its biases and rope types only."""
    _refuse_unknown(config, name)
    _refuse_windows(config)
    if (act := config.get("hidden_act", "silu")) != "silu":
        raise SpecError(f"{_where('hidden_act')} = '{act}' is not supported; only silu is")
    tied = config.get("tie_word_embeddings") or False
    if not isinstance(tied, bool):
        raise SpecError(f"{_where('tie_word_embeddings')} must be true or false, not {tied!r}")
    theta, scaling = _hf_rope(config, rope_kinds)
    hidden, heads = hf_integer(config, "hidden_size"), hf_integer(config, "num_attention_heads")
    if config.get("head_dim") is None and hidden % heads:
        raise SpecError(f"config.json: hidden_size {hidden} does not divide into {heads} heads, and head_dim is absent")
    return check_config(
        ModelConfig(
            family=name,
            vocab_size=hf_integer(config, "vocab_size"),
            hidden_size=hidden,
            intermediate_size=hf_integer(config, "intermediate_size"),
            layers=hf_integer(config, "num_hidden_layers"),
            heads=heads,
            kv_heads=hf_integer(config, "num_key_value_heads", heads),
            head_dim=hf_integer(config, "head_dim", hidden // heads),
            norm_eps=hf_real(config, "rms_norm_eps", 1e-6),
            rope_theta=theta,
            rope_scaling=scaling,
            rope_factors=None,
            tied=tied,
            qkv_bias=qkv_bias,
            context=hf_integer(config, "max_position_embeddings"),
        )
    )
