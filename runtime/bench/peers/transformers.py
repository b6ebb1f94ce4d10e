"""transformers on PyTorch: plain, assisted by a draft model, prompt lookup."""

from __future__ import annotations

from time import perf_counter
from typing import Any

PACKAGE = "transformers"
BESIDE = ("torch",)
PIP = "transformers torch"
METHODS = ("plain", "draft", "prompt-lookup")
PRECISIONS = ("bf16", "fp32")
DEFAULTS = ("bf16",)
NEEDS = {"bf16": "hf", "fp32": "hf"}
LOOKUP = 10
"""prompt_lookup_num_tokens of the library's own examples; it has no default."""


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
    """Of transformers and torch."""
    import torch
    import transformers

    return f"transformers {transformers.__version__}, torch {torch.__version__}"


def settings(method: str) -> dict[str, Any]:
    """Its own defaults where it has them."""
    own: dict[str, dict[str, Any]] = {
        "plain": {},
        "draft": {"assistant_model": "its own defaults"},
        "prompt-lookup": {"prompt_lookup_num_tokens": LOOKUP},
    }
    return {"do_sample": False, **own[method]}


def open_model(model: str, draft: str | None, threads: int | None, precision: str, methods: tuple[str, ...]) -> Any:
    """The target, and the draft model if it is to be measured."""
    import torch
    from transformers import AutoModelForCausalLM

    if threads:
        torch.set_num_threads(threads)
    dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[precision]

    def opened(path: str) -> Any:
        network = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, local_files_only=True).eval()
        network.generation_config.eos_token_id = None
        network.generation_config.pad_token_id = 0
        return network

    return {"model": opened(model), "draft": opened(draft) if draft and "draft" in methods else None}


def generate(state: Any, method: str, ids: list[int], new_tokens: int) -> tuple[list[int], list[Any], int]:
    """Greedy; the target's forward passes are counted."""
    import torch

    passes: list[int] = []
    how: dict[str, dict[str, Any]] = {
        "plain": {},
        "draft": {"assistant_model": state["draft"]},
        "prompt-lookup": {"prompt_lookup_num_tokens": LOOKUP},
    }
    counter = state["model"].register_forward_hook(lambda *_: passes.append(1))
    prompt = torch.tensor([ids])
    try:
        with torch.inference_mode():
            streamer = Arrivals()
            out = state["model"].generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=new_tokens,
                do_sample=False,
                streamer=streamer,
                **how[method],
            )
    finally:
        counter.remove()
    return out[0, len(ids) :].tolist(), streamer.arrivals, len(passes) - 1


def logits(state: Any, ids: list[int]) -> Any:
    """Of every position."""
    import torch

    with torch.inference_mode():
        return state["model"](torch.tensor([ids])).logits[0].float().numpy()
