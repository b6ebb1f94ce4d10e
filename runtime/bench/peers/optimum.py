"""optimum-onnx: ORTModelForCausalLM, transformers' loop over ONNX Runtime. It wants an older transformers."""

from __future__ import annotations

from time import perf_counter
from typing import Any

PACKAGE = "optimum"
PIP = "optimum-onnx onnxruntime torch"
METHODS = ("plain",)
PRECISIONS = DEFAULTS = ("fp32",)
NEEDS = {"fp32": "hf"}


class Arrivals:
    """A streamer that notes when tokens come. The first ones put are the prompt."""

    def __init__(self) -> None:
        self.begun = perf_counter()
        self.arrivals: list[tuple[float, int]] = []
        self._prompt = True

    def put(self, value: Any) -> None:
        """Tokens [n] or [1, n]."""
        if not self._prompt:
            self.arrivals.append((perf_counter() - self.begun, int(value.numel())))
        self._prompt = False

    def end(self) -> None:
        """Nothing is held back."""


def version() -> str:
    """Of optimum-onnx, ONNX Runtime and transformers."""
    from importlib.metadata import version as installed

    import optimum.onnxruntime

    del optimum
    names = ("optimum-onnx", "onnxruntime", "transformers")
    return ", ".join(f"{name} {installed(name)}" for name in names)


def settings(method: str) -> dict[str, Any]:
    """Its own defaults."""
    del method
    return {"do_sample": False, "use_cache": True}


def convert(source: str, folder: str, precision: str) -> None:
    """ONNX by its own exporter."""
    from optimum.onnxruntime import ORTModelForCausalLM

    del precision
    ORTModelForCausalLM.from_pretrained(source, export=True, local_files_only=True).save_pretrained(folder)


def open_model(model: str, draft: str | None, threads: int | None, precision: str, methods: tuple[str, ...]) -> Any:
    """A session on the CPU."""
    import onnxruntime
    from optimum.onnxruntime import ORTModelForCausalLM

    del draft, precision, methods
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or 0
    network = ORTModelForCausalLM.from_pretrained(model, session_options=options, local_files_only=True)
    network.generation_config.eos_token_id = None
    network.generation_config.pad_token_id = 0
    return network


def generate(state: Any, method: str, ids: list[int], new_tokens: int) -> tuple[list[int], list[Any], int]:
    """Greedy; one token a step."""
    import torch

    del method
    prompt, streamer = torch.tensor([ids]), Arrivals()
    out = state.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=new_tokens,
        do_sample=False,
        streamer=streamer,
    )
    return out[0, len(ids) :].tolist(), streamer.arrivals, len(streamer.arrivals) - 1


def logits(state: Any, ids: list[int]) -> Any:
    """Of every position."""
    import torch

    prompt = torch.tensor([ids])
    return state(input_ids=prompt, attention_mask=torch.ones_like(prompt)).logits[0].float().numpy()
