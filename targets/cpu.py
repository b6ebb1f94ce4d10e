"""CPU: spec-edge's own kernels where they have a form for bundle and processor, ONNX Runtime's for everything else."""

from __future__ import annotations

from spec_edge.targets.target import Provider, Rules, Target

TARGET = Target(
    name="cpu",
    description="any x86-64 or arm64 CPU through spec-edge's own kernels (x86-64) or ONNX Runtime's",
    device="cpu",
    providers=(Provider("native"), Provider("cpu")),
    symbolic=True,
    lowering="fused",
    half=("fp16",),
    precisions=("int4", "keep", "int8", "fp16", "fp32"),
    drafting=("keep-head4",),
    widths=(1, 2, 4, 8, 16),
    prefill=128,
    buckets=(512, 1024, 2048, 4096, 8192, 16384, 32768),
    rules=Rules(symbolic=True),
    proof="everything, in CI: numerics, text, speed",
)
