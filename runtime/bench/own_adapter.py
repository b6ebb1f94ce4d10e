"""spec-edge itself behind the peers' protocol: each method once in a fresh process, to see its memory.

Enters: a bundle's folder as the model. Leaves: what peers/__init__.py says. This adapter runs where spec-edge is.
"""

from __future__ import annotations

from importlib.metadata import version as installed
from typing import Any

PACKAGE = "spec_edge"
PIP = "spec-edge"
METHODS = ()
PRECISIONS = DEFAULTS = ("bundle",)


def version() -> str:
    """Of this installation."""
    return installed("spec-edge")


def open_model(
    model: dict[str, Any], draft: str | None, threads: int | None, precision: str, methods: tuple[str, ...]
) -> Any:
    """The loaded model, with what these methods draft with."""
    from spec_edge.runtime.api import load
    from spec_edge.runtime.bench.own import contender

    del precision
    llm = load(
        model["bundle"], provider=model["provider"], strict=True, threads=threads, draft=draft, draft_threads=threads
    )
    for method in methods:
        contender(llm, method, 0.0)
    return llm


def generate(state: Any, method: str, ids: list[int], new_tokens: int) -> tuple[list[int], list[Any], int | None]:
    """One greedy generation."""
    from spec_edge.runtime.bench.own import contender
    from spec_edge.runtime.bench.runs import Item

    run = contender(state, method, 0.0).generate(Item("", "", 0, tuple(ids), (0,) * new_tokens))
    return list(run.tokens), list(run.arrivals), run.steps
