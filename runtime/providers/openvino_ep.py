"""openvino-ep: Intel's NPU through ONNX Runtime's plug-in for OpenVINO. Static portable graphs.

Untested on hardware; `openvino-npu` uses OpenVINO directly and needs no ONNX Runtime of a certain version. The option
device_type, which the plug-in leaves to its caller, chooses another of its devices: "GPU" or "CPU".
Options: docs.openvino.ai, "ONNX Runtime OpenVINO Execution Provider" (load_config).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from spec_edge.runtime.providers._plugin import Plugin, provider_of

PACKAGE = "onnxruntime-ep-openvino"


def bad(versions: Mapping[str, str]) -> str:
    """1.8.0 was seen with ONNX Runtime 1.31.1, where it ran everything on the CPU, and with 1.32, where it fails."""
    if versions.get(PACKAGE) == "1.8.0" and _minor(versions["onnxruntime"]) >= (1, 31):
        return (
            f"{PACKAGE} 1.8.0 does not work with ONNX Runtime {versions['onnxruntime']} (it runs everything on the "
            f"CPU or fails); pip install '{PACKAGE}>=1.8.1'"
        )
    return ""


def fits(device: Any, kind: str, options: Mapping[str, str]) -> bool:
    return str(device.device.type).endswith(options.get("device_type", kind).upper())


def _minor(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text)[:2])


PROVIDER = provider_of(
    Plugin(
        name="openvino-ep",
        ep="OpenVINOExecutionProvider",
        device="npu",
        symbolic=False,
        install=f"pip install {PACKAGE}, or get it through Windows ML: pip install windowsml",
        package=PACKAGE,
        builtin=True,
        bad=bad,
        fits=fits,
        ours=frozenset({"device_type"}),
    )
)
