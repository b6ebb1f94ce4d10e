"""openvino-genai: plain, prompt lookup, draft model. It reads some GGUF files; others go through optimum-intel."""

from __future__ import annotations

import os
import shutil
import tempfile
from time import perf_counter
from typing import Any

PACKAGE = "openvino_genai"
PIP = 'openvino-genai; for int4, int8 and fp32 also "optimum-intel[openvino]" torch'
METHODS = ("plain", "prompt-lookup", "draft")
PRECISIONS = ("gguf", "int4", "int8", "fp32")
DEFAULTS = ("gguf", "int8")
NEEDS = {"gguf": "gguf", "int4": "hf", "int8": "hf", "fp32": "hf"}
SPECULATIVE: dict[str, dict[str, Any]] = {
    "plain": {},
    "prompt-lookup": {"num_assistant_tokens": 5, "max_ngram_size": 3},
    "draft": {"num_assistant_tokens": 5},
}
"""Of its own samples."""

BITS = {"int4": 4, "int8": 8}


def version() -> str:
    """Of openvino-genai."""
    import openvino_genai

    return f"openvino-genai {openvino_genai.__version__}"


def settings(method: str) -> dict[str, Any]:
    """Of its own samples."""
    return {"do_sample": False, "ignore_eos": True, **SPECULATIVE[method]}


def convert(source: str, folder: str, precision: str) -> None:
    """OpenVINO's form by optimum-intel. The gguf precision needs none: the pipeline reads the file."""
    from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig

    weights = OVWeightQuantizationConfig(bits=BITS[precision]) if precision in BITS else None
    options = {"quantization_config": weights} if weights else {"load_in_8bit": False}
    model = OVModelForCausalLM.from_pretrained(
        source, export=True, compile=False, local_files_only=True, stateful=True, **options
    )
    model.save_pretrained(folder)
    _write_tokenizer(source, folder)


def _write_tokenizer(source: str, folder: str) -> None:
    """The pipeline will not open without one; prompts are given as ids."""
    import openvino
    from openvino_tokenizers import convert_tokenizer
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(source, local_files_only=True)
    for name, model in zip(("tokenizer", "detokenizer"), convert_tokenizer(tokenizer, with_detokenizer=True)):  # noqa: B905
        openvino.save_model(model, f"{folder}/openvino_{name}.xml")


def open_model(model: str, draft: str | None, threads: int | None, precision: str, methods: tuple[str, ...]) -> Any:
    """A pipeline per method: what it speculates with is fixed when it is opened."""
    import openvino_genai as og

    del precision
    device = {"INFERENCE_NUM_THREADS": threads} if threads else {}
    kinds: dict[str, dict[str, Any]] = {"plain": {}, "prompt-lookup": {"prompt_lookup": True}}
    if draft:
        kinds["draft"] = {"draft_model": og.draft_model(draft, "CPU", **device)}
    state: dict[str, Any] = {"path": model, "device": device}
    return state | {name: og.LLMPipeline(model, "CPU", **kinds[name], **device) for name in methods}


def generate(state: Any, method: str, ids: list[int], new_tokens: int) -> tuple[list[int], list[Any], int]:
    """Greedy. The streamer gets the tokens of each step together."""
    import numpy as np
    import openvino
    import openvino_genai as og

    arrivals: list[tuple[float, int]] = []

    class Arrivals(og.StreamerBase):  # type: ignore[misc]
        """Notes when tokens come."""

        def write(self, token: Any) -> Any:
            """One token, or a step's."""
            arrivals.append((perf_counter() - begun, 1 if isinstance(token, int) else len(token)))
            return og.StreamingStatus.RUNNING

        def end(self) -> None:
            """Nothing is held back."""

    config = og.GenerationConfig()
    wanted = {"max_new_tokens": new_tokens, "ignore_eos": True, "do_sample": False, **SPECULATIVE[method]}
    for name, value in wanted.items():
        setattr(config, name, value)
    prompt, streamer = openvino.Tensor(np.array([ids], np.int64)), Arrivals()
    begun = perf_counter()
    result = state[method].generate(prompt, config, streamer)
    return list(result.tokens[0]), arrivals, len(arrivals) - 1


def logits(state: Any, ids: list[int]) -> Any:
    """Of every position. The pipeline gives none: its network runs in OpenVINO, compiled with the same options."""
    import numpy as np
    import openvino

    if "network" not in state:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            network = openvino.Core().read_model(_network(state["path"], folder) + "/openvino_model.xml")
            state["network"] = openvino.compile_model(network, "CPU", state["device"])
    network, size = state["network"], len(ids)
    feeds = {
        "input_ids": np.array([ids], np.int64),
        "attention_mask": np.ones((1, size), np.int64),
        "position_ids": np.arange(size, dtype=np.int64)[None],
        "beam_idx": np.zeros(1, np.int32),
    }
    known = {name for port in network.inputs for name in port.names}
    request = network.create_infer_request()  # a fresh one: the cache is its state
    return request.infer({name: feed for name, feed in feeds.items() if name in known})[0][0]


def _network(path: str, folder: str) -> str:
    """Where the network of these weights lies as OpenVINO's own files; those of a GGUF file are written first."""
    import openvino_genai as og

    if os.path.isdir(path):  # noqa: PTH112
        return path
    copy = os.path.join(folder, os.path.basename(path))  # noqa: PTH118, PTH119
    shutil.copy(path, copy)
    og.LLMPipeline(copy, "CPU", enable_save_ov_model=True)
    return folder
