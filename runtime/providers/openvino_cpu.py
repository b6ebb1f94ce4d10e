"""openvino-cpu: OpenVINO's CPU plugin. Symbolic shapes, the portable graphs.

Options: OpenVINO's own. Activations are float32 unless they say otherwise: the plugin's own choice on processors with
bfloat16 is bfloat16, which moves logits by 0.5.
"""

from __future__ import annotations

from collections.abc import Mapping

from spec_edge.runtime.providers._openvino import (
    INSTALL,
    OpenVinoOpened,
    Options,
    find_device,
    open_graph,
)
from spec_edge.runtime.providers.provider import Found, Job, Provider

NAME, DEVICE = "openvino-cpu", "CPU"


def defaults(job: Job) -> Options:
    """One stream over all threads, for one text; exact products."""
    threads = {} if job.threads is None else {"INFERENCE_NUM_THREADS": str(job.threads)}
    return {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": "1",
        "INFERENCE_PRECISION_HINT": "f32",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
        **threads,
    }


def find_here(options: Mapping[str, str]) -> Found:  # noqa: ARG001
    return find_device(DEVICE)


def open_job(job: Job) -> OpenVinoOpened:
    return open_graph(job, NAME, DEVICE, defaults(job))


PROVIDER = Provider(
    name=NAME,
    device="cpu",
    symbolic=True,
    install=INSTALL,
    find=find_here,
    open=open_job,
)
