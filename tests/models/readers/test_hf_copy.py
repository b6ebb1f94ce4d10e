"""A checkpoint written as a Hugging Face folder: transformers reads the same network out of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from tiny_models import gguf_keys, gguf_tensors, tiny_llama, tiny_qwen2, transformers_logits, write_gguf
from transformers import AutoModelForCausalLM, PreTrainedModel

from spec_edge.export import hf_copy
from spec_edge.models.open import open_checkpoint

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
Save = Callable[..., Path]


def copied(source: Path, folder: Path) -> Any:
    """transformers' reading of the copy."""
    hash_ = open_checkpoint(source).source.sha256
    done = CliRunner().invoke(hf_copy.main, [str(source), "-o", str(folder), "--sha256", hash_])
    assert done.exit_code == 0, done.output
    return AutoModelForCausalLM.from_pretrained(folder, local_files_only=True).float().eval()


@pytest.mark.parametrize(
    ("make", "changes"),
    [(tiny_llama, {}), (tiny_llama, {"rope_parameters": LLAMA3}), (tiny_qwen2, {"tie_word_embeddings": True})],
    ids=["llama", "llama3 rope", "qwen2 tied"],
)
def test_a_folders_copy_is_the_same_network(
    make: Callable[..., PreTrainedModel], changes: dict[str, Any], tmp_path: Path, save_folder: Save
) -> None:
    model = make(**changes)
    copy = copied(save_folder(model, tmp_path / "model"), tmp_path / "copy")
    ids = np.random.default_rng(3).integers(0, 256, 80)
    np.testing.assert_allclose(transformers_logits(copy, ids), transformers_logits(model, ids), rtol=0, atol=5e-5)
    first, second = open_checkpoint(tmp_path / "model"), open_checkpoint(tmp_path / "copy")
    assert second.config == first.config and second.text.eos_ids == first.text.eos_ids
    assert second.text.tokenizer_json == first.text.tokenizer_json


def test_a_gguf_files_copy_is_the_same_network(tmp_path: Path) -> None:
    model = tiny_llama()
    path = write_gguf(tmp_path / "tiny.gguf", "llama", gguf_keys(model), gguf_tensors(model))
    copy = copied(path, tmp_path / "copy")
    ids = np.random.default_rng(4).integers(0, 256, 60)
    np.testing.assert_allclose(transformers_logits(copy, ids), transformers_logits(model, ids), rtol=0, atol=5e-5)


def test_other_weights_are_refused_and_nothing_is_left(tmp_path: Path, save_folder: Save) -> None:
    source = save_folder(tiny_llama(), tmp_path / "model")
    done = CliRunner().invoke(hf_copy.main, [str(source), "-o", str(tmp_path / "copy"), "--sha256", "0" * 64])
    assert done.exit_code == 1 and "holds other weights than the bundle was made from" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]
