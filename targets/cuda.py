"""NVIDIA GPUs through ONNX Runtime's CUDA provider: one any-width float16 session, so that the weights lie there once.

Plain attention with a mask of its own: CUDA's GroupQueryAttention takes one only since July 2026, and is_causal of the
standard Attention means another corner there than on the CPU. The cache stays in the GPU's memory. CUDA graphs, one for
each shape of a verify run, are off unless the environment says SPEC_EDGE_CUDA_GRAPH=1: none was ever recorded.
"""

from __future__ import annotations

from spec_edge.targets.target import Provider, Rules, Target

TARGET = Target(
    name="cuda",
    description="NVIDIA GPUs through ONNX Runtime's CUDA provider",
    device="gpu",
    providers=(Provider("cuda"), Provider("cpu")),
    symbolic=True,
    half=("fp16", "int8", "int4"),
    resident=True,
    step="float16",
    precisions=("fp16", "int8", "int4", "fp32"),
    widths=(1, 8, 16, 32),
    buckets=(2048, 4096, 8192),
    rules=Rules(symbolic=True),
    proof="the same graphs on a CPU; docs/targets.md says what ran on a GPU",
)
