"""What Intel's NPUs share: OpenVINO's NPU plugin over static graphs, then Intel's GPU, then the CPU.

Static shapes and batch 1 (docs.openvino.ai, NPU device page); 16-bit floats inside. A zero point other than 0 in 4-bit
weights aborts the compiler (openvino issue 34450). The operators and widths are those whose compilation is recorded in
docs/targets.md: Intel's own compiler ran there, without the hardware.
"""

from __future__ import annotations

from spec_edge.targets.operators import PORTABLE, QUANTISED, operators
from spec_edge.targets.target import Compiler, Provider, Rules

CHAIN = (
    Provider("openvino-npu"),
    Provider("openvino-gpu", (("INFERENCE_PRECISION_HINT", "f16"),)),
    Provider("cpu"),
)
RULES = Rules(
    operators=operators(PORTABLE | QUANTISED, frozenset({"MatMulNBits", "GatherBlockQuantized"})),
    opset=21,
    zero_points=False,
    widths=(1, 4, 8, 16, 32),
    prefills=(128,),
)
PRECISIONS = ("int8-channel", "fp16", "int4-g128", "int4-channel", "fp32")
"""8 bits per channel first: the compiler estimates it fastest. In 4 bits small models leave the bounds."""
HALF = PRECISIONS[:-1]


def compiler(platform: int) -> Compiler:
    """Intel's compiler for one platform number."""
    return Compiler("openvino-npu", (("NPU_PLATFORM", str(platform)),))


PROOF = (
    "Intel's own compiler takes its graphs (docs/targets.md lists them); numerics and text through OpenVINO's NPU "
    "plugin over a CPU; not run on the hardware"
)
VIRTUAL = f"OpenVINO's virtual device of this NPU takes every node; {PROOF}"
