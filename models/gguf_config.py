"""GGUF metadata enters; the `ModelConfig` of a Llama-like decoder leaves.

A key of the architecture that changes the network and is not carried out is refused by name; so is a key that
nobody knows, unless it is off.
"""

from __future__ import annotations

from spec_edge.models.checkpoint import ModelConfig
from spec_edge.models.contract import SpecError
from spec_edge.models.family import Shapes, check_config
from spec_edge.models.gguf_file import Meta, integer, real, typed

_GGUF_READ = frozenset(
    {
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.layer_norm_rms_epsilon",
        "attention.value_length",
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "rope.dimension_count",
        "rope.freq_base",
        "rope.scaling.type",
        "vocab_size",
    }
)
_GGUF_SILENT = frozenset({"rope.scaling.finetuned", "rope.scaling.original_context_length", "tensor_data_layout"})


def _refuse_unknown_gguf(meta: Meta, prefix: str) -> None:
    """Any other key of the architecture must be off: false or zero."""
    kind = typed(meta, f"{prefix}rope.scaling.type", str, "none")
    if kind != "none":
        raise SpecError(f"GGUF key '{prefix}rope.scaling.type' = '{kind}' is not supported; only none is")
    for key in sorted(k for k in meta if k.startswith(prefix)):
        value = meta[key]
        off = not isinstance(value, tuple) and not hasattr(value, "shape") and value in (0, False, "")
        if key.removeprefix(prefix) not in _GGUF_READ | _GGUF_SILENT and not off:
            raise SpecError(f"GGUF key '{key}' = {str(value)[:60]} is not supported")


def _gguf_head_dim(meta: Meta, prefix: str, hidden: int, heads: int) -> int:
    dim = integer(meta, f"{prefix}attention.key_length", hidden // max(heads, 1))
    for key in ("attention.value_length", "rope.dimension_count"):
        if (value := integer(meta, prefix + key, dim)) != dim:
            raise SpecError(f"GGUF key '{prefix}{key}' = {value} is not supported; the head dimension {dim} is")
    return dim


def decoder_from_gguf(meta: Meta, shapes: Shapes, name: str, qkv_bias: bool) -> ModelConfig:
    """ModelConfig of a family that differs from Llama by its biases only; `rope_factors` is left to the reader."""
    prefix = f"{name}."
    _refuse_unknown_gguf(meta, prefix)
    hidden, heads = integer(meta, prefix + "embedding_length"), integer(meta, prefix + "attention.head_count")
    if "token_embd.weight" not in shapes:
        raise SpecError("the GGUF file has no tensor 'token_embd.weight': it is incomplete or of another architecture")
    vocab = shapes["token_embd.weight"][0]
    if (said := integer(meta, prefix + "vocab_size", vocab)) != vocab:
        raise SpecError(f"GGUF key '{prefix}vocab_size' = {said}, but token_embd.weight has {vocab} rows")
    return check_config(
        ModelConfig(
            family=name,
            vocab_size=vocab,
            hidden_size=hidden,
            intermediate_size=integer(meta, prefix + "feed_forward_length"),
            layers=integer(meta, prefix + "block_count"),
            heads=heads,
            kv_heads=integer(meta, prefix + "attention.head_count_kv", heads),
            head_dim=_gguf_head_dim(meta, prefix, hidden, heads),
            norm_eps=real(meta, prefix + "attention.layer_norm_rms_epsilon"),
            rope_theta=real(meta, prefix + "rope.freq_base", 10000.0),
            rope_scaling=None,
            rope_factors=None,
            tied="output.weight" not in shapes,
            qkv_bias=qkv_bias,
            context=integer(meta, prefix + "context_length"),
        )
    )
