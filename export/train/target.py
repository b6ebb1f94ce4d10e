"""The frozen target in torch: batches of texts with a K/V cache, the tapped layers and the last hidden state.

Enters: a model's settings and weights, as a bundle holds them. Leaves: a `Target` whose `read` gives, for rows of
several texts at once, the last normed hidden state and what enters the tapped layers.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from spec_edge.models.checkpoint import ModelConfig, Weights
from spec_edge.models.reference import inv_freq


class Matrix:
    """x -> x W^T + b. Once `pack`ed and where it is asked for, in 8 bits with 8-bit activations (CPU).

    peak  largest magnitude of each input that was seen; None: nobody watches
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight, self.bias = weight, bias
        self.peak: Tensor | None = None
        self._packed: Any = None
        self._inputs = weight

    def __call__(self, x: Tensor, quick: bool = False) -> Tensor:
        if quick and self._packed is not None:
            smooth = x * self._inputs
            scale = smooth.abs().amax(-1, keepdim=True).clamp_min_(1e-12)
            # rows of magnitude 1, so that the one scale of the call is each row's own
            return torch.ops.quantized.linear_dynamic(smooth.div_(scale), self._packed, True).mul_(scale)
        if self.peak is not None:
            self.peak = torch.maximum(self.peak, x.abs().flatten(0, -2).amax(0))
        return F.linear(x, self.weight, self.bias)

    def pack(self) -> None:
        """In 8 bits, the inputs' magnitudes shared with the weights (SmoothQuant, Xiao et al. 2022, with alpha 0.5)."""
        if self.peak is None or self.bias is not None:
            return
        shared = (self.peak.clamp_min(1e-5) / self.weight.abs().amax(0).clamp_min(1e-5)).sqrt()
        weight, self._inputs, self.peak = self.weight * shared, 1 / shared, None
        scales = (weight.abs().amax(1) / 127).clamp_min(1e-12).double()
        zeros = torch.zeros(len(weight), dtype=torch.int64)
        with warnings.catch_warnings():  # torch means to drop these; they are its only fast 8-bit matmuls on AVX2
            warnings.simplefilter("ignore", UserWarning)
            rounded = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
            self._packed = torch.ops.quantized.linear_prepack(rounded, None)


@dataclass(frozen=True)
class Layer:
    """A decoder layer: q, k and v are one matrix, and gate and up are one."""

    norm: Tensor
    qkv: Matrix
    o: Matrix
    mlp_norm: Tensor
    gate_up: Matrix
    down: Matrix


@dataclass(frozen=True)
class Read:
    """hidden [B, n, H] behind the final norm; taps [B, n, T * H]: what enters the tapped layers, one behind another."""

    hidden: Tensor
    taps: Tensor


class Cache:
    """Keys and values of every layer, [slots, K/V heads, length, D] each; rows past a text's end are never shown."""

    def __init__(self, config: ModelConfig, slots: int, length: int, device: torch.device, dtype: torch.dtype) -> None:
        shape = (slots, config.kv_heads, length, config.head_dim)
        self.layers = [
            (torch.zeros(shape, device=device, dtype=dtype), torch.zeros(shape, device=device, dtype=dtype))
            for _ in range(config.layers)
        ]

    def keep(self, slots: Tensor) -> None:
        """These slots alone, in this order."""
        self.layers = [(k[slots], v[slots]) for k, v in self.layers]

    def spread(self, source: Cache, length: int) -> None:
        """The first rows of every slot from the only slot of `source`."""
        for (k, v), (from_k, from_v) in zip(self.layers, source.layers, strict=True):
            k[:, :, :length] = from_k[:, :, :length]
            v[:, :, :length] = from_v[:, :, :length]


class Target:
    """Weights on `device`, in float32 on a CPU and bfloat16 elsewhere.

    quick  whether `read` and `head` use the 8-bit matrices that `quicken` made
    """

    def __init__(self, config: ModelConfig, weights: Weights, taps: Sequence[int], device: torch.device) -> None:
        self.config, self.taps, self.device, self.quick = config, tuple(taps), device, False
        self.dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
        self.table = self._tensor(weights.dense("model.embed_tokens.weight"))
        self.head = Matrix(self.table if config.tied else self._tensor(weights.dense("lm_head.weight")))
        self.final = self._tensor(weights.dense("model.norm.weight"))
        self.layers = [self._layer(weights, f"model.layers.{i}") for i in range(config.layers)]
        frequencies, self._scale = inv_freq(config)
        self._frequencies = torch.tensor(np.asarray(frequencies, np.float32), device=device)

    def _tensor(self, values: Any) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, np.float32)).to(self.device, self.dtype)

    def _layer(self, weights: Weights, name: str) -> Layer:
        def joined(parts: Sequence[str], biased: bool) -> Matrix:
            matrix = self._tensor(np.concatenate([weights.dense(f"{name}.{part}.weight") for part in parts]))
            if not biased:
                return Matrix(matrix)
            return Matrix(matrix, self._tensor(np.concatenate([weights.dense(f"{name}.{p}.bias") for p in parts])))

        qkv = [f"self_attn.{part}_proj" for part in "qkv"]
        o_bias = f"{name}.self_attn.o_proj.bias" in weights.names()
        return Layer(
            norm=self._tensor(weights.dense(f"{name}.input_layernorm.weight")),
            qkv=joined(qkv, self.config.qkv_bias),
            o=joined(["self_attn.o_proj"], o_bias),
            mlp_norm=self._tensor(weights.dense(f"{name}.post_attention_layernorm.weight")),
            gate_up=joined(["mlp.gate_proj", "mlp.up_proj"], False),
            down=joined(["mlp.down_proj"], False),
        )

    def quicken(self, texts: Sequence[Sequence[int]], skip: int) -> None:
        """Make the 8-bit matrices, for inputs as in `texts`; their first `skip` rows are never read with them.

        `down` stays as it is: a few of its inputs are hundreds of times larger than the rest. On SmolLM2 this has a KL
        divergence of 0.015 from full precision.
        """
        matrices = [self.head, *(m for layer in self.layers for m in (layer.qkv, layer.o, layer.gate_up))]
        caches = [self.cache(1, len(text)) for text in texts]
        rows = [torch.arange(len(text), device=self.device)[None] for text in texts]
        ids = [torch.tensor([text], device=self.device) for text in texts]
        for text, at, cache in zip(ids, rows, caches, strict=True):
            self.read(text[:, :skip], at[:, :skip], cache, None, skip)
        for matrix in matrices:
            matrix.peak = torch.zeros(matrix.weight.shape[1])
        for text, at, cache in zip(ids, rows, caches, strict=True):
            self.head(self.read(text[:, skip:], at[:, skip:], cache, None, text.shape[1]).hidden)
        for matrix in matrices:
            matrix.pack()
        self.quick = True

    def cache(self, slots: int, length: int) -> Cache:
        return Cache(self.config, slots, length, self.device, self.dtype)

    def read(self, ids: Tensor, positions: Tensor, cache: Cache, slots: Tensor | None, length: int) -> Read:
        """Rows of texts in `slots` (None: of all), ids and positions [B, n]; every row sees its text up to itself.

        length: no position is at or past it. Rows past a text's end repeat its last position's number or a later one;
        what they write is overwritten before it is shown.
        """
        mask = torch.arange(length, device=self.device) <= positions[..., None]
        angle = positions[..., None] * self._frequencies
        cos, sin = ((f(angle) * self._scale).to(self.dtype)[:, :, None] for f in (torch.cos, torch.sin))
        where = torch.arange(len(ids), device=self.device) if slots is None else slots
        groups = self.config.heads // self.config.kv_heads
        seen = mask.repeat(1, groups, 1)[:, None]
        x, taps = F.embedding(ids, self.table), []
        for i, layer in enumerate(self.layers):
            if i in self.taps:
                taps.append(x)
            x = x + self._attend(layer, x, (cos, sin), (where, positions, slots is None), cache.layers[i], seen)
            gate, up = layer.gate_up(self._norm(x, layer.mlp_norm), self.quick).chunk(2, -1)
            x = x + layer.down(F.silu(gate) * up)
        if len(self.layers) in self.taps:
            taps.append(x)
        return Read(self._norm(x, self.final), torch.cat(taps, -1) if taps else x[..., :0])

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, self.config.norm_eps)

    def _attend(
        self,
        layer: Layer,
        x: Tensor,
        angles: tuple[Tensor, Tensor],
        at: tuple[Tensor, Tensor, bool],
        cached: tuple[Tensor, Tensor],
        seen: Tensor,
    ) -> Tensor:
        config, (batch, n, _) = self.config, x.shape
        heads, kv, dim = config.heads, config.kv_heads, config.head_dim
        q, k, v = layer.qkv(self._norm(x, layer.norm), self.quick).view(batch, n, -1, dim).split([heads, kv, kv], 2)
        q, k = rotate(q, *angles), rotate(k, *angles)
        where, positions, everyone = at
        for store, new in zip(cached, (k, v), strict=True):
            store[where[:, None], :, positions] = new
        length = seen.shape[-1]
        keys, values = (store[:, :, :length] if everyone else store[where, :, :length] for store in cached)
        # the query heads of one K/V head are further rows of it
        rows = q.view(batch, n, kv, heads // kv, dim).permute(0, 2, 3, 1, 4).reshape(batch, kv, -1, dim)
        out = F.scaled_dot_product_attention(rows, keys, values, attn_mask=seen)
        joined = out.view(batch, kv, heads // kv, n, dim).permute(0, 3, 1, 2, 4).reshape(batch, n, heads * dim)
        return layer.o(joined, self.quick)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x [..., heads, D], half-split; cos and sin [..., 1, D / 2]."""
    low, high = x.chunk(2, -1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)
