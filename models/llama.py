"""Llama and what shares its network (SmolLM2, Llama 2 and 3): no biases, optional Llama 3 rope scaling."""

from __future__ import annotations

from spec_edge.models.checkpoint import ModelConfig
from spec_edge.models.family import Family, Json, Shapes
from spec_edge.models.gguf_config import decoder_from_gguf
from spec_edge.models.gguf_file import Meta
from spec_edge.models.hf_config import decoder_from_hf


def config_from_hf(config: Json) -> ModelConfig:
    """config.json of a LlamaForCausalLM; SpecError naming an option that is not supported."""
    return decoder_from_hf(config, "llama", ("default", "llama3"), qkv_bias=False)


def config_from_gguf(meta: Meta, shapes: Shapes) -> ModelConfig:
    """Metadata of architecture "llama"; SpecError naming an option that is not supported."""
    return decoder_from_gguf(meta, shapes, "llama", qkv_bias=False)


FAMILY = Family(
    name="llama",
    hf_architectures=("LlamaForCausalLM",),
    config_from_hf=config_from_hf,
    config_from_gguf=config_from_gguf,
    permuted_qk=True,
    rope_factors=True,
)
