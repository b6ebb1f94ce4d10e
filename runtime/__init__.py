"""Bundle to text: `spec-edge` and the embedding API."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spec_edge.runtime.api import LLM, Generation, Options, SpecError, Stream, load

__all__ = ["LLM", "Generation", "Options", "SpecError", "Stream", "load"]

# From 1.32 on ONNX Runtime reports to its maker, unless told not to before it is imported; the second name is newer.
for _name in ("ORT_DISABLE_TELEMETRY", "ORT_TELEMETRY_DISABLED"):
    os.environ.setdefault(_name, "1")


def __getattr__(name: str) -> Any:
    """The API on first use: a program that only asks for help loads no ONNX Runtime."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from spec_edge.runtime import api

    return getattr(api, name)
