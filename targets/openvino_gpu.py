"""Intel's GPUs (Iris Xe, Arc) through OpenVINO: symbolic shapes, float16 activations.

One any-width session, so that the weights lie on the device once. OpenVINO's stateful path with its own cache
(kvcache_reorder) is not used: accepted rows are copied by the runtime, as everywhere.
"""

from __future__ import annotations

from spec_edge.targets.target import Provider, Rules, Target

TARGET = Target(
    name="openvino-gpu",
    description="Intel integrated and Arc GPUs through OpenVINO",
    device="gpu",
    providers=(Provider("openvino-gpu", (("INFERENCE_PRECISION_HINT", "f16"),)), Provider("cpu")),
    symbolic=True,
    half=("fp16", "int8", "int4"),
    step="float16",
    precisions=("int4", "int8", "fp16", "fp32"),
    widths=(1, 2, 4, 8, 16),
    buckets=(512, 1024, 2048, 4096, 8192),
    rules=Rules(symbolic=True),
    proof="the same graphs on OpenVINO's CPU plugin; not run on a GPU",
)
