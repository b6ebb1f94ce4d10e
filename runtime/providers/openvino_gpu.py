"""openvino-gpu: OpenVINO's GPU plugin, for Intel's integrated and discrete GPUs. Untested on hardware.

Symbolic shapes, the portable graphs. Options: OpenVINO's own, such as INFERENCE_PRECISION_HINT (the plugin's own choice
is f16).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from spec_edge.runtime.providers._openvino import (
    INSTALL,
    OpenVinoOpened,
    Options,
    compile_graph,
    find_device,
    open_graph,
)
from spec_edge.runtime.providers.provider import Found, Job, Provider

NAME, DEVICE = "openvino-gpu", "GPU"
DRIVER = "; Intel's GPU driver is missing (Linux: the package intel-opencl-icd), or there is no Intel GPU"


DEFAULTS: Options = {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": "1"}
"""One stream, for one text."""


def find_here(options: Mapping[str, str]) -> Found:  # noqa: ARG001
    return find_device(DEVICE, DRIVER)


def open_job(job: Job) -> OpenVinoOpened:
    return open_graph(job, NAME, DEVICE, DEFAULTS)


def compile_job(job: Job, file: Path) -> None:
    compile_graph(job, file, NAME, DEVICE, DEFAULTS)


PROVIDER = Provider(
    name=NAME,
    device="gpu",
    symbolic=True,
    install=INSTALL,
    find=find_here,
    open=open_job,
    compile=compile_job,
)
