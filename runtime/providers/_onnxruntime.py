"""ONNX Runtime, as its providers' files use it.

Enters: a graph to open (`Job`) and how. Leaves: an `Opened` whose inputs and outputs are the ones that the bundle
states, and which says how many nodes each provider runs. Nothing falls back: what ONNX Runtime would do by itself where
a provider fails is switched off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime as ort

from spec_edge.models.contract import TensorSpec
from spec_edge.runtime.providers.checks import check_signature, guarded
from spec_edge.runtime.providers.provider import Array, Job, Placed, ProviderFailed

CPU = "CPUExecutionProvider"
SUFFIX = "ExecutionProvider"

DTYPES = {"float": "float32", "double": "float64"}
"""ONNX Runtime's names of tensor types that differ from numpy's."""

TELLS_PLACEMENT = hasattr(ort.InferenceSession, "get_provider_graph_assignment_info")
"""From ONNX Runtime 1.24 on; Python 3.10 has 1.23 only."""

NOT_RECORDED = "-1"
QUIET = 3
"""Log severity: errors only."""


def session_options(job: Job) -> Any:
    """`SessionOptions` for `job`, before a provider adds its own."""
    ort.disable_telemetry_events()  # what runtime/__init__.py says too late where the program imported it before us
    options = ort.SessionOptions()
    options.log_severity_level = QUIET
    options.intra_op_num_threads = job.threads or 0
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    return options


NO_NAMES: Mapping[str, str] = {}


@dataclass(frozen=True)
class Memory:
    """Where a provider's tensors may lie. kind: ONNX Runtime's name ("cuda"). records: runs are recorded and replayed
    (enable_cuda_graph), each known by a number of its own."""

    kind: str
    device: str
    records: bool = False


HOST = Memory("cpu", "0")


def open_session(
    job: Job,
    name: str,
    options: Any,
    providers: list[Any] | None = None,
    names: Mapping[str, str] = NO_NAMES,
    memory: Memory | None = None,
) -> OrtOpened:
    """`job` on the providers that `options` or `providers` name, after which nothing is tried.

    names: our names of ONNX Runtime's providers, where they differ
    """
    path = job.artefact or job.model
    more = {} if providers is None else {"providers": providers}
    session = guarded(
        f"ONNX Runtime cannot open {job.graph.file.file} on {name}",
        lambda: ort.InferenceSession(str(path), options, enable_fallback=0, **more),
    )
    session.disable_fallback()
    check_signature(job.graph, _tensors(session.get_inputs()), _tensors(session.get_outputs()))
    return OrtOpened(session, names, memory or HOST)


class OrtPlaced:
    """The `Placed` of provider.py over an `OrtValue`."""

    def __init__(self, value: Any, source: Array | None) -> None:
        self.value = value
        self._source = source  # on the CPU the value lies in its memory

    def write(self, array: Array) -> None:
        if list(array.shape) != self.value.shape():  # ONNX Runtime would copy as many bytes as there are
            raise ProviderFailed(f"an array {list(array.shape)} is no {self.value.shape()} in the device's memory")
        guarded("ONNX Runtime cannot write to the device", lambda: self.value.update_inplace(array))

    def read(self) -> Array:
        array: Array = guarded("ONNX Runtime cannot read from the device", self.value.numpy)
        return array


class OrtOpened:
    """The `Resident` of provider.py over an `InferenceSession`. names: of the nodes, as `placement` counts them."""

    def __init__(self, session: Any, names: Mapping[str, str] = NO_NAMES, memory: Memory = HOST) -> None:
        self._session, self._memory, self._recorded = session, memory, 0
        self.names = placed(session, names)
        self.placement: Mapping[str, int] = {name: len(nodes) for name, nodes in self.names.items()}

    def bind(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> Callable[[], None]:
        """By address; arrays are on the CPU, and another device copies them at each run."""
        return self.bind_placed(inputs, outputs, again=False)

    def place(self, shape: Sequence[int], dtype: str) -> OrtPlaced:
        """From zeros: what no run has written must be finite."""
        kind, device = self._memory.kind, int(self._memory.device)
        zeros = np.zeros(shape, dtype)
        make = ort.OrtValue.ortvalue_from_numpy
        return OrtPlaced(
            guarded("the device has no memory left", lambda: make(zeros, kind, device)),
            zeros if kind == HOST.kind else None,
        )

    def bind_placed(
        self, inputs: Mapping[str, Array | Placed], outputs: Mapping[str, Array | Placed], again: bool
    ) -> Callable[[], None]:
        """Placed arrays by their own address. again: recorded, where the provider records."""
        session = self._session
        if session is None:
            raise ProviderFailed("this graph is closed")
        binding = guarded(
            "ONNX Runtime refuses the buffers of a graph (export the model again)",
            lambda: _bound(session, inputs, outputs),
        )
        how = self._numbered(again)

        def run() -> None:
            guarded("ONNX Runtime failed", lambda: session.run_with_iobinding(binding, how))

        return run

    def _numbered(self, again: bool) -> Any:
        """The number under which a provider records a run; NOT_RECORDED for those that it must not."""
        if not self._memory.records:
            return None
        how = ort.RunOptions()
        self._recorded += again
        how.add_run_config_entry("gpu_graph_id", str(self._recorded) if again else NOT_RECORDED)
        return how

    def close(self) -> None:
        self._session = None


def _bound(session: Any, inputs: Mapping[str, Array | Placed], outputs: Mapping[str, Array | Placed]) -> Any:
    binding = session.io_binding()
    sides = (
        (binding.bind_input, binding.bind_ortvalue_input, inputs),
        (binding.bind_output, binding.bind_ortvalue_output, outputs),
    )
    for by_address, by_value, side in sides:
        for name, array in side.items():
            if isinstance(array, OrtPlaced):
                by_value(name, array.value)
            else:
                assert isinstance(array, np.ndarray)  # nobody mixes the memory of two providers
                by_address(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
    return binding


def placed(session: Any, names: Mapping[str, str]) -> dict[str, list[str]]:
    """Nodes by what runs them, after ONNX Runtime's own fusions; empty before ONNX Runtime 1.24."""
    found: dict[str, list[str]] = {}
    if not TELLS_PLACEMENT:
        return found
    for part in session.get_provider_graph_assignment_info():
        short = names.get(part.ep_name, part.ep_name.removesuffix(SUFFIX).lower())
        found.setdefault(short, []).extend(node.name for node in part.get_nodes())
    return found


def _tensors(found: list[Any]) -> list[TensorSpec]:
    return [TensorSpec(v.name, _dtype(v.type), tuple(v.shape)) for v in found]


def _dtype(name: str) -> str:
    """`tensor(int32)` -> `int32`."""
    inner = name.removeprefix("tensor(").removesuffix(")")
    return DTYPES.get(inner, inner)
