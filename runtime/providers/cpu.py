"""cpu: ONNX Runtime's own CPU kernels. Symbolic shapes, fused graphs; the reference for every other provider.

Options: ONNX Runtime's session configuration entries.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping

from spec_edge.runtime.providers.provider import Found, Job, Opened, Provider

NAME = "cpu"


def find_here(options: Mapping[str, str]) -> Found:  # noqa: ARG001
    """It is always there."""
    import onnxruntime as ort

    return Found(platform.processor() or platform.machine(), versions={"onnxruntime": ort.__version__})


def open_job(job: Job) -> Opened:
    from spec_edge.runtime.providers._onnxruntime import CPU, open_session, session_options

    options = session_options(job)
    for key, value in job.options.items():
        options.add_session_config_entry(key, value)
    return open_session(job, NAME, options, [CPU])


PROVIDER = Provider(
    name=NAME,
    device="cpu",
    symbolic=True,
    install="pip install onnxruntime",
    find=find_here,
    open=open_job,
    fused=True,
)
