"""NVIDIA RTX GPUs (Ampere and later) through the TensorRT-RTX provider: static float16 graphs, then CUDA, then the CPU.

The provider makes engines when a session opens and keeps them in nv_runtime_cache_path.
"""

from __future__ import annotations

from spec_edge.targets.operators import PORTABLE, QUANTISED, operators
from spec_edge.targets.target import Provider, Rules, Target

TARGET = Target(
    name="tensorrt-rtx",
    description="NVIDIA RTX GPUs, Ampere and later, through TensorRT for RTX",
    device="gpu",
    providers=(Provider("tensorrt-rtx"), Provider("cuda"), Provider("cpu")),
    half=("fp16",),
    precisions=("fp16", "fp32"),
    widths=(1, 8),
    buckets=(1024, 2048),
    most_graphs=3,
    most_buckets=2,
    rules=Rules(operators=operators(PORTABLE | QUANTISED)),
    proof="the same graphs on a CPU; the provider itself is untested",
)
