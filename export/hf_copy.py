"""A model in Hugging Face's form, float32: the same weights for tools that read nothing else.

Enters: a GGUF file or a Hugging Face folder. Leaves: a folder with config.json, model.safetensors and the tokenizer,
whole or not at all. `python -m spec_edge.export.hf_copy MODEL -o FOLDER --sha256 HASH` is how `spec-edge bench` gives
its peers the weights of the bundle: HASH is the bundle's record of its source.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from spec_edge.export.staging import staged
from spec_edge.models.checkpoint import Checkpoint, ModelConfig, TextFiles, Weights
from spec_edge.models.contract import SpecError
from spec_edge.models.family import family
from spec_edge.models.open import open_checkpoint
from spec_edge.runtime.named_path import NamedPath

BYTES = 4
"""Of one float32."""


def config_json(config: ModelConfig, eos_ids: tuple[int, ...], bos_id: int | None) -> dict[str, Any]:
    """config.json. SpecError: rotary factors that only GGUF files can state."""
    if config.rope_factors is not None:
        raise SpecError("these weights state rotary factors that a Hugging Face folder cannot; use the original folder")
    rope: dict[str, Any] = {"rope_type": "default"}
    if scaling := config.rope_scaling:
        rope = {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_context,
        }
    return {
        "architectures": list(family(config.family, config.family).hf_architectures[:1]),
        "model_type": config.family,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "rope_scaling": rope if config.rope_scaling else None,
        "tie_word_embeddings": config.tied,
        "max_position_embeddings": config.context,
        "attention_bias": False,
        "mlp_bias": False,
        "use_sliding_window": False,
        "bos_token_id": bos_id,
        "eos_token_id": list(eos_ids),
        "torch_dtype": "float32",
    }


def tokenizer_config(text: TextFiles) -> dict[str, Any]:
    """tokenizer_config.json for the generic fast tokenizer."""
    added = json.loads(text.tokenizer_json)["added_tokens"]
    names = {token["id"]: token["content"] for token in added}
    end = names.get(text.eos_ids[0]) if text.eos_ids else None
    begin = names.get(text.bos_id) if text.bos_id is not None else None
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": begin,
        "eos_token": end,
        "pad_token": end,
        "chat_template": text.chat_template,
        "clean_up_tokenization_spaces": False,
    }


def write_safetensors(weights: Weights, path: Path) -> None:
    """All tensors as float32, one in memory at a time."""
    names, at, header = sorted(weights.names()), 0, {}
    for name in names:
        shape = weights.shape(name)
        size = BYTES
        for dim in shape:
            size *= dim
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    head = json.dumps(header | {"__metadata__": {"format": "pt"}}).encode()
    head += b" " * (-len(head) % 8)
    with path.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for name in names:
            file.write(weights.dense(name).astype("<f4", copy=False).tobytes())


def _files(checkpoint: Checkpoint) -> Iterator[tuple[str, Mapping[str, Any]]]:
    text = checkpoint.text
    yield "config.json", config_json(checkpoint.config, text.eos_ids, text.bos_id)
    yield "tokenizer_config.json", tokenizer_config(text)
    end = {"bos_token_id": text.bos_id, "eos_token_id": list(text.eos_ids), "do_sample": False}
    yield "generation_config.json", end


def write_folder(checkpoint: Checkpoint, folder: Path) -> None:
    """The model's files into an empty folder."""
    for name, content in _files(checkpoint):
        (folder / name).write_text(json.dumps(content, indent=1), encoding="utf-8", newline="\n")
    (folder / "tokenizer.json").write_bytes(checkpoint.text.tokenizer_json)
    write_safetensors(checkpoint.weights, folder / "model.safetensors")


@click.command()
@click.argument("model", type=NamedPath())
@click.option("-o", "--output", type=NamedPath(), required=True, help="The new folder.")
@click.option("--sha256", "expected", required=True, help="SHA-256 of the weights, as a bundle records it.")
def main(model: Path, output: Path, expected: str) -> None:
    """Write MODEL as a Hugging Face folder in float32."""
    checkpoint = open_checkpoint(model)
    if checkpoint.source.sha256 != expected:
        raise SpecError(f"{model} holds other weights than the bundle was made from (their SHA-256 differ)")
    with staged(output, replace=False) as folder:
        write_folder(checkpoint, folder)


if __name__ == "__main__":
    main()
