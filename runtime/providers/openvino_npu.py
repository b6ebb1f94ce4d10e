"""openvino-npu: OpenVINO's NPU plugin, for Intel's NPUs. Static portable graphs only. Untested on hardware.

Options: OpenVINO's own, and those of NPUW, which may cut a graph up and runs the parts: NPU_USE_NPUW=YES. Its own
choice lets parts run on the CPU; here they may not, unless NPUW_DEVICES says so. NPUW_DEVICES=CPU needs no NPU: it
shows the plugin's numerics anywhere.
"""

from __future__ import annotations

import ctypes.util
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from spec_edge.runtime.onnx_nodes import nodes_of
from spec_edge.runtime.providers._openvino import (
    INSTALL,
    OpenVinoOpened,
    Options,
    compile_graph,
    core,
    devices,
    find_device,
    open_graph,
    package,
    versions,
)
from spec_edge.runtime.providers.checks import guarded, refuse_symbolic
from spec_edge.runtime.providers.provider import Found, Job, Provider, ProviderMissing

NAME, DEVICE = "openvino-npu", "NPU"
COMPILERS = ("openvino_intel_npu_compiler", "npu_driver_compiler")
"""Libraries that hold Intel's NPU compiler: OpenVINO's own, and the driver's."""

PRECISION = "INFERENCE_PRECISION_HINT"
NPUW: Options = {"NPUW_DEVICES": DEVICE, "NPUW_FALLBACK_EXEC": "NO", "NPUW_ONLINE_PIPELINE": "NONE"}
"""Nothing falls back, and nothing is cut up: over the CPU, NPUW's own cuts (REG, 2026.4.1) of a two-layer graph with
weights behind DequantizeLinear gave other and wrong logits at each run; whole it was right to 3e-6."""

NO_COMPILER = "; OpenVINO's wheel for Linux has no NPU compiler: install intel-driver-compiler-npu"
ON_LINUX = platform.system() == "Linux"
PLATFORM = "NPU_PLATFORM"
"""The NPU to compile for, 3720, 4000 or 5010, where it is not this machine's own."""


def runs_on(options: Mapping[str, str]) -> tuple[str, ...]:
    """Devices that these options let run a part, lower case."""
    if options.get("NPU_USE_NPUW", "NO") != "YES":
        return ("npu",)
    return tuple(name.strip().lower() for name in options.get("NPUW_DEVICES", DEVICE).split(","))


def defaults(job: Job) -> Options:
    """One text at a time; NPUW stays on the NPU."""
    return {"PERFORMANCE_HINT": "LATENCY", **(NPUW if job.options.get("NPU_USE_NPUW") == "YES" else {})}


def find_here(options: Mapping[str, str]) -> Found:
    if "npu" not in runs_on(options):
        return Found(f"the NPU plugin over {', '.join(devices())}", versions=versions())
    if PLATFORM in options:
        return _find_compiler(options[PLATFORM])
    return find_device(DEVICE, _missing())


def _find_compiler(platform_number: str) -> Found:
    """Intel's compiler for an NPU that need not be here."""
    if not any(_libraries()):
        raise ProviderMissing(f"Intel's NPU compiler is not here{NO_COMPILER if ON_LINUX else f'; {INSTALL}'}")
    return Found(f"{DEVICE} {platform_number} (its compiler; no device is used)", versions=versions())


def _missing() -> str:
    """What to do where OpenVINO sees no NPU."""
    if not ON_LINUX:
        return "; this machine has no Intel NPU, or its driver is missing"
    driver = "; this machine has no Intel NPU, its driver is missing, or this user is not in the group 'render'"
    return driver if any(_libraries()) else f"{driver}{NO_COMPILER}"


def _libraries() -> Iterator[str]:
    """Those that hold Intel's NPU compiler."""
    yield from map(str, Path(package().__file__).parent.glob("libs/*npu_compiler*"))
    yield from filter(None, map(ctypes.util.find_library, COMPILERS))


def open_job(job: Job) -> OpenVinoOpened:
    """The plugin takes a graph whole or not at all, and tells no counts: they are the file's."""
    refuse_symbolic(NAME, job.graph)
    placed = f"openvino-{'+'.join(runs_on(job.options))}"
    nodes = len(nodes_of(job.model.read_bytes()).nodes)
    with _precision(job):
        return open_graph(job, NAME, DEVICE, defaults(job), {placed: nodes})


@contextmanager
def _precision(job: Job) -> Iterator[None]:
    """A compiled graph whose parts run on the CPU takes its precision from that plugin's own property, whatever the
    options say (2026.4.1): bfloat16 where the processor has it."""
    wanted = job.options.get(PRECISION)
    if wanted is None or not job.artefact or "cpu" not in runs_on(job.options):
        yield
        return
    before = core().get_property("CPU", PRECISION)
    guarded(f"OpenVINO does not take {PRECISION}={wanted}", lambda: core().set_property("CPU", {PRECISION: wanted}))
    try:
        yield
    finally:
        core().set_property("CPU", {PRECISION: before})


def compile_job(job: Job, file: Path) -> None:
    refuse_symbolic(NAME, job.graph)
    compile_graph(job, file, NAME, DEVICE, defaults(job))


PROVIDER = Provider(
    name=NAME,
    device="npu",
    symbolic=False,
    install=INSTALL,
    find=find_here,
    open=open_job,
    compile=compile_job,
)
