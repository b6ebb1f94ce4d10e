"""migraphx: AMD's GPUs through Windows ML or a build of ONNX Runtime with MIGraphX. Static portable graphs.

Untested on hardware. Options: onnxruntime.ai/docs/execution-providers/MIGraphX-ExecutionProvider.html
"""

from __future__ import annotations

from spec_edge.runtime.providers._plugin import Plugin, provider_of

PROVIDER = provider_of(
    Plugin(
        name="migraphx",
        compiles=False,
        ep="MIGraphXExecutionProvider",
        device="gpu",
        symbolic=False,
        install="pip uninstall onnxruntime, then pip install onnxruntime-migraphx (Linux with ROCm), or get it "
        "through Windows ML: pip install windowsml",
        builtin=True,
    )
)
