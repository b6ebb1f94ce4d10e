"""GPUs of any maker through ONNX Runtime's WebGPU plug-in (onnxruntime-ep-webgpu): static float16 graphs.

Static because graph capture wants fixed shapes and addresses. On Linux it needs a Vulkan loader.
"""

from __future__ import annotations

from spec_edge.targets.operators import PORTABLE, operators
from spec_edge.targets.target import Provider, Rules, Target

TARGET = Target(
    name="webgpu",
    description="GPUs of any maker through WebGPU: Direct3D 12, Metal or Vulkan",
    device="gpu",
    providers=(Provider("webgpu"), Provider("cpu")),
    half=("fp16",),
    precisions=("fp16", "fp32"),
    widths=(1, 8),
    buckets=(1024, 2048),
    most_graphs=3,
    most_buckets=2,
    rules=Rules(operators=operators(PORTABLE, frozenset({"MatMulNBits", "GatherBlockQuantized"}))),
    proof="the same graphs on a CPU; docs/targets.md says what ran on a GPU",
)
