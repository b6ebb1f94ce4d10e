"""AMD Ryzen 7040 and 8040 (XDNA1: Phoenix, Hawk Point; PCI 1022:1502). No language model is exported for it.

AMD's documentation of Ryzen AI 1.8 gives this NPU integer CNNs alone: BF16 and language models need Strix or Krackan.
"""

from __future__ import annotations

from spec_edge.targets.target import Target

TARGET = Target(
    name="ryzen-ai-xdna1",
    description="NPU of AMD Ryzen 7040 and 8040: XDNA1",
    device="npu",
    providers=(),
    refuses="AMD supports neither language models nor bfloat16 on it (Ryzen AI 1.8); use --target cpu or directml",
    proof="nothing is exported for it",
)
