"""AMD GPUs through MIGraphX, from Windows ML's catalogue or on Linux with ROCm: static float16 graphs.

Not studied further than that the provider is in the catalogue; nothing of it was run.
"""

from __future__ import annotations

from spec_edge.targets.operators import PORTABLE, QUANTISED, operators
from spec_edge.targets.target import Provider, Rules, Target

TARGET = Target(
    name="migraphx",
    description="AMD GPUs through MIGraphX",
    device="gpu",
    providers=(Provider("migraphx"), Provider("cpu")),
    half=("fp16",),
    precisions=("fp16", "fp32"),
    widths=(1, 8),
    buckets=(1024, 2048),
    most_graphs=3,
    most_buckets=2,
    rules=Rules(operators=operators(PORTABLE | QUANTISED)),
    proof="the same graphs on a CPU; the provider itself is untested",
)
