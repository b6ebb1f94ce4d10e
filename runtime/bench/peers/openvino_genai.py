"""openvino-genai: plain, prompt lookup, draft model. It reads some GGUF files; others go through optimum-intel."""

from __future__ import annotations

from time import perf_counter
from typing import Any

PACKAGE = "openvino_genai"
PIP = 'openvino-genai; for int4, int8 and fp32 also "optimum-intel[openvino]" torch'
METHODS = ("plain", "prompt-lookup", "draft")
PRECISIONS = ("gguf", "int4", "int8", "fp32")
DEFAULTS = ("gguf",)
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

    found: str = openvino_genai.__version__
    return found


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
    return {name: og.LLMPipeline(model, "CPU", **kind, **device) for name, kind in kinds.items() if name in methods}


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
    """The pipeline gives none."""
    del state, ids
