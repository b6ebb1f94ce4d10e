"""What every weight reader gives: a checkpoint as the families and the exporter see it.

Tensor names are Hugging Face's (`model.layers.0.self_attn.q_proj.weight`), whatever the file calls them,
and q/k rows are in the half-split rotary order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from spec_edge.models.blockwise import BlockTensor
from spec_edge.models.contract import Source


@dataclass(frozen=True)
class RopeScaling:
    """Llama 3's rope scaling (config key `rope_scaling`, rope_type "llama3")."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


@dataclass(frozen=True)
class ModelConfig:
    """A decoder-only model with RMS norm, rotary embedding, grouped K/V heads and a SwiGLU MLP."""

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    rope_factors: tuple[float, ...] | None
    """Divisors of the inverse frequencies [D/2] where the file states them (GGUF rope_freqs.weight), else None."""
    tied: bool
    qkv_bias: bool
    context: int


class Weights(Protocol):
    """Tensors by name, read lazily: nothing is kept between calls."""

    def names(self) -> frozenset[str]: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def dense(self, name: str) -> NDArray[np.float32]:
        """float32; [out, in] for a matrix."""
        ...

    def blocks(self, name: str) -> BlockTensor | None:
        """The file's own quantised values, or None where the tensor is not quantised."""
        ...


@dataclass(frozen=True)
class TextFiles:
    """Tokenizer and template as they go into the bundle. `eos_ids`: every end id that any of the files names."""

    tokenizer_json: bytes
    chat_template: str | None
    tokens: int
    bos_id: int | None
    add_bos: bool
    eos_ids: tuple[int, ...]


@dataclass(frozen=True)
class Checkpoint:
    """An opened model. `source.sha256` of a folder is the SHA-256 over "name sha256" lines of its weight files."""

    name: str
    config: ModelConfig
    weights: Weights
    text: TextFiles
    source: Source
