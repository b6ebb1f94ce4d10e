"""cuda: NVIDIA's GPUs through a build of ONNX Runtime with CUDA. The portable graphs. Untested on hardware.

The cache of the target stays in the GPU's memory. SPEC_EDGE_CUDA_GRAPH=1 has CUDA record each shape of a verify run
once and replay it: fewer launches, which is most of the time of a small model's step.

Options: onnxruntime.ai/docs/execution-providers/CUDA-ExecutionProvider.html
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from spec_edge.runtime.providers._plugin import RECORDS, Plugin, provider_of

SWITCH = "SPEC_EDGE_CUDA_GRAPH"


def defaults() -> Mapping[str, str]:
    """Options. ONNX Runtime refuses a graph to be recorded of which a node would run on the CPU."""
    return {RECORDS: "1"} if os.environ.get(SWITCH) == "1" else {}


PROVIDER = provider_of(
    Plugin(
        name="cuda",
        compiles=False,
        memory="cuda",
        defaults=defaults,
        ep="CUDAExecutionProvider",
        device="gpu",
        symbolic=True,
        install="pip uninstall onnxruntime, then pip install onnxruntime-gpu",
        builtin=True,
        libraries={"Linux": "libcuda.so.1", "Windows": "nvcuda.dll"},
    )
)
