"""Any DirectX 12 GPU through DirectML: static float16 graphs of opset 17.

Microsoft keeps DirectML without adding to it.
"""

from __future__ import annotations

from spec_edge.targets.operators import PORTABLE, operators
from spec_edge.targets.target import Provider, Rules, Target

TARGET = Target(
    name="directml",
    description="DirectX 12 GPUs on Windows through DirectML",
    device="gpu",
    providers=(Provider("directml"), Provider("cpu")),
    half=("fp16",),
    precisions=("fp16", "fp32"),
    widths=(1, 8),
    buckets=(1024, 2048),
    most_graphs=3,
    most_buckets=2,
    rules=Rules(operators=operators(PORTABLE, frozenset({"MatMulNBits"})), opset=17),
    proof="the same graphs on a CPU; the provider itself is untested",
)
