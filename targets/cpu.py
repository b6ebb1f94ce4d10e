"""CPU: ONNX Runtime's own kernels, symbolic shapes, one session per network."""

from __future__ import annotations

from spec_edge.targets.target import Provider, Target

TARGET = Target(
    name="cpu",
    description="any x86-64 or arm64 CPU through ONNX Runtime",
    providers=(Provider("CPUExecutionProvider"),),
    symbolic=True,
    lowering="fused",
    static="portable",
    activation="float16",
    precisions=("int4", "keep", "int8", "fp16", "fp32"),
    widths=(1, 2, 4, 8, 16),
    prefill=128,
    buckets=(512, 1024, 2048, 4096, 8192, 16384, 32768),
    proof="everything: numerics, speed, text",
)
