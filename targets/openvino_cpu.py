"""CPU through OpenVINO: symbolic shapes, plain attention.

The portable lowering, not the fused one: OpenVINO 2026.4's CPU plugin gave wrong attention for GroupQueryAttention with
different keys and values (off by 1.5), and 2e-7 for the plain form. Activations stay float32, as ONNX Runtime's do.
"""

from __future__ import annotations

from spec_edge.targets.target import Provider, Rules, Target

TARGET = Target(
    name="openvino-cpu",
    description="any x86-64 or arm64 CPU through OpenVINO",
    device="cpu",
    providers=(Provider("openvino-cpu", (("INFERENCE_PRECISION_HINT", "f32"),)), Provider("cpu")),
    symbolic=True,
    precisions=("int4", "int8", "fp16", "fp32"),
    widths=(1, 2, 4, 8, 16),
    buckets=(512, 1024, 2048, 4096, 8192),
    rules=Rules(symbolic=True),
    proof="numerics and text, in CI where the package openvino is installed",
)
