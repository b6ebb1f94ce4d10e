"""An EAGLE drafter in torch: its weights by the names of models/eagle_network.py, its steps, and its loss.

Enters: packed texts with the target's states. Leaves: after each drafting step the logits over the drafted ids. A chain
begins at every row of the answers: step 0 reads true features up to its row, step i what steps 0 to i - 1 of the same
chain have fed back (training-time test, Li et al. 2025, arXiv 2503.01840), so that chains do not see one another.

    form "eagle3"  features fc [tapped layers]; own norm and head over the drafted ids
    form "eagle1"  x = fc [embed, last hidden state]; the target's head; features are regressed too (arXiv 2401.15077)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from spec_edge.export.train.packed import Packed
from spec_edge.export.train.target import Target, rotate
from spec_edge.models.checkpoint import ModelConfig
from spec_edge.models.reference import inv_freq

Weights: TypeAlias = Mapping[str, Tensor]

DECAY = 0.8
"""Weight of each step's loss, against the one before it."""

LATER = 0.5
"""Share of the chains that are unrolled past their first step; they are drawn, so the expected gradient is the same."""

REGRESSION = 10.0
"""EAGLE-1: weight of the features' distance against the tokens' (the paper's 1 against 0.1)."""


@dataclass(frozen=True)
class Net:
    """What is fixed of a drafter.

    ids    [D]: the target's id of each drafted one; known [V]: the drafted id of each of the target's, -1 for none
    table  the target's embedding [V, H]; rows: those of its head for the drafted ids [D, H]
    """

    config: ModelConfig
    form: str
    taps: int
    ids: Tensor
    known: Tensor
    table: Tensor
    rows: Tensor

    @property
    def wide(self) -> bool:
        return self.form == "eagle3"


def net_of(target: Target, form: str, ids: Tensor) -> Net:
    """`target`: its table and head are used as they are. ids: of the target, in rising order."""
    known = torch.full((target.config.vocab_size,), -1, device=target.device)
    known[ids] = torch.arange(len(ids), device=target.device)
    rows = target.head.weight[ids].float()
    return Net(target.config, form, len(target.taps), ids, known, target.table.float(), rows)


def shapes(net: Net, inner: int) -> dict[str, tuple[int, ...]]:
    """Trained tensors. inner: width of the MLP."""
    c, hidden = net.config, net.config.hidden_size
    q, kv, reads = c.heads * c.head_dim, c.kv_heads * c.head_dim, (2 if net.wide else 1) * hidden
    layer = {
        "self_attn.q_proj": (q, reads),
        "self_attn.k_proj": (kv, reads),
        "self_attn.v_proj": (kv, reads),
        "self_attn.o_proj": (hidden, q),
        "post_attention_layernorm": (hidden,),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    found: dict[str, tuple[int, ...]] = {"fc.weight": (hidden, net.taps * hidden if net.wide else 2 * hidden)}
    if net.wide:
        layer |= {"input_layernorm": (hidden,), "hidden_norm": (hidden,)}
        found |= {"norm.weight": (hidden,), "lm_head.weight": (len(net.ids), hidden)}
    return found | {f"layers.0.{name}.weight": shape for name, shape in layer.items()}


def fresh(net: Net, inner: int, seed: int) -> dict[str, Tensor]:
    """Random matrices, norms of ones; the head begins as the target's rows."""
    noise = torch.Generator().manual_seed(seed)
    made = {}
    for name, shape in shapes(net, inner).items():
        value = torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=noise) * 0.6 * shape[1] ** -0.5
        made[name] = (net.rows.clone() if name == "lm_head.weight" else value).to(net.table.device)
    return made


@dataclass(frozen=True)
class Step:
    """Step `number` of chains: rows they began at, their text, and the logits [c, D]; hidden [c, H] is fed back."""

    number: int
    starts: Tensor
    text: Tensor
    ends: Tensor
    logits: Tensor
    hidden: Tensor


@dataclass(frozen=True)
class _Seen:
    """Keys and values of the true features, [R, K/V heads, D] each, and of a chain's own steps so far."""

    keys: Tensor
    values: Tensor
    own: tuple[tuple[Tensor, Tensor], ...] = ()


def unroll(net: Net, w: Weights, texts: Packed, keep: Iterator[Tensor | None]) -> Iterator[Step]:
    """Steps, as long as `keep` gives what goes on: after each step True for its chains (None: all), and any is left.

    Chains end with their text.
    """
    features = F.linear(texts.taps, w["fc.weight"]) if net.wide else texts.hidden
    embedded = net.table[texts.ids]
    rows = torch.arange(len(texts.taps), device=texts.ids.device)
    following = rows + torch.bucketize(rows, torch.tensor(texts.first[1:], device=rows.device), right=True) + 1
    residual, reads = _enter(net, w, embedded[following], features)
    keys, values = _keys(net, w, reads, texts.positions)
    seen, starts, text, ends, number = _Seen(keys, values), texts.starts, texts.text, texts.ends, 0
    residual, reads = residual[starts], reads[starts]
    while len(starts):
        angles = _angles(net, texts.positions[starts] + number)
        q = F.linear(reads, w["layers.0.self_attn.q_proj.weight"]).view(len(starts), -1, net.config.head_dim)
        q = rotate(q, *angles)
        hidden = _layer(net, w, residual, _attend(net, q, seen, texts, starts, text))
        yield Step(number, starts, text, ends, _logits(net, w, hidden), hidden)
        going = next(keep, None)
        going = torch.ones_like(starts, dtype=torch.bool) if going is None else going
        going = going & (ends > number)
        number += 1
        starts, text, ends, hidden = starts[going], text[going], ends[going], hidden[going]
        if not len(starts):
            return
        fed = F.embedding(texts.token(starts, text, number + 1), net.table)
        residual, reads = _enter(net, w, fed, hidden)
        own = tuple((k[going], v[going]) for k, v in seen.own)
        seen = _Seen(keys, values, (*own, _keys(net, w, reads, texts.positions[starts] + number)))


def _enter(net: Net, w: Weights, embedded: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
    """(residual, what q, k and v read)."""
    if not net.wide:
        x = F.linear(torch.cat([embedded, features], -1), w["fc.weight"])
        return x, x
    left = _norm(net, embedded, w["layers.0.input_layernorm.weight"])
    return features, torch.cat([left, _norm(net, features, w["layers.0.hidden_norm.weight"])], -1)


def _norm(net: Net, x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, weight.shape, weight, net.config.norm_eps)


def _angles(net: Net, positions: Tensor) -> tuple[Tensor, Tensor]:
    frequencies, scale = inv_freq(net.config)
    angle = positions[:, None, None] * torch.from_numpy(np.asarray(frequencies, np.float32)).to(positions.device)
    return angle.cos() * scale, angle.sin() * scale


def _keys(net: Net, w: Weights, reads: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    k, v = (
        F.linear(reads, w[f"layers.0.self_attn.{part}_proj.weight"]).view(len(reads), -1, net.config.head_dim)
        for part in "kv"
    )
    return rotate(k, *_angles(net, positions)), v


def _attend(net: Net, q: Tensor, seen: _Seen, texts: Packed, starts: Tensor, text: Tensor) -> Tensor:
    """Of each chain: the true features up to its row, then its own steps. [c, heads * D]."""
    out, at = [], 0
    for number, count in enumerate(torch.bincount(text, minlength=len(texts.first) - 1).tolist()):
        if count:
            mine, rows = slice(at, at + count), slice(texts.first[number], texts.first[number + 1])
            own = tuple((k[mine], v[mine]) for k, v in seen.own)
            past = _Seen(seen.keys[rows], seen.values[rows], own)
            out.append(_attend_one(net, q[mine], past, starts[mine] - texts.first[number]))
            at += count
    return torch.cat(out) if out else q.flatten(1)


def _attend_one(net: Net, q: Tensor, seen: _Seen, at: Tensor) -> Tensor:
    c, (chains, heads, dim) = net.config, q.shape
    grouped = q.view(chains, c.kv_heads, -1, dim) * dim**-0.5
    scores = torch.einsum("ckgd,rkd->kgcr", grouped, seen.keys)
    hidden = torch.arange(len(seen.keys), device=q.device) > at[:, None]
    parts = [scores.masked_fill(hidden, float("-inf"))]
    parts += [torch.einsum("ckgd,ckd->kgc", grouped, k)[..., None] for k, _ in seen.own]
    share = torch.cat(parts, -1).softmax(-1)
    rows = len(seen.keys)
    out = torch.einsum("kgcr,rkd->ckgd", share[..., :rows], seen.values)
    for i, (_, v) in enumerate(seen.own):
        out = out + share[..., rows + i].permute(2, 0, 1)[..., None] * v[:, :, None]
    return out.reshape(chains, heads * dim)


def _layer(net: Net, w: Weights, residual: Tensor, attended: Tensor) -> Tensor:
    x = residual + F.linear(attended, w["layers.0.self_attn.o_proj.weight"])
    y = _norm(net, x, w["layers.0.post_attention_layernorm.weight"])
    gate = F.silu(F.linear(y, w["layers.0.mlp.gate_proj.weight"]))
    return x + F.linear(gate * F.linear(y, w["layers.0.mlp.up_proj.weight"]), w["layers.0.mlp.down_proj.weight"])


def _logits(net: Net, w: Weights, hidden: Tensor) -> Tensor:
    if not net.wide:
        return F.linear(hidden, net.rows)
    return F.linear(_norm(net, hidden, w["norm.weight"]), w["lm_head.weight"])


def loss(net: Net, w: Weights, texts: Packed, steps: int, noise: torch.Generator) -> Tensor:
    """Sum over steps of DECAY^i times the mean cross-entropy against the target's law over the drafted ids.

    Where the text's own token is none of them the step counts nothing and the chain ends: it could not go on there.
    """
    total, laws = torch.zeros((), device=texts.ids.device), _Laws(net, texts)
    draw = torch.rand(len(texts.starts), generator=noise).to(texts.ids.device) < LATER
    going: list[Tensor | None] = []
    for step in unroll(net, w, texts, _popped(going)):
        counts = net.known[texts.token(step.starts, step.text, step.number + 2)] >= 0
        if counts.any():
            total = total + DECAY**step.number * _distance(net, texts, laws, step, counts)
        if step.number + 1 == steps:
            break
        going.append(counts & draw if step.number == 0 else counts)
    return total


def _popped(waiting: list[Tensor | None]) -> Iterator[Tensor | None]:
    while True:
        yield waiting.pop()


class _Laws:
    """The target's laws over the drafted ids at every row that a step can predict, computed once for all steps."""

    def __init__(self, net: Net, texts: Packed) -> None:
        rows = texts.starts + 1
        self._place = torch.zeros(len(texts.hidden), dtype=torch.long, device=rows.device)
        self._place[rows] = torch.arange(len(rows), device=rows.device)
        self._known = F.linear(texts.hidden[rows], net.rows).softmax(-1)

    def at(self, rows: Tensor) -> Tensor:
        return self._known[self._place[rows]]


def _distance(net: Net, texts: Packed, laws: _Laws, step: Step, counts: Tensor) -> Tensor:
    rows = (step.starts + step.number + 1)[counts]
    distance = -(laws.at(rows) * step.logits[counts].log_softmax(-1)).sum(-1).mean()
    return distance if net.wide else distance + REGRESSION * F.smooth_l1_loss(step.hidden[counts], texts.hidden[rows])


def accepted(net: Net, w: Weights, texts: Packed, depth: int) -> Tensor:
    """Of each start the tokens, at most `depth`, that a chain drafted there would have right. [C]."""
    taken = torch.zeros(len(texts.starts), dtype=torch.long, device=texts.ids.device)
    going: list[Tensor | None] = []
    place = {int(row): i for i, row in enumerate(texts.starts.tolist())}
    for step in unroll(net, w, texts, _popped(going)):
        right = net.ids[step.logits.argmax(-1)] == texts.token(step.starts, step.text, step.number + 2)
        hit = torch.tensor([place[row] for row in step.starts[right].tolist()], dtype=torch.long, device=taken.device)
        taken[hit] += 1
        if step.number + 1 == depth:
            break
        going.append(right)
    return taken
