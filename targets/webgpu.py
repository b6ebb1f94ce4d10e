"""GPUs of any maker through ONNX Runtime's WebGPU plug-in (onnxruntime-ep-webgpu): one any-width float16 session.

On Linux it needs a Vulkan loader. Graph capture stays off: it wants device buffers of fixed addresses.
"""

from __future__ import annotations

from spec_edge.targets.target import Provider, Rules, Target

TARGET = Target(
    name="webgpu",
    description="GPUs of any maker through WebGPU: Direct3D 12, Metal or Vulkan",
    device="gpu",
    providers=(Provider("webgpu"), Provider("cpu")),
    symbolic=True,
    half=("fp16",),
    step="float16",
    precisions=("fp16", "fp32"),
    widths=(1, 8, 16),
    buckets=(1024, 2048, 4096),
    rules=Rules(symbolic=True),
    proof="the same graphs on a CPU; docs/targets.md says what ran on a GPU",
)
