"""webgpu: any GPU with Vulkan, Metal or DirectX 12, through the plug-in onnxruntime-ep-webgpu. Untested on hardware.

The portable graphs. Options: onnxruntime.ai/docs/execution-providers/WebGPU-ExecutionProvider.html
"""

from __future__ import annotations

from spec_edge.runtime.providers._plugin import Plugin, provider_of

PACKAGE = "onnxruntime-ep-webgpu"

PROVIDER = provider_of(
    Plugin(
        name="webgpu",
        compiles=False,
        ep="WebGpuExecutionProvider",
        device="gpu",
        symbolic=True,
        install=f"pip install {PACKAGE}",
        package=PACKAGE,
        builtin=True,
        libraries={"Linux": "libvulkan.so.1"},
    )
)
