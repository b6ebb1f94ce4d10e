"""The two kinds of heads, as the training loop sees them: weights, a loss, what is accepted, and a folder to publish.

Enters: the net over a frozen target and weights, fresh or those of an earlier run. Leaves: for `fit` a `Head`, and
config.json and model.safetensors in the form that others read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spec_edge.export.train import eagle, medusa
from spec_edge.export.train.eagle import Net
from spec_edge.export.train.packed import Packed, pack
from spec_edge.export.train.store import Place, Shards
from spec_edge.models.checkpoint import ModelConfig

UNROLLED = 4
"""Steps of the training-time test, and of the chains that are measured."""


@dataclass(frozen=True)
class EagleHead:
    """A `Head`."""

    net: Net
    weights: Mapping[str, Tensor]
    unrolled: int = UNROLLED

    @property
    def depth(self) -> int:
        return UNROLLED

    def loss(self, texts: Packed, noise: torch.Generator) -> Tensor:
        return eagle.loss(self.net, self.weights, texts, self.unrolled, noise)

    def accepted(self, texts: Packed) -> Tensor:
        return eagle.accepted(self.net, self.weights, texts, self.depth)


@dataclass(frozen=True)
class MedusaHead:
    """A `Head`."""

    net: Net
    weights: Mapping[str, Tensor]
    depth: int

    def loss(self, texts: Packed, noise: torch.Generator) -> Tensor:
        del noise
        return medusa.loss(self.net, self.weights, texts, self.depth)

    def accepted(self, texts: Packed) -> Tensor:
        return medusa.accepted(self.net, self.weights, texts, self.depth)


Published = tuple[dict[str, Any], dict[str, Tensor]]
"""config.json and the tensors of a folder."""


def published_eagle(head: EagleHead, taps: Sequence[int]) -> Published:
    """SpecForge's names and configuration for EAGLE-3 (which vLLM and SGLang read), SafeAILab's for EAGLE-1."""
    net, w = head.net, {name: tensor.detach().half() for name, tensor in head.weights.items()}
    config = _decoder(net.config) | {"intermediate_size": head.weights["layers.0.mlp.gate_proj.weight"].shape[0]}
    if not net.wide:
        return config | {"architectures": ["LlamaForCausalLM"], "bias": False}, w
    config |= {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": len(net.ids)}
    if tuple(taps) != default_taps(net.config.layers):
        # of SpecForge's files vLLM takes inputs of the layers and SGLang outputs; under this name both take inputs
        config |= {"architectures": ["Eagle3LlamaForCausalLM"]}
        config |= {"eagle_config": {"eagle_aux_hidden_state_layer_ids": list(taps), "use_aux_hidden_state": True}}
    tensors = {name.replace("layers.0.", "midlayer."): tensor for name, tensor in w.items()}
    if len(net.ids) < net.config.vocab_size:
        tensors |= {"d2t": (net.ids - torch.arange(len(net.ids), device=net.ids.device)).long(), "t2d": net.known >= 0}
    return config, tensors


def default_taps(layers: int) -> tuple[int, ...]:
    """Layers whose inputs every reader takes of a file that names none."""
    return 2, layers // 2, layers - 3


def chosen_taps(layers: int) -> tuple[int, ...]:
    """The same for a target that is deep enough, else an early, a middle and the last layer."""
    taps = default_taps(layers)
    return taps if taps[0] < taps[1] < taps[2] else tuple(sorted({min(1, layers), (layers + 1) // 2, layers}))


def _decoder(c: ModelConfig) -> dict[str, Any]:
    scaling = None
    if (s := c.rope_scaling) is not None:
        scaling = {
            "rope_type": "llama3",
            "factor": s.factor,
            "low_freq_factor": s.low_freq_factor,
            "high_freq_factor": s.high_freq_factor,
            "original_max_position_embeddings": s.original_context,
        }
    config = {
        "model_type": "llama",
        "hidden_size": c.hidden_size,
        "num_attention_heads": c.heads,
        "num_key_value_heads": c.kv_heads,
        "head_dim": c.head_dim,
        "num_hidden_layers": 1,
        "rms_norm_eps": c.norm_eps,
        "rope_theta": c.rope_theta,
        "vocab_size": c.vocab_size,
        "max_position_embeddings": c.context,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
    }
    return config | ({"rope_scaling": scaling} if scaling else {})


def published_medusa(head: MedusaHead, accuracy: Sequence[Sequence[float]]) -> Published:
    """vLLM's form with a reduced vocabulary; Medusa's dialect B, with the target's head, where it is whole.

    accuracy: for each head how often its best, second best ... token was the target's.
    """
    net, c = head.net, head.net.config
    w = {name: tensor.detach().half() for name, tensor in head.weights.items()}
    rates = {"medusa_head_accuracy": [[round(rate, 4) for rate in ranks] for ranks in accuracy]}
    if len(net.ids) == c.vocab_size:
        names = {name: name.replace("blocks.", "").replace(".layers.0.", ".0.linear.") for name in w}
        config = {"version": "2", "medusa_num_heads": head.depth, "medusa_num_layers": 1, "hidden_size": c.hidden_size}
        return config | {"vocab_size": c.vocab_size} | rates, {names[name]: tensor for name, tensor in w.items()}
    config = {
        "model_type": "medusa",
        "architectures": ["MedusaModel"],
        "num_heads": head.depth,
        "num_hidden_layers": 1,
        "medusa_fc_bias": True,
        "original_lm_head": True,
        "hidden_size": c.hidden_size,
        "vocab_size": c.vocab_size,
        "truncated_vocab_size": len(net.ids),
        "torch_dtype": "float16",
    }
    return config | rates, w | {"lm_head.weight": net.rows.half(), "token_map": net.ids.long()}


def accuracy(head: MedusaHead, shards: Shards, held: Sequence[Place], device: torch.device) -> list[list[float]]:
    """Share of all rows of these texts at which each rank of each head is the text's token."""
    counts = torch.zeros((head.depth, medusa.RANKS + 1))
    with torch.inference_mode():
        for place in held:
            found = medusa.ranks(head.net, head.weights, pack([shards.read(place)], device), head.depth)
            counts += torch.stack([torch.bincount(column, minlength=medusa.RANKS + 1) for column in found.T.cpu()])
    rates = counts[:, :-1] / counts.sum(1, keepdim=True).clamp_min(1)
    return [[float(rate) for rate in row] for row in rates]


def drafted(shards: Shards, places: Sequence[Place], size: int, tokens: int) -> Tensor:
    """The ids that the target's own answers hold most often, `size` of them, in rising order; low ids fill up.

    tokens: ids that there are.
    """
    counts = torch.zeros(tokens, dtype=torch.long)
    for place in places:
        counts += torch.bincount(torch.tensor(shards.ids(place)[place.prompt :]), minlength=tokens)
    order = torch.argsort(counts * tokens - torch.arange(tokens), descending=True)
    return order[: min(size, tokens)].sort().values
