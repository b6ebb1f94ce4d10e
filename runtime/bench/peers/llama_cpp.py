"""llama.cpp through llama-cpp-python, on the GGUF file as it is: plain and prompt lookup."""

from __future__ import annotations

from time import perf_counter
from typing import Any

PACKAGE = "llama_cpp"
PIP = "llama-cpp-python"
METHODS = ("plain", "prompt-lookup")
PRECISIONS = DEFAULTS = ("gguf",)
NEEDS = {"gguf": "gguf"}
CONTEXT = 4096
LOOKUP = 2
"""num_pred_tokens that its own documentation gives for machines without a GPU; max_ngram_size is its default, 2."""


def version() -> str:
    """Of the binding; it states no version of llama.cpp."""
    import llama_cpp

    return f"llama-cpp-python {llama_cpp.__version__}"


def settings(method: str) -> dict[str, Any]:
    """How it is called."""
    lookup = {"num_pred_tokens": LOOKUP, "max_ngram_size": 2} if method == "prompt-lookup" else {}
    return {"temp": 0.0, "n_ctx": CONTEXT, **lookup}


def open_model(model: str, draft: str | None, threads: int | None, precision: str, methods: tuple[str, ...]) -> Any:
    """A context per method; they share the file's pages."""
    import llama_cpp
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    del draft, precision

    def opened(**options: Any) -> Any:
        count = {"n_threads": threads, "n_threads_batch": threads}
        return llama_cpp.Llama(model, n_ctx=CONTEXT, verbose=False, **count, **options)

    kinds: dict[str, Any] = {
        "plain": lambda: opened(),
        "prompt-lookup": lambda: opened(draft_model=LlamaPromptLookupDecoding(num_pred_tokens=LOOKUP)),
        "logits": lambda: opened(logits_all=True),
    }
    return {"open": {name: kinds[name]() for name in methods}, "kinds": kinds}


def generate(state: Any, method: str, ids: list[int], new_tokens: int) -> tuple[list[int], list[Any], int]:
    """Greedy, one token at a time out of the binding's own loop; calls of its `eval` are the steps."""
    model = state["open"][method]
    model.reset()
    evals: list[int] = []
    whole = type(model).eval

    def counted(tokens: Any) -> None:
        evals.append(len(tokens))
        whole(model, tokens)

    model.eval = counted
    tokens: list[int] = []
    arrivals: list[tuple[float, int]] = []
    begun, seen = perf_counter(), 0
    for token in model.generate(ids, temp=0.0, reset=True):
        tokens.append(int(token))
        if len(evals) > seen:
            arrivals.append((perf_counter() - begun, 1))
        else:
            arrivals[-1] = (arrivals[-1][0], arrivals[-1][1] + 1)
        seen = len(evals)
        if len(tokens) == new_tokens:
            break
    del model.eval
    return tokens, arrivals, len(arrivals) - 1


def logits(state: Any, ids: list[int]) -> Any:
    """Of every position, in a context of its own."""
    import numpy as np

    model = state["open"].setdefault("logits", None) or state["kinds"]["logits"]()
    state["open"]["logits"] = model
    model.reset()
    model.eval(ids)
    return np.array(model.scores[: len(ids)], np.float32)
