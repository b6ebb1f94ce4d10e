"""Qualcomm Snapdragon X (SoC 60, HTP v73) through the QNN provider.

onnxruntime-qnn 2.7 compiles these graphs on Linux x86-64 into context binaries, every node on the HTP. It takes
MatMulNBits of 4 bits in blocks of 32 or 64; it refuses GroupQueryAttention, SkipSimplifiedLayerNormalization and
DequantizeLinear of int4 per channel. Gather must count from the front, control flow and dynamic shapes are out.

The HTP addresses 32 bits, of which a session has 3.75 GB for weights, cache and buffers, so that Qualcomm's own LLMs
come in parts (qualcomm/ai-hub-models issue 100); ours are cut where their weights pass half of that. The largest graph
that was compiled holds 1.3 GB.
"""

from __future__ import annotations

from spec_edge.targets.operators import PORTABLE, QUANTISED, operators
from spec_edge.targets.target import Compiler, Provider, Rules, Target

TARGET = Target(
    name="snapdragon-x",
    description="NPU of Qualcomm Snapdragon X: Hexagon v73",
    device="npu",
    providers=(Provider("qnn", (("htp_performance_mode", "burst"),)), Provider("directml"), Provider("cpu")),
    half=("fp16",),
    precisions=("fp16", "fp32"),
    widths=(1, 8),
    buckets=(1152, 4096),
    context=4096,
    most_graphs=3,
    most_buckets=2,
    most_weights=2_000_000_000,
    rules=Rules(
        operators=operators(PORTABLE | QUANTISED, frozenset({"MatMulNBits"})),
        zero_points=False,
        widths=(1, 4, 8, 16, 32),
        prefills=(128,),
    ),
    compiler=Compiler("qnn", (("soc_model", "60"), ("htp_arch", "73"), ("enable_htp_prepare_only", "1"))),
    proof=(
        "Qualcomm's own compiler takes its graphs (docs/targets.md lists them), every node on the HTP; numerics not "
        "checked; not run on the hardware"
    ),
)
