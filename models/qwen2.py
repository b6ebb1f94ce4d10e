"""Qwen2 and Qwen2.5: Llama's network with biases on q, k and v."""

from __future__ import annotations

from spec_edge.models.checkpoint import ModelConfig
from spec_edge.models.family import Family, Json, Shapes
from spec_edge.models.gguf_config import decoder_from_gguf
from spec_edge.models.gguf_file import Meta
from spec_edge.models.hf_config import decoder_from_hf


def config_from_hf(config: Json) -> ModelConfig:
    """config.json of a Qwen2ForCausalLM; SpecError naming an option that is not supported."""
    return decoder_from_hf(config, "qwen2", ("default",), qkv_bias=True)


def config_from_gguf(meta: Meta, shapes: Shapes) -> ModelConfig:
    """Metadata of architecture "qwen2"; SpecError naming an option that is not supported."""
    return decoder_from_gguf(meta, shapes, "qwen2", qkv_bias=True)


FAMILY = Family(
    name="qwen2",
    hf_architectures=("Qwen2ForCausalLM",),
    config_from_hf=config_from_hf,
    config_from_gguf=config_from_gguf,
    permuted_qk=False,
    rope_factors=False,
)
