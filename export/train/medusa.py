"""Medusa heads in torch (Medusa-1: the target is frozen): their weights, their loss, what they have right.

Head i predicts token r + 2 + i from the target's last hidden state of row r: logits = U (x + SiLU(W x + b)), with U the
target's own rows for the ids that are drafted (Cai et al. 2024, arXiv 2401.10774).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from spec_edge.export.train.eagle import Net
from spec_edge.export.train.packed import Packed

Weights: TypeAlias = Mapping[str, Tensor]

DECAY = 0.8
"""Weight of each head's loss, against the one before it."""

RANKS = 10
"""Ranks whose accuracy is measured: what a tree may take of a head."""


def shapes(net: Net, heads: int) -> dict[str, tuple[int, ...]]:
    """Trained tensors; the head over the drafted ids is the target's and stays."""
    hidden = net.config.hidden_size
    return {
        f"blocks.{i}.layers.0.{part}": shape
        for i in range(heads)
        for part, shape in (("weight", (hidden, hidden)), ("bias", (hidden,)))
    }


def fresh(net: Net, heads: int) -> dict[str, Tensor]:
    """Zeros: each head begins as the target's own."""
    return {name: torch.zeros(shape, device=net.table.device) for name, shape in shapes(net, heads).items()}


def head(w: Weights, i: int, x: Tensor) -> Tensor:
    """What the output matrix of head i reads."""
    return x + F.silu(F.linear(x, w[f"blocks.{i}.layers.0.weight"], w[f"blocks.{i}.layers.0.bias"]))


def loss(net: Net, w: Weights, texts: Packed, heads: int) -> Tensor:
    """Sum over heads of DECAY^i times the mean cross-entropy against the text's token; others' ids count nothing."""
    total = torch.zeros((), device=texts.ids.device)
    for i in range(heads):
        there = texts.ends >= i
        starts, text = texts.starts[there], texts.text[there]
        wanted = net.known[texts.token(starts, text, i + 2)]
        known = wanted >= 0
        if known.any():
            logits = F.linear(head(w, i, texts.hidden[starts[known]]), net.rows)
            total = total + DECAY**i * F.cross_entropy(logits, wanted[known])
    return total


def ranks(net: Net, w: Weights, texts: Packed, heads: int) -> Tensor:
    """Of each start and head the rank of the text's token among the head's best: [C, heads], RANKS where it is none."""
    found = torch.full((len(texts.starts), heads), RANKS, device=texts.ids.device)
    for i in range(heads):
        there = (texts.ends >= i).nonzero()[:, 0]
        starts, text = texts.starts[there], texts.text[there]
        best = F.linear(head(w, i, texts.hidden[starts]), net.rows).topk(min(RANKS, len(net.ids)), -1).indices
        hit = net.ids[best] == texts.token(starts, text, i + 2)[:, None]
        found[there, i] = torch.where(hit.any(1), hit.int().argmax(1), RANKS)
    return found


def accepted(net: Net, w: Weights, texts: Packed, heads: int) -> Tensor:
    """Of each start the tokens that the heads' best ones, as a chain, have right. [C]."""
    right = ranks(net, w, texts, heads) == 0
    return right.long().cumprod(1).sum(1)
