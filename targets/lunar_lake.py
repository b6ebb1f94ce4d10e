"""Lunar Lake (NPU 4000).

Intel's compiler estimates (docs/targets.md), SmolLM2 in fp16, P = 1152: 8.2 ms at width 1, 10.6 at 8, 11.4 at 16.
Eight more rows would cost a tenth of a step; most drafts have fewer than eight.
"""

from __future__ import annotations

from spec_edge.targets.intel_npu import CHAIN, HALF, PRECISIONS, RULES, VIRTUAL, compiler
from spec_edge.targets.target import Target

TARGET = Target(
    name="lunar-lake",
    description="NPU of Intel Core Ultra 200V: Lunar Lake",
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
    compiler=compiler(4000),
    proof=VIRTUAL,
)
