"""cuda: NVIDIA's GPUs through a build of ONNX Runtime with CUDA. The portable graphs. Untested on hardware.

Options: onnxruntime.ai/docs/execution-providers/CUDA-ExecutionProvider.html
"""

from __future__ import annotations

from spec_edge.runtime.providers._plugin import Plugin, provider_of

PROVIDER = provider_of(
    Plugin(
        name="cuda",
        ep="CUDAExecutionProvider",
        device="gpu",
        symbolic=True,
        install="pip uninstall onnxruntime, then pip install onnxruntime-gpu",
        builtin=True,
        libraries={"Linux": "libcuda.so.1", "Windows": "nvcuda.dll"},
    )
)
