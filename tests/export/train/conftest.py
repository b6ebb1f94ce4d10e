"""A target whose next token follows mostly from the current one, so that there is something to learn in seconds."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Two threads of a busy machine wait for one another, and sums of another number of threads differ."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def learnable(bench: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with weak layers, and prompts beside it (prompts.txt)."""
    root = tmp_path_factory.mktemp("learnable")
    rng, weak = np.random.default_rng(5), {}
    for i in range(2):
        weak[f"model.layers.{i}.self_attn.o_proj.weight"] = rng.normal(size=(bench.hidden, bench.hidden)) / 64
        weak[f"model.layers.{i}.mlp.down_proj.weight"] = rng.normal(size=(bench.hidden, 2 * bench.hidden)) / 64
    weak["lm_head.weight"] = rng.normal(size=(bench.vocab, bench.hidden)) / 2
    extra = {name: value.astype(np.float32) for name, value in weak.items()}
    folder: Path = bench.target(root / "target", seed=3, extra=extra)
    lines = [f"{'abcdefghijklmnopqrstuvwxyz'[i % 26] * 2} is number {i}" for i in range(60)]
    (root / "prompts.txt").write_text("\n".join(lines), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def options(learnable: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[object, ...]:
    """Options of a run that takes a few seconds; the answers are shared."""
    cache = tmp_path_factory.mktemp("answers") / "cache"
    prompts = learnable.parent / "prompts.txt"
    return (
        "--prompts",
        prompts,
        "--tokens",
        2500,
        "--draft-vocab",
        192,
        "--cache",
        cache,
        "--rate",
        5e-3,
        "--batch",
        256,
    )


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
