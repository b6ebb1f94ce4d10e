"""Synthetic EAGLE checkpoints of every dialect, the same network in PyTorch from the formulas, and tiny bundles."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models

from spec_edge.export.candidate import Plan, finish, start
from spec_edge.export.drafters import attach, check_drafters
from spec_edge.export.reference_law import ReferenceLaw
from spec_edge.models.blockwise import BlockTensor
from spec_edge.models.checkpoint import Checkpoint, ModelConfig, TextFiles
from spec_edge.models.contract import KindQuality, Quality, Source
from spec_edge.models.reference import forward
from spec_edge.runtime import manifest as schema
from spec_edge.runtime.bundle import Bundle, open_bundle
from spec_edge.runtime.quality import Reference
from spec_edge.targets.target import target

VOCAB, HIDDEN, LAYERS, DIM, CONTEXT = 96, 32, 4, 16, 250
torch.set_num_threads(1)
State = dict[str, torch.Tensor]


@dataclass
class DictWeights:
    """Weights in memory."""

    tensors: dict[str, np.ndarray]

    def names(self) -> frozenset[str]:
        return frozenset(self.tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.tensors[name].shape

    def dense(self, name: str) -> np.ndarray:
        return self.tensors[name]

    def blocks(self, name: str) -> BlockTensor | None:
        del name
        return None


def target_config(**more: Any) -> ModelConfig:
    config = ModelConfig(
        family="llama",
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=64,
        layers=LAYERS,
        heads=4,
        kv_heads=2,
        head_dim=DIM,
        norm_eps=1e-5,
        rope_theta=10000.0,
        rope_scaling=None,
        rope_factors=None,
        tied=True,
        qkv_bias=False,
        context=512,
    )
    return replace(config, **more)


def target_weights(config: ModelConfig, seed: int = 0) -> DictWeights:
    rng = np.random.default_rng(seed)
    h, q, kv, inner = config.hidden_size, config.heads * DIM, config.kv_heads * DIM, config.intermediate_size

    def normal(*shape: int) -> np.ndarray:
        return rng.normal(0, 1.5 / np.sqrt(shape[-1]), shape).astype(np.float32)

    tensors = {"model.embed_tokens.weight": normal(config.vocab_size, h) * 3, "model.norm.weight": np.ones(h, "f4")}
    if not config.tied:
        tensors["lm_head.weight"] = normal(config.vocab_size, h) * 3
    for i in range(config.layers):
        p = f"model.layers.{i}"
        tensors |= {f"{p}.{n}.weight": np.ones(h, "f4") for n in ("input_layernorm", "post_attention_layernorm")}
        tensors |= {f"{p}.self_attn.{n}_proj.weight": normal(r, h) for n, r in (("q", q), ("k", kv), ("v", kv))}
        tensors[f"{p}.self_attn.o_proj.weight"] = normal(h, q)
        tensors |= {f"{p}.mlp.{n}_proj.weight": normal(inner, h) for n in ("gate", "up")}
        tensors[f"{p}.mlp.down_proj.weight"] = normal(h, inner)
    return DictWeights(tensors)


def checkpoint(config: ModelConfig, weights: DictWeights) -> Checkpoint:
    tokenizer = Tokenizer(models.WordLevel({f"t{i}": i for i in range(config.vocab_size)}, unk_token="t0"))
    text = TextFiles(tokenizer.to_str().encode(), None, config.vocab_size, None, False, (0,))
    return Checkpoint("tiny", config, weights, text, Source("gguf", "tiny.gguf", 1, "0" * 64))


@dataclass(frozen=True)
class Shape:
    """A drafter in words. taps: layers whose inputs it reads, () for EAGLE-1."""

    taps: tuple[int, ...] = ()
    layers: int = 1
    hidden: int = HIDDEN
    drafted: int = VOCAB
    heads: int = 2
    kv_heads: int = 1
    inner: int = 64
    fc_bias: bool = False
    qkv_bias: bool = False
    own_embedding: bool = False
    own_head: bool = True
    norm_before_residual: bool = False
    fc_norm: bool = False
    norm_before_fc: bool = False
    norm_output: bool = False
    theta: float = 10000.0

    @property
    def read(self) -> int:
        return max(len(self.taps), 1) * HIDDEN


def random_state(shape: Shape, seed: int = 1) -> State:
    """Weights by plain names; `ids` [drafted] maps drafted ids to the target's."""
    g = torch.Generator().manual_seed(seed)
    h, q, kv = shape.hidden, shape.heads * DIM, shape.kv_heads * DIM

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=g) * 1.5 / size[-1] ** 0.5

    def scale(n: int) -> torch.Tensor:
        return 1 + 0.3 * torch.randn(n, generator=g)

    three = bool(shape.taps)
    state = {"fc.weight": normal(h, shape.read if three else h + shape.read)}
    if shape.fc_bias:
        state["fc.bias"] = normal(h)
    if shape.fc_norm:
        state |= {f"fc_norm.{i}.weight": scale(HIDDEN) for i in range(len(shape.taps))}
    if shape.norm_before_fc:
        state["input_norm.weight"] = scale(shape.read)
    for i in range(shape.layers):
        p, reads = f"layers.{i}.", 2 * h if three and i == 0 else h
        for name, rows in (("q", q), ("k", kv), ("v", kv)):
            state[f"{p}self_attn.{name}_proj.weight"] = normal(rows, reads)
            if shape.qkv_bias:
                state[f"{p}self_attn.{name}_proj.bias"] = normal(rows)
        state[f"{p}self_attn.o_proj.weight"] = normal(h, q)
        state |= {f"{p}mlp.{n}_proj.weight": normal(shape.inner, h) for n in ("gate", "up")}
        state[f"{p}mlp.down_proj.weight"] = normal(h, shape.inner)
        state[f"{p}post_attention_layernorm.weight"] = scale(h)
        if three or i:
            state[f"{p}input_layernorm.weight"] = scale(h)
    if three:
        state |= {"layers.0.hidden_norm.weight": scale(h), "norm.weight": scale(h)}
        if shape.own_head:
            state["lm_head.weight"] = normal(shape.drafted, h) * 3
    if shape.own_embedding:
        state["embed_tokens.weight"] = normal(VOCAB, h) * 3
    state["ids"] = torch.randperm(VOCAB, generator=g)[: shape.drafted].sort().values
    if shape.drafted == VOCAB:
        state["ids"] = torch.arange(VOCAB)
    return state


def _rms(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight


def fused(shape: Shape, state: State, read: torch.Tensor) -> torch.Tensor:
    """What the drafter makes of the target's output [n, read]: [n, H]."""
    if not shape.taps:
        return read
    if shape.fc_norm:
        parts = read.split(HIDDEN, dim=-1)
        read = torch.cat([_rms(x, state[f"fc_norm.{i}.weight"]) for i, x in enumerate(parts)], -1)
    if shape.norm_before_fc:
        read = _rms(read, state["input_norm.weight"])
    return read @ state["fc.weight"].T


def rows(
    shape: Shape,
    state: State,
    lent: Mapping[str, torch.Tensor],
    ids: torch.Tensor,
    features: torch.Tensor,
    places: torch.Tensor,
    seen: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(logits, what is fed back) of N rows at given positions, seen [N, N] saying which sees which. lent: the target's
    `embed_tokens.weight` and `lm_head.weight`."""
    embedded = state.get("embed_tokens.weight", lent["embed_tokens.weight"])[ids]
    if shape.taps:
        left = _rms(embedded, state["layers.0.input_layernorm.weight"])
        right = _rms(features, state["layers.0.hidden_norm.weight"])
        x, reads = right if shape.norm_before_residual else features, torch.cat([left, right], -1)
    else:
        x = torch.cat([embedded, features], -1) @ state["fc.weight"].T + state.get("fc.bias", torch.zeros(1))
        reads = x
    for i in range(shape.layers):
        p = f"layers.{i}."
        if i:
            reads = _rms(x, state[f"{p}input_layernorm.weight"])
        x = x + _attention(shape, state, f"{p}self_attn.", reads, places, seen)
        normed = _rms(x, state[f"{p}post_attention_layernorm.weight"])
        gate, up = normed @ state[f"{p}mlp.gate_proj.weight"].T, normed @ state[f"{p}mlp.up_proj.weight"].T
        x = x + (torch.nn.functional.silu(gate) * up) @ state[f"{p}mlp.down_proj.weight"].T
    last = _rms(x, state["norm.weight"]) if shape.taps else x
    return last @ state.get("lm_head.weight", lent["lm_head.weight"]).T, last if shape.norm_output else x


def _attention(
    shape: Shape, state: State, name: str, x: torch.Tensor, places: torch.Tensor, seen: torch.Tensor
) -> torch.Tensor:
    def project(part: str, heads: int) -> torch.Tensor:
        y = x @ state[f"{name}{part}_proj.weight"].T + state.get(f"{name}{part}_proj.bias", torch.zeros(1))
        return y.view(len(x), heads, DIM).transpose(0, 1)

    q, k, v = project("q", shape.heads), project("k", shape.kv_heads), project("v", shape.kv_heads)
    angle = places[:, None] * shape.theta ** -(torch.arange(0, DIM, 2) / DIM)
    cos, sin = angle.cos(), angle.sin()

    def rotate(t: torch.Tensor) -> torch.Tensor:
        a, b = t.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    k, v = (t.repeat_interleave(shape.heads // shape.kv_heads, 0) for t in (rotate(k), v))
    scores = rotate(q) @ k.transpose(1, 2) / DIM**0.5
    mixed = scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v
    return mixed.transpose(0, 1).reshape(len(x), -1) @ state[f"{name}o_proj.weight"].T


@dataclass(frozen=True)
class Dialect:
    """How a checkpoint is written down. names: plain tensor name -> the file's."""

    config: dict[str, Any]
    names: Callable[[str], str] = field(default=lambda name: name)
    maps: bool = True


def base_config(shape: Shape, **more: Any) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": DIM,
        "num_hidden_layers": shape.layers,
        "rms_norm_eps": 1e-5,
        "rope_theta": shape.theta,
        "vocab_size": VOCAB,
        "max_position_embeddings": 512,
        "hidden_act": "silu",
        "torch_dtype": "float32",
        "tie_word_embeddings": False,
        **more,
    }


def midlayer(name: str) -> str:
    return name.replace("layers.0.", "midlayer.")


def write_drafter(folder: Path, shape: Shape, state: State, dialect: Dialect, **extra: torch.Tensor) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {dialect.names(n): t.contiguous().clone() for n, t in state.items() if n != "ids"}
    if dialect.maps and shape.drafted < VOCAB:
        known = torch.zeros(VOCAB, dtype=torch.bool)
        known[state["ids"]] = True
        tensors |= {"d2t": state["ids"] - torch.arange(shape.drafted), "t2d": known}
    save_file({**tensors, **extra}, str(folder / "model.safetensors"))
    (folder / "config.json").write_text(json.dumps(dialect.config), encoding="utf-8")
    return folder


def make_bundle(
    folder: Path, tiny: Checkpoint, drafter: Path | None, precision: str = "fp32", context: int = CONTEXT
) -> Bundle:
    """A bundle as spec-export writes it, without the quality figures."""
    profile = replace(target("cpu"), prefill=16, buckets=(64,))
    with ExitStack() as stack:
        found = attach({} if drafter is None else {"eagle": drafter}, tiny.config, stack)
        plan = Plan(tiny, profile, context, (1, 8, 16, 32), found)
        one = np.zeros((1, 1), np.float32)
        reference = Reference(
            ("prose",), np.array([0, 1]), np.zeros(1, np.int32), one.astype(np.int32), one, np.zeros(1, np.float32)
        )
        law = ReferenceLaw(reference, one, {})
        quality = Quality(0.0, 1.0, 1, "prose", (KindQuality("prose", 0.0, 1.0, 1),))
        candidate = finish(start(plan, precision, folder, {}), plan, law, quality, None)
        (folder / "bundle.json").write_bytes(schema.write(candidate.manifest))
        bundle = open_bundle(folder)
        check_drafters(candidate.drafters, bundle, tiny.weights)
    return bundle


def greedy(tiny: Checkpoint, prompt: Sequence[int], count: int) -> list[int]:
    """The target's own text, by the plain numpy forward."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(np.concatenate(list(forward(tiny.config, tiny.weights, [ids])))[-1].argmax()))
    return ids


def read_of(tiny: Checkpoint, shape: Shape, ids: Sequence[int]) -> np.ndarray:
    """What the drafter reads of the target for each token: float32 [n, read]."""
    seen: dict[str, np.ndarray] = {}
    list(forward(tiny.config, tiny.weights, [ids], lambda name, x: seen.setdefault(name, x)))
    last = seen["model.norm"]
    if not shape.taps:
        scale = np.sqrt((last**2).mean(-1, keepdims=True) + tiny.config.norm_eps)
        return last / scale * tiny.weights.dense("model.norm.weight")
    layer = "model.layers.{}.input_layernorm"
    return np.concatenate([last if i == tiny.config.layers else seen[layer.format(i)] for i in shape.taps], -1)


def fitted(shape: Shape, state: State, tiny: Checkpoint, text: Sequence[int], depth: int, steps: int = 60) -> State:
    """Weights that predict this text `depth` tokens ahead, on own features from the second token on."""
    n, ids = len(text) - 1, torch.tensor(text)
    read, head = torch.from_numpy(read_of(tiny, shape, text))[:n], EagleLab().lent(tiny)
    state = {k: v * 0.3 if v.ndim == 2 and k.endswith("weight") else v for k, v in state.items()}
    drafted = torch.full((VOCAB,), -1)
    drafted[state["ids"]] = torch.arange(len(state["ids"]))
    optimizer = torch.optim.Adam([p.requires_grad_() for k, p in state.items() if k != "ids"], 1e-2)
    for _ in range(steps):
        features, tokens, places = fused(shape, state, read), ids[1:], torch.arange(n).float()
        seen, row, loss = torch.ones(n, n).tril().bool(), torch.arange(n), torch.zeros(())
        for k in range(depth):
            logits, hidden = rows(shape, state, head, tokens, features, places, seen)
            start, end = len(tokens) - len(row), len(tokens)
            known = row + 2 + k < len(ids)
            goal = drafted[ids[row[known] + 2 + k]]
            loss = loss + torch.nn.functional.cross_entropy(logits[start:end][known], goal)
            after = torch.arange(len(row))[known]
            features = torch.cat([features, hidden[start:end][after]])
            tokens = torch.cat([tokens, ids[row[after] + 2 + k]])
            places = torch.cat([places, (row[after] + k + 1).float()])
            seen = torch.nn.functional.pad(seen, (0, len(after)))
            seen = torch.cat([seen, seen[start:end][after]])
            seen[torch.arange(end, len(tokens)), torch.arange(end, len(tokens))] = True
            row = row[after]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {k: v.detach() for k, v in state.items()}


@dataclass(frozen=True)
class EagleLab:
    """What the tests of this folder need, in one fixture."""

    Shape: type[Shape] = Shape
    Dialect: type[Dialect] = Dialect
    vocab: int = VOCAB
    context: int = CONTEXT

    target_config = staticmethod(target_config)
    target_weights = staticmethod(target_weights)
    checkpoint = staticmethod(checkpoint)
    random_state = staticmethod(random_state)
    fused = staticmethod(fused)
    rows = staticmethod(rows)
    base_config = staticmethod(base_config)
    midlayer = staticmethod(midlayer)
    write_drafter = staticmethod(write_drafter)
    make_bundle = staticmethod(make_bundle)
    greedy = staticmethod(greedy)
    read_of = staticmethod(read_of)
    fitted = staticmethod(fitted)

    def tiny(self, **more: Any) -> Checkpoint:
        config = target_config(**more)
        return checkpoint(config, target_weights(config))

    def lent(self, tiny: Checkpoint) -> dict[str, torch.Tensor]:
        table = tiny.weights.dense("model.embed_tokens.weight")
        head = table if tiny.config.tied else tiny.weights.dense("lm_head.weight")
        return {"embed_tokens.weight": torch.from_numpy(table), "lm_head.weight": torch.from_numpy(head)}


@pytest.fixture(scope="session")
def eagle() -> EagleLab:
    return EagleLab()
