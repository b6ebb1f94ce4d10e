"""OpenVINO, used directly: what its providers' files share.

Enters: a graph to open (`Job`), OpenVINO's name of a device, options. Leaves: an `Opened`, a compiled graph in a file,
or what is missing. A graph is bound to the caller's own memory: nothing is copied at a run.
"""

from __future__ import annotations

import functools
import io
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from spec_edge.models.contract import TensorSpec
from spec_edge.runtime.providers.checks import check_signature, guarded
from spec_edge.runtime.providers.provider import Array, Found, Job, ProviderFailed, ProviderMissing
from spec_edge.runtime.termination import interrupted

INSTALL = "pip install openvino"
NOT_RUN = frozenset({"Input", "Output", "Const", "Constant", "Parameter", "Result"})
"""Layers of a runtime model that compute nothing."""

Options = Mapping[str, str]


def package() -> Any:
    """The package; ProviderMissing where it is not installed."""
    try:
        import openvino
    except ImportError as error:
        if interrupted(error):
            raise KeyboardInterrupt from None
        raise ProviderMissing(f"the package openvino is not here ({error}); {INSTALL}") from None
    return openvino


def core() -> Any:
    """OpenVINO's `Core`. ProviderMissing: it is not installed."""
    return _core(package())


@functools.cache
def _core(openvino: Any) -> Any:
    """The one `Core` of this process, which stays until its end.

    Its CPU plugin gives the calling thread another signal stack and puts the old one back when its `Core` goes. Of two
    that overlap a stack is left that is gone, and the next Ctrl-C ends the process (seen with 2026.4.1 on Linux).
    """
    return openvino.Core()


def devices() -> tuple[str, ...]:
    """What OpenVINO sees on this machine: "CPU", "GPU", "GPU.1", "NPU"."""
    return tuple(guarded("OpenVINO cannot list its devices", lambda: core().available_devices))


def find_device(device: str, what: str = "") -> Found:
    """A device by OpenVINO's name. what: to do where there is none."""
    seen = devices()
    if device not in {name.partition(".")[0] for name in seen}:
        raise ProviderMissing(f"OpenVINO sees no {device} here, only {', '.join(seen)}{what}")
    return Found(_told(device, "FULL_DEVICE_NAME") or device, _told(device, "NPU_DRIVER_VERSION"), versions())


def versions() -> dict[str, str]:
    return {"openvino": version("openvino")}


def _told(device: str, name: str) -> str:
    """A property of a device; "" where it has none."""
    asked = core()
    try:
        return str(asked.get_property(device, name))
    except Exception:
        return ""


def open_graph(
    job: Job,
    name: str,
    device: str,
    defaults: Options,
    placed: Mapping[str, int] | None = None,
) -> OpenVinoOpened:
    """`job` on `device`.

    name      of the provider
    defaults  options that job.options override
    placed    nodes by what runs them; None: the plugin tells
    """
    compiled = _imported(job, name, device) if job.artefact else _compiled(job, name, device, defaults)
    ports = (compiled.inputs, compiled.outputs)
    stated = (job.graph.inputs, job.graph.outputs)
    check_signature(job.graph, *([_tensor(p, side) for p in found] for found, side in zip(ports, stated, strict=True)))
    return OpenVinoOpened(compiled, placement(compiled) if placed is None else placed)


def compile_graph(job: Job, file: Path, name: str, device: str, defaults: Options) -> None:
    """Write the compiled graph to `file`, whole or not at all."""
    compiled = _compiled(job, name, device, defaults)
    blob = io.BytesIO()
    guarded(f"{name} cannot export {job.graph.file.file}", lambda: compiled.export_model(blob))
    with tempfile.NamedTemporaryFile(dir=file.parent, suffix=".part", delete=False) as out:
        try:
            out.write(blob.getbuffer())
        except BaseException:
            out.close()
            Path(out.name).unlink(missing_ok=True)
            raise
    Path(out.name).replace(file)


def _compiled(job: Job, name: str, device: str, defaults: Options) -> Any:
    def made() -> Any:
        return core().compile_model(core().read_model(str(job.model)), device, {**defaults, **job.options})

    return guarded(f"OpenVINO cannot open {job.graph.file.file} on {name}", made)


def _imported(job: Job, name: str, device: str) -> Any:
    def made() -> Any:
        with Path(str(job.artefact)).open("rb") as file:
            return core().import_model(file.read(), device, dict(job.options))

    return guarded(f"OpenVINO cannot read the compiled {job.graph.file.file} on {name}", made)


class OpenVinoOpened:
    """The `Opened` of provider.py over a compiled model. A shape has a request of its own."""

    def __init__(self, compiled: Any, placed: Mapping[str, int]) -> None:
        self._compiled = compiled
        self.placement = placed

    def bind(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> Callable[[], None]:
        if self._compiled is None:
            raise ProviderFailed("this graph is closed")
        compiled = self._compiled
        request = guarded(
            "OpenVINO refuses the buffers of a graph (export the model again)",
            lambda: _bound(compiled, {**inputs, **outputs}),
        )

        def run() -> None:
            # Not `infer`: it copies every output into a new array.
            request.start_async()
            request.wait()

        return lambda: guarded("OpenVINO failed", run)

    def close(self) -> None:
        self._compiled = None


def _bound(compiled: Any, arrays: Mapping[str, Array]) -> Any:
    tensor = package().Tensor
    request = compiled.create_infer_request()
    for name, array in arrays.items():
        request.set_tensor(name, tensor(array, shared_memory=True))
    return request


def placement(compiled: Any) -> dict[str, int]:
    """Nodes that the plugin runs, by device, after its own fusions; empty where it does not tell."""
    try:
        ran_by = compiled.get_property("EXECUTION_DEVICES")
        kinds = Counter(_layer(op) for op in compiled.get_runtime_model().get_ops())
    except Exception:
        return {}
    names = [ran_by] if isinstance(ran_by, str) else list(ran_by)
    return {
        "+".join(f"openvino-{n.lower()}" for n in names): sum(n for kind, n in kinds.items() if kind not in NOT_RUN)
    }


def _layer(op: Any) -> str:
    info = op.get_rt_info()
    return str(info["layerType"].astype(str)) if "layerType" in info else str(op.get_type_name())


def _tensor(port: Any, stated: tuple[TensorSpec, ...]) -> TensorSpec:
    """A port by the name that the bundle gives it. OpenVINO keeps no names of symbolic dimensions: any will do."""
    names = port.get_names()
    want = next((t for t in stated if t.name in names), None)
    shape = port.get_partial_shape()
    dims = tuple(-1 if d.is_dynamic else d.get_length() for d in shape)
    if want is not None and len(want.shape) == len(dims):
        dims = tuple(w if d == -1 and isinstance(w, str) else d for d, w in zip(dims, want.shape, strict=True))
    name = want.name if want is not None else min(names, default="")
    return TensorSpec(name, port.get_element_type().to_dtype().name, dims)
