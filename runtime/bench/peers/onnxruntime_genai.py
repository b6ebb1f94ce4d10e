"""onnxruntime-genai: plain, n-gram lookup, draft model. Its builder rounds the weights to int4 or int8 anew."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

PACKAGE = "onnxruntime_genai"
PIP = "onnxruntime-genai onnxruntime onnx onnx-ir torch transformers"
METHODS = ("plain", "prompt-lookup", "draft")
PRECISIONS = ("int4", "int8", "fp32")
DEFAULTS = ("int4", "int8")
NEEDS = {"int4": "hf", "int8": "hf", "fp32": "hf"}

SPECULATIVE: dict[str, dict[str, Any]] = {
    "plain": {},
    "prompt-lookup": {"ngram_size": 4, "max_draft_tokens": 4},
    "draft": {"max_draft_tokens": 4},
}
"""What its documentation recommends to begin with."""

CONFIG = "genai_config.json"


def version() -> str:
    """Of onnxruntime-genai and ONNX Runtime."""
    from importlib.metadata import version as installed

    import onnxruntime_genai

    del onnxruntime_genai
    return ", ".join(f"{name} {installed(name)}" for name in ("onnxruntime-genai", "onnxruntime"))


def settings(method: str) -> dict[str, Any]:
    """Of its own documentation."""
    return {"do_sample": False, **SPECULATIVE[method]}


def convert(source: str, folder: str, precision: str) -> None:
    """By its own model builder, with the builder's defaults."""
    builder = [sys.executable, "-m", "onnxruntime_genai.models.builder"]
    with tempfile.TemporaryDirectory() as cache:
        where = ["-i", source, "-o", folder, "-p", precision, "-e", "cpu", "-c", cache]
        done = subprocess.run([*builder, *where], capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines() or ["it said nothing"]
        raise RuntimeError(f"the model builder failed: {said[-1]}")
    _never_end(Path(folder) / CONFIG)


def _never_end(file: Path) -> None:
    """End of sequence becomes an id that is hardly ever written, so that everybody writes equally many tokens. In the
    file: an overlay adds to the list."""
    config = json.loads(file.read_text("utf-8"))
    config["model"]["eos_token_id"] = [config["model"]["vocab_size"] - 1]
    file.write_text(json.dumps(config, indent=1), encoding="utf-8")


def open_model(model: str, draft: str | None, threads: int | None, precision: str, methods: tuple[str, ...]) -> Any:
    """The model alone, and once more with the draft model beside it."""
    del precision
    state: dict[str, Any] = {"alone": _opened(model, threads)}
    if draft and "draft" in methods:
        with tempfile.TemporaryDirectory(dir=Path(model).parent, ignore_cleanup_errors=True) as folder:
            _write_pair(Path(folder), Path(model), Path(draft))
            state["pair"] = _opened(folder, threads)
    return state


def _opened(folder: str, threads: int | None) -> Any:
    import onnxruntime_genai as og

    stated = json.loads((Path(folder) / CONFIG).read_text("utf-8"))["model"]
    parts = [part for part in ("decoder", "draft") if part in stated] if threads else []
    options = {"session_options": {"intra_op_num_threads": threads}}
    config = og.Config(folder)
    config.overlay(json.dumps({"model": dict.fromkeys(parts, options)}))
    return og.Model(config)


def _write_pair(folder: Path, model: Path, draft: Path) -> None:
    """The target's configuration with the draft's decoder in it. Files must lie inside the folder: hard links do."""
    target, other = (json.loads((place / CONFIG).read_text("utf-8")) for place in (model, draft))
    target["model"]["draft"] = other["model"]["decoder"]
    for part, place in (("decoder", model), ("draft", draft)):
        shutil.copytree(place, folder / part, copy_function=os.link)
        target["model"][part]["filename"] = f"{part}/{target['model'][part]['filename']}"
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(model / name, folder)
    (folder / CONFIG).write_text(json.dumps(target), encoding="utf-8")


def generate(state: Any, method: str, ids: list[int], new_tokens: int) -> tuple[list[int], list[Any], int]:
    """Greedy. A speculative round queues its tokens and hands them out one by one: they count as one arrival."""
    import numpy as np
    import onnxruntime_genai as og

    model = state["pair" if method == "draft" else "alone"]
    params = og.GeneratorParams(model)
    params.set_search_options(max_length=len(ids) + new_tokens, do_sample=False)
    if SPECULATIVE[method]:
        params.set_speculative_options(**SPECULATIVE[method])
    arrivals: list[tuple[float, int]] = []
    generator = og.Generator(model, params)
    count, begun = 0, perf_counter()
    generator.append_tokens(np.array([ids], np.int32))
    while not generator.is_done():
        generator.generate_next_token()
        count += 1
        if not (SPECULATIVE[method] and generator.get_speculative_stats()["tokens_buffered"]):
            arrivals.append((perf_counter() - begun, count))
            count = 0
    if count:
        arrivals.append((perf_counter() - begun, count))
    return generator.get_sequence(0)[len(ids) :].tolist(), arrivals, len(arrivals) - 1


def logits(state: Any, ids: list[int]) -> Any:
    """Of every position, from the prompt's own run."""
    import numpy as np
    import onnxruntime_genai as og

    params = og.GeneratorParams(state["alone"])
    params.set_search_options(max_length=len(ids) + 1)
    generator = og.Generator(state["alone"], params)
    generator.append_tokens(np.array([ids], np.int32))
    return generator.get_output("logits")[0].astype(np.float32)
