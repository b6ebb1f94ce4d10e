"""One ONNX graph opened in ONNX Runtime, on a provider that was asked for by name.

Enters: a bundle, one of its graphs, a provider's name, a thread count. Leaves: an `onnxruntime.InferenceSession` whose
inputs and outputs are the ones that the bundle states, and how many nodes each provider runs. Nothing falls back:
a provider that is missing or fails is an error.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any, TypeVar

import onnxruntime as ort

from spec_edge.models.contract import BadUsage, GraphSpec, SpecError, TensorSpec
from spec_edge.runtime.bundle import Bundle
from spec_edge.runtime.onnx_file import check_graph

CPU = "CPUExecutionProvider"
SUFFIX = "ExecutionProvider"
REMOTE = frozenset({"AzureExecutionProvider"})
"""Providers that send data to another machine are never offered."""

DTYPES = {"float": "float32", "double": "float64"}
"""ONNX Runtime's names of tensor types that differ from numpy's."""

TELLS_PLACEMENT = hasattr(ort.InferenceSession, "get_provider_graph_assignment_info")
"""From ONNX Runtime 1.24 on; Python 3.10 has 1.23 only."""

QUIET = 3
"""Log severity: errors only."""

T = TypeVar("T")


def available() -> dict[str, str]:
    """Short name -> ONNX Runtime's name of every local provider of this installation."""
    names = [n for n in ort.get_available_providers() if n not in REMOTE]
    return {n.removesuffix(SUFFIX).lower(): n for n in names}


def provider_name(name: str) -> str:
    """ONNX Runtime's name for `name` (short or full, any case); BadUsage lists the available ones."""
    known = available()
    short = name.lower().removesuffix(SUFFIX.lower())
    if short not in known:
        near = difflib.get_close_matches(short, known, 1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        raise BadUsage(f"provider '{name}' is not available here.{hint} Available: {', '.join(sorted(known))}")
    return known[short]


def open_graph(bundle: Bundle, graph: GraphSpec, provider: str, threads: int | None) -> Any:
    """An `InferenceSession` over `graph`. threads: intra-op threads, None for one per physical core."""
    full = provider_name(provider)
    ort.disable_telemetry_events()  # what runtime/__init__.py says too late where the program imported it before us
    options = ort.SessionOptions()
    options.log_severity_level = QUIET
    options.intra_op_num_threads = threads or 0
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    if not TELLS_PLACEMENT:  # where the nodes went cannot be shown afterwards, so all of them must go to the provider
        options.add_session_config_entry("session.disable_cpu_ep_fallback", str(int(full != CPU)))
    chain = [full] if full == CPU else [full, CPU]
    path = bundle.path(graph.file)
    check_graph(path.read_bytes(), graph.file.file, bundle.manifest.weights)
    session = guarded(
        f"ONNX Runtime cannot open {graph.file.file} on {provider}",
        lambda: ort.InferenceSession(str(path), options, providers=chain, enable_fallback=0),
    )
    session.disable_fallback()
    _check_signature(graph, session)
    return session


def assignment(session: Any) -> dict[str, int]:
    """How many nodes each provider runs, after ONNX Runtime's own fusions; empty before ONNX Runtime 1.24."""
    counts: dict[str, int] = {}
    if not TELLS_PLACEMENT:
        return counts
    for part in session.get_provider_graph_assignment_info():
        short = part.ep_name.removesuffix(SUFFIX).lower()
        counts[short] = counts.get(short, 0) + len(part.get_nodes())
    return counts


def guarded(what: str, call: Callable[[], T]) -> T:
    """`call()`, with ONNX Runtime's exceptions (which share no base class) as one line."""
    try:
        return call()
    except SpecError:
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise SpecError(f"{what}: {reason[:300]}") from error


def _check_signature(graph: GraphSpec, session: Any) -> None:
    for side, stated, found in (
        ("input", graph.inputs, session.get_inputs()),
        ("output", graph.outputs, session.get_outputs()),
    ):
        want = {t.name: t for t in stated}
        have = {v.name: TensorSpec(v.name, _dtype(v.type), tuple(v.shape)) for v in found}
        for name in sorted(want.keys() | have.keys()):
            if want.get(name) != have.get(name):
                raise SpecError(
                    f"{graph.file.file}: {side} '{name}' is {_signature(have.get(name))}, but bundle.json says "
                    f"{_signature(want.get(name))}; export the model again"
                )


def _dtype(name: str) -> str:
    """`tensor(int32)` -> `int32`."""
    inner = name.removeprefix("tensor(").removesuffix(")")
    return DTYPES.get(inner, inner)


def _signature(tensor: TensorSpec | None) -> str:
    return "absent" if tensor is None else f"{tensor.dtype}{list(tensor.shape)}"
