"""Fixtures of the readers' tests. `tiny_models` beside this file is importable by them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedModel

sys.path.insert(0, str(Path(__file__).parent))

from tiny_models import SPECIALS


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    """torch's threads wait by spinning, which on few cores starves numpy's in the same process."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def hard_corpus() -> list[str]:
    found: list[str] = json.loads((Path(__file__).parent / "hard_corpus.json").read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="session")
def trained_bpe(hard_corpus: list[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """(tokens, merges) of a BPE trained without any splitting, so that its merges cross every boundary.

    Tokenisers that split differently then give different ids.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1500, min_frequency=1, initial_alphabet=alphabet, show_progress=False)
    plain = [text for text in hard_corpus if "<|" not in text and "<tool_call>" not in text]
    tokenizer.train_from_iterator(plain * 2, trainer)
    state = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(state["vocab"], key=state["vocab"].__getitem__)
    return tokens, [(a, b) for a, b in state["merges"]]


@pytest.fixture(scope="session")
def byte_tokenizer() -> bytes:
    """A tokenizer.json of 256 bytes and the special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIALS))
    return tokenizer.to_str().encode()


@pytest.fixture
def save_folder(byte_tokenizer: bytes) -> Callable[..., Path]:
    """save(model, folder, **options of save_pretrained): a whole model folder."""

    def save(model: PreTrainedModel, folder: Path, **options: Any) -> Path:
        model.save_pretrained(folder, **options)
        (folder / "tokenizer.json").write_bytes(byte_tokenizer)
        settings = {"bos_token": SPECIALS[0], "eos_token": {"content": SPECIALS[0]}, "chat_template": "{{ messages }}"}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
        return folder

    return save
