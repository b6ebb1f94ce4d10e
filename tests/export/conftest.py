"""Tiny targets and drafters on disk, for tests that export them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from spec_edge.export.cli import main

VOCAB, HIDDEN, LAYERS, HEADS, KV_HEADS = 257, 64, 2, 4, 2
Tensors = dict[str, NDArray[Any]]
EAGLE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "rms_norm_eps": 1e-5,
    "vocab_size": 257,
    "draft_vocab_size": 100,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "max_position_embeddings": 256,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1]},
}
"""An EAGLE-3 drafter for the targets made here; it reads what enters their two layers."""


def byte_tokenizer() -> Tokenizer:
    """One token per byte and one that ends the text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.add_special_tokens([AddedToken("<|end|>", special=True, normalized=False)])
    return made


def target_tensors(seed: int, scale: float) -> Tensors:
    """Random weights of a Llama; `scale` of its matrices, in units of 1 / sqrt(inputs)."""
    rng, dim = np.random.default_rng(seed), HIDDEN // HEADS
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens": (VOCAB, HIDDEN), "model.norm": (HIDDEN,)}
    shapes["lm_head"] = (VOCAB, HIDDEN)
    for i in range(LAYERS):
        layer = f"model.layers.{i}."
        shapes |= {f"{layer}{n}": (HIDDEN,) for n in ("input_layernorm", "post_attention_layernorm")}
        shapes |= {f"{layer}self_attn.{n}_proj": (HIDDEN, HIDDEN) for n in "qo"}
        shapes |= {f"{layer}self_attn.{n}_proj": (KV_HEADS * dim, HIDDEN) for n in "kv"}
        shapes |= {f"{layer}mlp.{n}_proj": (2 * HIDDEN, HIDDEN) for n in ("gate", "up")}
        shapes[f"{layer}mlp.down_proj"] = (HIDDEN, 2 * HIDDEN)
    return {
        f"{name}.weight": (
            rng.normal(size=shape) * scale / np.sqrt(shape[-1]) if len(shape) > 1 else np.ones(shape)
        ).astype(np.float32)
        for name, shape in shapes.items()
    }


def target_config() -> dict[str, Any]:
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "eos_token_id": 256,
    }


@dataclass(frozen=True)
class Bench:
    """Builders: test files are not importable from one another."""

    vocab: int = VOCAB
    hidden: int = HIDDEN

    @property
    def eagle_config(self) -> dict[str, Any]:
        return dict(EAGLE)

    def target(self, folder: Path, seed: int = 0, scale: float = 1.0, extra: Tensors | None = None) -> Path:
        """A Llama folder."""
        folder.mkdir(parents=True)
        save_file(target_tensors(seed, scale) | (extra or {}), folder / "model.safetensors", {"format": "pt"})
        (folder / "config.json").write_text(json.dumps(target_config()), "utf-8")
        byte_tokenizer().save(str(folder / "tokenizer.json"))
        return folder

    def medusa_tensors(self, heads: int = 3, own: bool = True, seed: int = 1, prefix: str = "") -> Tensors:
        """Dialect A, or B where the heads have no output matrix of their own."""
        rng = np.random.default_rng(seed)
        out: Tensors = {}
        for i in range(heads):
            out[f"{prefix}{i}.0.linear.weight"] = rng.normal(size=(HIDDEN, HIDDEN)) / np.sqrt(HIDDEN)
            out[f"{prefix}{i}.0.linear.bias"] = rng.normal(size=HIDDEN) / 4
            if own:
                out[f"{prefix}{i}.1.weight"] = rng.normal(size=(VOCAB, HIDDEN)) / np.sqrt(HIDDEN)
        return {name: value.astype(np.float32) for name, value in out.items()}

    def drafter(self, folder: Path, tensors: Tensors, config: dict[str, Any], file: str) -> Path:
        """A folder with a safetensors file and a config.json."""
        folder.mkdir(parents=True)
        save_file(tensors, folder / file)
        (folder / "config.json").write_text(json.dumps(config), "utf-8")
        return folder

    def medusa(self, folder: Path, heads: int = 3, own: bool = True, seed: int = 1) -> Path:
        """A folder as published."""
        config: dict[str, Any] = {"medusa_num_heads": heads, "medusa_num_layers": 1}
        config |= {} if own else {"version": "2"}
        return self.drafter(folder, self.medusa_tensors(heads, own, seed), config, "medusa_lm_head.safetensors")

    def export(self, *args: object) -> Result:
        """spec-export with these arguments."""
        return CliRunner().invoke(main, [str(a) for a in args])

    def refused(self, *args: object, code: int = 1) -> str:
        """The one line of a call of spec-export that must fail."""
        result = self.export(*args)
        assert result.exit_code == code, result.output
        assert "Traceback" not in result.output
        last = result.stderr.splitlines()[-1]
        assert last.startswith("Error: ") and "Error" not in result.stderr.removesuffix("\n").removesuffix(last)
        return last

    def bundle(self, model: Path, output: Path, *args: object, precision: str = "fp32", widths: str = "8") -> Path:
        """An export that must succeed."""
        done = self.export(model, "-o", output, "--precision", precision, "--widths", widths, *args)
        assert done.exit_code == 0, done.output
        return output


@pytest.fixture(scope="session")
def bench() -> Bench:
    return Bench()


@pytest.fixture(scope="module")
def tiny_target(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target's folder; do not change it."""
    return bench.target(tmp_path_factory.mktemp("target") / "big")


@pytest.fixture(scope="module")
def heads(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Medusa heads of dialect A in safetensors; do not change them."""
    return bench.medusa(tmp_path_factory.mktemp("heads") / "medusa")
