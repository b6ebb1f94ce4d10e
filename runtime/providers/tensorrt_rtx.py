"""tensorrt-rtx: NVIDIA's RTX GPUs through TensorRT for RTX. Static portable graphs. Untested on hardware.

Options: onnxruntime.ai/docs/execution-providers/TensorRTRTX-ExecutionProvider.html
"""

from __future__ import annotations

from spec_edge.runtime.providers._plugin import Plugin, provider_of

PACKAGE = "onnxruntime-ep-nv-tensorrt-rtx"

PROVIDER = provider_of(
    Plugin(
        name="tensorrt-rtx",
        ep="NvTensorRTRTXExecutionProvider",
        device="gpu",
        symbolic=False,
        install=f"pip install {PACKAGE}, or get it through Windows ML: pip install windowsml",
        package=PACKAGE,
        builtin=True,
        libraries={"Linux": "libcuda.so.1", "Windows": "nvcuda.dll"},
    )
)
