"""Tiny random models, the same in transformers, and runners that feed their graphs by hand (no runtime code)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from spec_edge.models.blockwise import BlockTensor
from spec_edge.models.checkpoint import ModelConfig, RopeScaling, Weights
from spec_edge.models.contract import RopeFacts
from spec_edge.models.decoder import build
from spec_edge.models.forms import Form
from spec_edge.models.reference import inv_freq
from spec_edge.models.schemes.scheme import Scheme
from spec_edge.models.store import WeightStore
from spec_edge.models.stored import store_model

MASKED = -1e4
VOCAB, HIDDEN, INNER, HEAD_DIM, LAYERS = 256, 96, 160, 32, 2
TABLE = 192


@dataclass
class DictWeights:
    """Weights in memory; `packed` holds the quantised ones."""

    tensors: dict[str, NDArray[np.float32]]
    packed: dict[str, BlockTensor] = field(default_factory=dict)

    def names(self) -> frozenset[str]:
        return frozenset(self.tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.tensors[name].shape

    def dense(self, name: str) -> NDArray[np.float32]:
        return self.tensors[name]

    def blocks(self, name: str) -> BlockTensor | None:
        return self.packed.get(name)


@dataclass(frozen=True)
class Tiny:
    config: ModelConfig
    weights: Weights

    @property
    def rope(self) -> RopeFacts:
        frequencies, scale = inv_freq(self.config)
        return RopeFacts(tuple(frequencies), scale)


LLAMA = ModelConfig(
    family="llama",
    vocab_size=VOCAB,
    hidden_size=HIDDEN,
    intermediate_size=INNER,
    layers=LAYERS,
    heads=6,
    kv_heads=2,
    head_dim=HEAD_DIM,
    norm_eps=1e-5,
    rope_theta=10000.0,
    rope_scaling=None,
    rope_factors=None,
    tied=True,
    qkv_bias=False,
    context=128,
)
MODELS = {
    "llama-gqa-tied": LLAMA,
    "llama-mha-untied": replace(LLAMA, heads=2, tied=False),
    "llama-one-kv-head": replace(LLAMA, heads=3, kv_heads=1),
    "llama3-rope": replace(LLAMA, rope_theta=5e5, rope_scaling=RopeScaling(8.0, 1.0, 4.0, 32)),
    "qwen2-bias-tied": replace(LLAMA, family="qwen2", qkv_bias=True, norm_eps=1e-6, rope_theta=1e6),
    "qwen2-bias-untied": replace(LLAMA, family="qwen2", qkv_bias=True, heads=4, tied=False),
}


def random_weights(config: ModelConfig, seed: int = 0) -> DictWeights:
    rng = np.random.default_rng(seed)
    h, q, kv, inner = HIDDEN, config.heads * HEAD_DIM, config.kv_heads * HEAD_DIM, INNER

    def normal(*shape: int) -> NDArray[np.float32]:
        return rng.normal(0, 0.5 if len(shape) == 1 else 1.5 / np.sqrt(shape[1]), shape).astype(np.float32)

    tensors = {"model.embed_tokens.weight": normal(VOCAB, h), "model.norm.weight": 1 + normal(h)}
    if not config.tied:
        tensors["lm_head.weight"] = normal(VOCAB, h)
    for i in range(config.layers):
        p = f"model.layers.{i}"
        tensors |= {f"{p}.input_layernorm.weight": 1 + normal(h), f"{p}.post_attention_layernorm.weight": 1 + normal(h)}
        for name, rows in (("q_proj", q), ("k_proj", kv), ("v_proj", kv)):
            tensors[f"{p}.self_attn.{name}.weight"] = normal(rows, h)
            if config.qkv_bias:
                tensors[f"{p}.self_attn.{name}.bias"] = normal(rows)
        tensors[f"{p}.self_attn.o_proj.weight"] = normal(h, q)
        tensors |= {f"{p}.mlp.{n}_proj.weight": normal(inner, h) for n in ("gate", "up")}
        tensors[f"{p}.mlp.down_proj.weight"] = normal(h, inner)
    return DictWeights(tensors)


def quantised(weights: DictWeights, bits: int, block: int, offset: bool, seed: int = 1) -> DictWeights:
    """Random blocks in every matrix; `tensors` holds the values that they stand for."""
    rng = np.random.default_rng(seed)
    tensors, packed = dict(weights.tensors), {}
    for name, w in weights.tensors.items():
        if w.ndim != 2:
            continue
        n, k = w.shape
        q = rng.integers(0, 1 << bits, (n, k // block, block)).astype(np.uint8)
        scale = (rng.uniform(0.5, 1.5, q.shape[:2]) / np.sqrt(k) / (1 << (bits - 2))).astype(np.float32)
        shift = rng.normal(0, 0.5 / np.sqrt(k), q.shape[:2]).astype(np.float32) if offset else None
        packed[name] = BlockTensor(bits, block, q, scale, shift)
        tensors[name] = packed[name].dense()
    return DictWeights(tensors, packed)


def hf_logits(tiny: Any, ids: Sequence[int]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(logits [n, V], final normed hidden state [n, H]) of transformers in float32."""
    import torch
    import transformers

    c = tiny.config
    s = c.rope_scaling
    scaling: dict[str, Any] = {"rope_type": "default", "rope_theta": c.rope_theta}
    if s is not None:
        scaling |= {
            "rope_type": "llama3",
            "factor": s.factor,
            "low_freq_factor": s.low_freq_factor,
            "high_freq_factor": s.high_freq_factor,
            "original_max_position_embeddings": s.original_context,
        }
    facts = {
        "vocab_size": c.vocab_size,
        "hidden_size": c.hidden_size,
        "intermediate_size": c.intermediate_size,
        "num_hidden_layers": c.layers,
        "num_attention_heads": c.heads,
        "num_key_value_heads": c.kv_heads,
        "head_dim": c.head_dim,
        "rms_norm_eps": c.norm_eps,
        "rope_parameters": scaling,
        "tie_word_embeddings": c.tied,
        "max_position_embeddings": c.context,
        "attn_implementation": "eager",
    }
    name = {"llama": "Llama", "qwen2": "Qwen2"}[c.family]
    model = getattr(transformers, f"{name}ForCausalLM")(getattr(transformers, f"{name}Config")(**facts)).eval()
    state = {n: torch.from_numpy(w.copy()) for n, w in tiny.weights.tensors.items()}
    if c.tied:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state)
    with torch.no_grad():
        out = model(torch.tensor([list(ids)]), output_hidden_states=True)
    return out.logits[0].numpy(), out.hidden_states[-1][0].numpy()


def export(folder: Path, tiny: Tiny, scheme: Scheme, forms: Sequence[Form]) -> dict[str, ort.InferenceSession]:
    """One weights file, one session per form, by form name."""
    dtypes = tuple(dict.fromkeys(f.activation for f in forms))
    sessions = {}
    with WeightStore(folder / "weights.bin") as store:
        table = max((form.context for form in forms), default=TABLE)
        stored = store_model(tiny.config, tiny.rope, tiny.weights, scheme, store, table, dtypes)
    for form in forms:
        model, _ = build(tiny.config, stored, form)
        file = folder / f"{form.name}.onnx"
        file.write_bytes(model.SerializeToString())
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        # DequantizeLinear + MatMul becomes MatMulNBits in ONNX Runtime: in floats here, with rounded inputs by default
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
        sessions[form.name] = ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    return sessions


def chain(n: int) -> NDArray[np.bool_]:
    return np.tril(np.ones((n, n), bool))


class Runner(ABC):
    """A graph with a K/V cache of `slots` rows: `run` gives logits, `commit` keeps rows of the last run.

    A run may be padded: `left` pad rows before the real ones, `right` after them.
    """

    def __init__(self, session: ort.InferenceSession, tiny: Tiny, slots: int) -> None:
        self.session, self.tiny, self.slots, self.length = session, tiny, slots, 0
        types = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
        self.dtype = next(types[i.type] for i in session.get_inputs() if i.name == "past_key.0")
        c = tiny.config
        self.names = [f"{kind}.{i}" for i in range(c.layers) for kind in ("key", "value")]
        self.cache = {n: np.zeros((1, c.kv_heads, slots, c.head_dim), self.dtype) for n in self.names}
        self.out: dict[str, NDArray[Any]] = {}

    def run(
        self,
        ids: Sequence[int],
        depth: Sequence[int] | None = None,
        mask: NDArray[np.bool_] | None = None,
        rows: Sequence[int] | None = None,
    ) -> NDArray[Any]:
        """Logits [rows, V]. depth: positions past the committed rows; mask [S, S]: which new rows see which."""
        n = len(ids)
        position = self.length + (np.arange(n) if depth is None else np.asarray(depth))
        seen = chain(n) if mask is None else mask
        feeds = {"input_ids": np.asarray([ids], np.int32), **self.feeds(position, seen)}
        if any(i.name == "rows" for i in self.session.get_inputs()):
            feeds["rows"] = np.asarray(range(n) if rows is None else rows, np.int32)
        feeds |= {f"past_{k}": v for k, v in self.cache.items()}
        names = [o.name for o in self.session.get_outputs()]
        self.out = dict(zip(names, self.session.run(None, feeds), strict=True))
        return self.out["logits"][0]

    @abstractmethod
    def feeds(self, position: NDArray[Any], seen: NDArray[np.bool_]) -> dict[str, NDArray[Any]]:
        """Inputs but ids, rows and cache."""

    @abstractmethod
    def commit(self, rows: Sequence[int]) -> None:
        """Keep these rows of the last run."""

    def bias(self, shape: tuple[int, int], seen: NDArray[np.bool_]) -> NDArray[Any]:
        bias = np.full(shape, MASKED, self.dtype)
        bias[seen] = 0
        return bias[None, None]


class Portable(Runner):
    def feeds(self, position: NDArray[Any], seen: NDArray[np.bool_]) -> dict[str, NDArray[Any]]:
        n = len(position)
        rope = self.tiny.rope
        angle = np.outer(np.maximum(position, 0), np.tile(rope.inv_freq, 2))
        past = np.zeros((n, self.slots), bool)
        past[np.asarray(position) >= self.length, : self.length] = True
        return {
            "cos": (np.cos(angle) * rope.scale).astype(self.dtype)[None, None],
            "sin": (np.sin(angle) * rope.scale).astype(self.dtype)[None, None],
            "bias_past": self.bias((n, self.slots), past),
            "bias_new": self.bias((n, n), seen),
        }

    def commit(self, rows: Sequence[int]) -> None:
        for name, buffer in self.cache.items():
            buffer[:, :, self.length : self.length + len(rows)] = self.out[f"new_{name}"][:, :, list(rows)]
        self.length += len(rows)


class Fused(Runner):
    def feeds(self, position: NDArray[Any], seen: NDArray[np.bool_]) -> dict[str, NDArray[Any]]:
        n = len(position)
        all_seen = np.zeros((n, self.slots), bool)
        all_seen[:, : self.length] = True
        all_seen[:, self.length : self.length + n] = seen
        return {
            "position_ids": np.asarray(position, np.int64)[None],
            "seqlens_k": np.asarray([self.length + n - 1], np.int32),
            "total_len": np.asarray([self.slots], np.int32),
            "bias": self.bias((n, self.slots), all_seen),
        }

    def commit(self, rows: Sequence[int]) -> None:
        for name in self.cache:
            new = self.out[f"present_{name}"]
            new[:, :, self.length : self.length + len(rows)] = new[:, :, [self.length + r for r in rows]]
            self.cache[name] = new
        self.length += len(rows)


RUNNERS: dict[str, Callable[..., Runner]] = {"portable": Portable, "fused": Fused}


@dataclass(frozen=True)
class Lab:
    """What graph tests need, in one fixture (test files are not importable from one another)."""

    models: dict[str, ModelConfig]
    runners: dict[str, Callable[..., Runner]]
    table: int = TABLE

    def tiny(self, name: str) -> Tiny:
        return Tiny(MODELS[name], random_weights(MODELS[name]))

    def quantised(self, name: str, bits: int, block: int, offset: bool) -> Tiny:
        return Tiny(MODELS[name], quantised(random_weights(MODELS[name]), bits, block, offset))

    def wrap(self, config: ModelConfig, weights: Weights) -> Tiny:
        return Tiny(config, weights)

    def weights(self, tensors: dict[str, NDArray[np.float32]]) -> DictWeights:
        return DictWeights(tensors)

    hf_logits = staticmethod(hf_logits)
    export = staticmethod(export)


@pytest.fixture(scope="session")
def lab() -> Lab:
    return Lab(MODELS, RUNNERS)
