"""Meteor Lake (NPU 3720; Arrow Lake has the same).

Intel's compiler estimates (docs/targets.md), SmolLM2 in fp16, P = 1152: 8.5 ms at width 1, 11.3 at 8, 13.0 at 16.
So the widest graph is 8 rows: twice the rows cost another fifth of a step of one row.
"""

from __future__ import annotations

from spec_edge.targets.intel_npu import CHAIN, HALF, PRECISIONS, PROOF, RULES, compiler
from spec_edge.targets.target import Target

TARGET = Target(
    name="meteor-lake",
    description="NPU of Intel Core Ultra 100 and 200 H, U and S: Meteor Lake and Arrow Lake",
    device="npu",
    providers=CHAIN,
    half=HALF,
    precisions=PRECISIONS,
    widths=(1, 8),
    prefill=128,
    buckets=(512, 1152),
    context=1152,
    most_graphs=3,
    most_buckets=2,
    rules=RULES,
    compiler=compiler(3720),
    proof=PROOF,
)
