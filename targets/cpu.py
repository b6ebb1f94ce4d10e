"""CPU: ONNX Runtime's own kernels, symbolic shapes, one session per network."""

from __future__ import annotations

from spec_edge.targets.target import Provider, Rules, Target

TARGET = Target(
    name="cpu",
    description="any x86-64 or arm64 CPU through ONNX Runtime",
    device="cpu",
    providers=(Provider("cpu"),),
    symbolic=True,
    lowering="fused",
    half=("fp16",),
    precisions=("int4", "keep", "int8", "fp16", "fp32"),
    widths=(1, 2, 4, 8, 16),
    prefill=128,
    buckets=(512, 1024, 2048, 4096, 8192, 16384, 32768),
    rules=Rules(symbolic=True),
    proof="everything, in CI: numerics, text, speed",
)
