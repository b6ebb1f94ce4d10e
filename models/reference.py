"""The network in plain numpy, to check graphs against: a config, weights and token ids enter; logits leave.

Layers are dequantised once per call, one at a time, for all texts together. float32, with norms and softmax
sums in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from spec_edge.models.checkpoint import ModelConfig, RopeScaling, Weights

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
Ids = Sequence[int] | NDArray[np.integer]
Seen = Callable[[str, F32], None]

_ROWS = 256
"""Rows of logits that `forward` gives at a time."""


def inv_freq(config: ModelConfig) -> tuple[F64, float]:
    """(inverse frequencies [D / 2], factor on cos and sin) of the rotary embedding."""
    exponent = np.arange(0, config.head_dim, 2, dtype=np.float64) / config.head_dim
    plain = config.rope_theta**-exponent
    if config.rope_factors is not None:
        return plain / np.array(config.rope_factors), 1.0
    return (plain if config.rope_scaling is None else _llama3(plain, config.rope_scaling)), 1.0


def _llama3(plain: F64, scaling: RopeScaling) -> F64:
    """Llama 3.1's rule: long wavelengths are stretched by `factor`, short ones kept, those between blended."""
    turns = scaling.original_context * plain / (2 * np.pi)
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = np.clip(blend, 0.0, 1.0)
    return plain / scaling.factor * (1 - blend) + plain * blend


def rms_norm(x: F32, weight: F32, eps: float) -> F32:
    """x [n, H] / sqrt(mean(x ** 2) + eps) * weight (Zhang and Sennrich 2019)."""
    mean = np.einsum("nh,nh->n", x, x, dtype=np.float64) / x.shape[1]
    factor: F32 = (1.0 / np.sqrt(mean + eps)).astype(np.float32)
    return x * factor[:, None] * weight


def _rotate(x: F32, cos: F32, sin: F32) -> F32:
    """Rotary embedding of x [n, heads, D], half-split pairing; cos, sin [n, 1, D / 2]."""
    low, high = np.split(x, 2, axis=-1)
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)


def _angles(config: ModelConfig, lengths: Sequence[int]) -> tuple[F32, F32]:
    """cos and sin [sum of lengths, 1, D / 2]; positions of each text begin at 0."""
    frequencies, scale = inv_freq(config)
    positions = np.concatenate([np.arange(n) for n in lengths])
    angle = positions[:, None, None] * frequencies
    return (np.cos(angle) * scale).astype(np.float32), (np.sin(angle) * scale).astype(np.float32)


def _attend(q: F32, k: F32, v: F32) -> F32:
    """Causal attention of one text: q [n, H, D], k and v [n, KVH, D] -> [n, H * D]."""
    n, heads, dim = q.shape
    groups = heads // k.shape[1]
    future = np.triu(np.full((n, n), -np.inf, np.float32), 1)
    out = np.empty((n, heads, dim), np.float32)
    for head in range(heads):
        scores = q[:, head] @ k[:, head // groups].T
        scores *= np.float32(dim**-0.5)
        scores += future
        scores -= scores.max(axis=1, keepdims=True)
        np.exp(scores, out=scores)
        total = scores.sum(axis=1, keepdims=True, dtype=np.float64)
        out[:, head] = (scores @ v[:, head // groups]) / total
    return out.reshape(n, heads * dim)


def _project(weights: Weights, name: str, x: F32, bias: bool) -> F32:
    y: F32 = x @ weights.dense(f"{name}.weight").T
    return y + weights.dense(f"{name}.bias") if bias else y


def _unseen(name: str, x: F32) -> None:
    """Nobody looks."""


def attention(
    config: ModelConfig, weights: Weights, layer: str, x: F32, lengths: Sequence[int], seen: Seen = _unseen
) -> F32:
    """Self-attention of texts one after another, x [sum of lengths, what q, k and v read], their output projected."""
    seen(f"{layer}.self_attn.qkv", x)
    sizes = {"q": config.heads, "k": config.kv_heads, "v": config.kv_heads}
    q, k, v = (
        _project(weights, f"{layer}.self_attn.{part}_proj", x, config.qkv_bias).reshape(len(x), heads, config.head_dim)
        for part, heads in sizes.items()
    )
    cos, sin = _angles(config, lengths)
    q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
    cuts = np.cumsum(lengths)[:-1]
    texts = zip(np.split(q, cuts), np.split(k, cuts), np.split(v, cuts), strict=True)
    name = f"{layer}.self_attn.o_proj"
    joined = np.concatenate([_attend(*t) for t in texts])
    seen(f"{layer}.self_attn.o", joined)
    return _project(weights, name, joined, bias=f"{name}.bias" in weights.names())


def mlp(weights: Weights, layer: str, x: F32, seen: Seen = _unseen) -> F32:
    """SwiGLU (Shazeer 2020): down(silu(gate(x)) * up(x))."""
    seen(f"{layer}.mlp.gate_up", x)
    gate = _project(weights, f"{layer}.mlp.gate_proj", x, bias=False)
    with np.errstate(over="ignore"):
        gate /= 1 + np.exp(-gate)
    gate *= _project(weights, f"{layer}.mlp.up_proj", x, bias=False)
    seen(f"{layer}.mlp.down", gate)
    return _project(weights, f"{layer}.mlp.down_proj", gate, bias=False)


def hidden_states(config: ModelConfig, weights: Weights, texts: Sequence[Ids], seen: Seen = _unseen) -> F32:
    """The last normed hidden state of every token, texts one after another: float32 [sum of lengths, H].

    `seen(name, x)` is called with what each norm and each group of projections (`Stored.groups`) is about to read,
    x [sum of lengths, features].
    """
    lengths = [len(text) for text in texts]

    def norm(x: F32, name: str) -> F32:
        seen(name, x)
        return rms_norm(x, weights.dense(f"{name}.weight"), config.norm_eps)

    x = weights.dense("model.embed_tokens.weight")[np.concatenate([np.asarray(t, np.int64) for t in texts])]
    for i in range(config.layers):
        layer = f"model.layers.{i}"
        x = x + attention(config, weights, layer, norm(x, f"{layer}.input_layernorm"), lengths, seen)
        x = x + mlp(weights, layer, norm(x, f"{layer}.post_attention_layernorm"), seen)
    return norm(x, "model.norm")


def forward(config: ModelConfig, weights: Weights, texts: Sequence[Ids], seen: Seen = _unseen) -> Iterator[F32]:
    """Logits of every token of `texts` (each a text of its own), in order, in pieces float32 [up to 256, V]."""
    hidden = hidden_states(config, weights, texts, seen)
    head = weights.dense("model.embed_tokens.weight" if config.tied else "lm_head.weight")
    for start in range(0, len(hidden), _ROWS):
        yield hidden[start : start + _ROWS] @ head.T


def logits(config: ModelConfig, weights: Weights, ids: Ids) -> F32:
    """Logits of one short text: float32 [n, V]."""
    return np.concatenate(list(forward(config, weights, [ids])))
