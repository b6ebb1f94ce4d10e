"""An EAGLE drafter in plain numpy, to check graphs against: rows of one text enter, their answers leave."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spec_edge.models.checkpoint import Weights
from spec_edge.models.eagle_network import EMBED, HEAD, PREFIX, Eagle
from spec_edge.models.reference import attention, mlp, rms_norm

F32 = NDArray[np.float32]


def fused(net: Eagle, own: Weights, taps: F32) -> F32:
    """Features [n, H] of tapped layers [n, T * H_target]; EAGLE-1 takes the target's hidden state as it is."""
    if net.kind == "eagle":
        return taps
    eps = net.config.norm_eps
    if net.options.tap_norms:
        pieces = np.split(taps, len(net.taps), axis=1)
        taps = np.concatenate([rms_norm(x, _own(own, f"fc_norm.{i}"), eps) for i, x in enumerate(pieces)], axis=1)
    if net.options.norm_before_fc:
        taps = rms_norm(taps, _own(own, "input_norm"), eps)
    return _linear(own, "fc", taps)


def forward(net: Eagle, own: Weights, target: Weights, ids: NDArray[np.int64], features: F32) -> tuple[F32, F32]:
    """(logits [n, drafted ids], what is fed back [n, H]) of a text from its beginning: ids [n], features [n, H].

    ids[t] is the token after the one that features[t] belong to.
    """
    eps, last = net.config.norm_eps, net.config.layers - 1
    table = own.dense(f"{PREFIX}{EMBED}") if net.own_embedding else target.dense("model.embed_tokens.weight")
    residual, reads = _entry(net, own, table[ids], features)
    for i in range(net.config.layers):
        layer = f"{PREFIX}layers.{i}"
        residual = residual + attention(net.config, own, layer, reads, [len(ids)])
        normed = rms_norm(residual, own.dense(f"{layer}.post_attention_layernorm.weight"), eps)
        residual = residual + mlp(own, layer, normed)
        following = "norm" if i == last else f"layers.{i + 1}.input_layernorm"
        reads = residual if net.kind == "eagle" and i == last else rms_norm(residual, _own(own, following), eps)
    return reads @ _head(net, own, target).T, reads if net.options.norm_output else residual


def _entry(net: Eagle, own: Weights, embedded: F32, features: F32) -> tuple[F32, F32]:
    if net.kind == "eagle":
        x = _linear(own, "fc", np.concatenate([embedded, features], axis=1))
        return x, x
    left = rms_norm(embedded, _own(own, "layers.0.input_layernorm"), net.config.norm_eps)
    right = rms_norm(features, _own(own, "layers.0.hidden_norm"), net.config.norm_eps)
    residual = right if net.options.norm_before_residual else features
    return residual, np.concatenate([left, right], axis=1)


def _head(net: Eagle, own: Weights, target: Weights) -> F32:
    if net.own_head:
        return own.dense(f"{PREFIX}{HEAD}")
    return target.dense("model.embed_tokens.weight" if net.target.tied else "lm_head.weight")


def _own(own: Weights, name: str) -> F32:
    return own.dense(f"{PREFIX}{name}.weight")


def _linear(own: Weights, name: str, x: F32) -> F32:
    y: F32 = x @ _own(own, name).T
    return y + own.dense(f"{PREFIX}{name}.bias") if f"{PREFIX}{name}.bias" in own.names() else y
