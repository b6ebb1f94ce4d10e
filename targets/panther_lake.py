"""Panther Lake (NPU 5010).

Intel's compiler estimates (docs/targets.md), SmolLM2 in fp16, P = 1152: 4.4 ms at width 1, 5.3 at 8, 6.2 at 16.
"""

from __future__ import annotations

from spec_edge.targets.intel_npu import CHAIN, HALF, PRECISIONS, RULES, VIRTUAL, compiler
from spec_edge.targets.target import Target

TARGET = Target(
    name="panther-lake",
    description="NPU of Intel Core Ultra 300: Panther Lake",
    device="npu",
    providers=CHAIN,
    half=HALF,
    precisions=PRECISIONS,
    widths=(1, 8),
    prefill=128,
    buckets=(1152, 2176),
    context=2176,
    most_graphs=3,
    most_buckets=2,
    rules=RULES,
    compiler=compiler(5010),
    proof=VIRTUAL,
)
