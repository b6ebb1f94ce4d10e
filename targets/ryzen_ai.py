"""AMD Ryzen AI 300 and Max (XDNA2: Strix, Krackan, Strix Halo) through the VitisAI provider. Experimental.

AMD documents decoder language models only through its own OGA flow, with its own models; own decoder graphs through
VitisAI are documented for encoders and Whisper's decoder. So this is the form that the documentation of Ryzen AI 1.8
allows: float32 graphs, opset 17, static, batch 1, which VitisAI turns into bfloat16, every operator in the BF16 column
of the operator table (Softmax, LogSoftmax and TopK are blank there and are written in others). cos and sin are inputs.
In a16w8 what projections read and their weights are integers, in the A16W8 column, and the rest floats, in the other.
"target" X2 is XDNA2; since Ryzen AI 1.6 no xclbin may be named there.
"""

from __future__ import annotations

from dataclasses import replace

from spec_edge.targets.operators import AMD_BF16, QUANTISED, operators
from spec_edge.targets.target import Provider, Rules, Target

BF16 = Rules(operators=operators(AMD_BF16), opset=17, zero_points=False)
A16W8 = replace(BF16, operators=operators(AMD_BF16 | {"DequantizeLinear"}, QUANTISED))
"""16-bit steps are ONNX Runtime's own operators at opset 17."""

TARGET = Target(
    name="ryzen-ai",
    description="NPU of AMD Ryzen AI 300 and Max: XDNA2",
    device="npu",
    providers=(Provider("vitisai", (("target", "X2"),)), Provider("webgpu"), Provider("cpu")),
    spelling="elementary",
    computes=(("fp32", "bfloat16"), ("a16w8", "bfloat16")),
    precisions=("fp32", "a16w8"),
    widths=(1, 8),
    buckets=(512, 1024),
    context=1024,
    most_graphs=3,
    most_buckets=2,
    rules=BF16,
    by_precision=(("a16w8", A16W8),),
    proof=(
        "every node is in AMD's operator table for the precision; numerics with every value rounded to bfloat16, on a "
        "CPU; not run on the hardware"
    ),
)
