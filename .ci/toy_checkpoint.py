"""Random checkpoints with the shapes of SmolLM2-135M, two layers deep, 512 tokens: what NPU compilers are tried on.

Enters: a folder. Leaves: `target`, `medusa` and `eagle` in it, as published models lie on a disk.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

VOCAB, HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, DIM = 512, 576, 1536, 2, 9, 3, 64
DRAFTED = 256
MEDUSA_HEADS = 3
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": DIM,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000.0,
    "hidden_act": "silu",
    "max_position_embeddings": 8192,
    "eos_token_id": 256,
}


def write_checkpoints(folder: Path) -> tuple[Path, Path, Path]:
    """The folders of the target, the Medusa heads and the EAGLE-3 drafter."""
    rng = np.random.default_rng(0)

    def matrix(rows: int, columns: int, scale: float = 1.0) -> Any:
        return (rng.normal(size=(rows, columns)) * scale / np.sqrt(columns)).astype(np.float32)

    def layer(name: str, reads: int) -> dict[str, Any]:
        made = {f"{name}.self_attn.{n}_proj.weight": matrix(KV_HEADS * DIM, reads) for n in "kv"}
        made[f"{name}.self_attn.q_proj.weight"] = matrix(HEADS * DIM, reads)
        made[f"{name}.self_attn.o_proj.weight"] = matrix(HIDDEN, HEADS * DIM)
        made |= {f"{name}.mlp.{n}_proj.weight": matrix(INNER, HIDDEN) for n in ("gate", "up")}
        made[f"{name}.mlp.down_proj.weight"] = matrix(HIDDEN, INNER)
        norms = ("input_layernorm", "post_attention_layernorm")
        return made | {f"{name}.{n}.weight": np.ones(HIDDEN, np.float32) for n in norms}

    # A residual and logits of the size that real models have: the precision check must see what it sees in them.
    target = {"model.embed_tokens.weight": matrix(VOCAB, HIDDEN, 4.0), "model.norm.weight": np.ones(HIDDEN, np.float32)}
    for i in range(LAYERS):
        target |= layer(f"model.layers.{i}", HIDDEN)
    medusa = {f"{i}.0.linear.weight": matrix(HIDDEN, HIDDEN) for i in range(MEDUSA_HEADS)}
    medusa |= {f"{i}.0.linear.bias": np.zeros(HIDDEN, np.float32) for i in range(MEDUSA_HEADS)}
    medusa |= {f"{i}.1.weight": matrix(VOCAB, HIDDEN) for i in range(MEDUSA_HEADS)}
    eagle = layer("midlayer", 2 * HIDDEN) | {"fc.weight": matrix(HIDDEN, 2 * HIDDEN)}
    eagle |= {f"{n}.weight": np.ones(HIDDEN, np.float32) for n in ("midlayer.hidden_norm", "norm")}
    eagle |= {"lm_head.weight": matrix(DRAFTED, HIDDEN), "d2t": np.zeros(DRAFTED, np.int64)}
    eagle |= {"t2d": np.arange(VOCAB) < DRAFTED}
    named = {"num_hidden_layers": 1, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": DRAFTED}
    named["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [0, 1]}
    text = {"num_hidden_layers": LAYERS, "architectures": ["LlamaForCausalLM"], "tie_word_embeddings": True}
    heads = {"medusa_num_heads": MEDUSA_HEADS, "medusa_num_layers": 1}
    folders = (
        _write(folder / "target", "model.safetensors", target, CONFIG | text),
        _write(folder / "medusa", "medusa_lm_head.safetensors", medusa, heads),
        _write(folder / "eagle", "model.safetensors", eagle, CONFIG | {"tie_word_embeddings": False} | named),
    )
    _tokenizer().save(str(folder / "target" / "tokenizer.json"))
    return folders


def _write(folder: Path, file: str, tensors: dict[str, Any], config: dict[str, Any]) -> Path:
    folder.mkdir(parents=True)
    save_file({name: np.ascontiguousarray(value) for name, value in tensors.items()}, folder / file, {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def _tokenizer() -> Tokenizer:
    """One token per byte and one that ends the text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.add_special_tokens([AddedToken("<|end|>", special=True, normalized=False)])
    return made
