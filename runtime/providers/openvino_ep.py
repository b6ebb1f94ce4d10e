"""openvino-ep: Intel's NPU through ONNX Runtime's plug-in for OpenVINO. Static portable graphs.

Untested on hardware; `openvino-npu` uses OpenVINO directly and needs no ONNX Runtime of a certain version. The option
device_type, which the plug-in leaves to its caller, chooses another of its devices: "GPU" or "CPU".
Options: docs.openvino.ai, "ONNX Runtime OpenVINO Execution Provider" (load_config).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spec_edge.runtime.known_bad import OPENVINO_EP, openvino_ep
from spec_edge.runtime.providers._plugin import Plugin, provider_of


def fits(device: Any, kind: str, options: Mapping[str, str]) -> bool:
    return str(device.device.type).endswith(options.get("device_type", kind).upper())


PROVIDER = provider_of(
    Plugin(
        name="openvino-ep",
        ep="OpenVINOExecutionProvider",
        device="npu",
        symbolic=False,
        install=f"pip install {OPENVINO_EP}, or get it through Windows ML: pip install windowsml",
        package=OPENVINO_EP,
        builtin=True,
        bad=openvino_ep,
        fits=fits,
        ours=frozenset({"device_type"}),
    )
)
