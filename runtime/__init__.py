"""Bundle to text: `spec-edge` and the embedding API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spec_edge.runtime.api import LLM, Generation, Options, SpecError, Stream, load

__all__ = ["LLM", "Generation", "Options", "SpecError", "Stream", "load"]


def __getattr__(name: str) -> Any:
    """The API on first use: a program that only asks for help loads no ONNX Runtime."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from spec_edge.runtime import api

    return getattr(api, name)
