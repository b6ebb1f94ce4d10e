"""qnn: Qualcomm's NPU (HTP) through the plug-in onnxruntime-qnn. Static portable graphs only.

Untested on hardware. Where there is no NPU it still compiles: enable_htp_prepare_only=1 with soc_model and htp_arch of
the NPU meant (60 and 73 for Snapdragon X).
Options: onnxruntime.ai/docs/execution-providers/QNN-ExecutionProvider.html
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from spec_edge.runtime.providers._plugin import Plugin, provider_of

PACKAGE = "onnxruntime-qnn"
PREPARE = "enable_htp_prepare_only"


def defaults() -> Mapping[str, str]:
    """The NPU's backend, by its place in the package; by name where Windows ML brings the provider."""
    try:
        return {"backend_path": importlib.import_module("onnxruntime_qnn").get_qnn_htp_path()}
    except ImportError:
        return {"backend_type": "htp"}


def fits(device: Any, kind: str, options: Mapping[str, str]) -> bool:
    """The NPU; preparing needs none, and is offered by the CPU's entry on machines without one."""
    return options.get(PREPARE) == "1" or str(device.device.type).endswith(kind.upper())


def shown(options: Mapping[str, str]) -> str:
    """The NPU that is compiled for where none is used."""
    return f"HTP v{options.get('htp_arch', '?')}, its compiler only" if options.get(PREPARE) == "1" else ""


PROVIDER = provider_of(
    Plugin(
        name="qnn",
        ep="QNNExecutionProvider",
        device="npu",
        symbolic=False,
        install=f"pip install {PACKAGE}, or get it through Windows ML: pip install windowsml",
        package=PACKAGE,
        defaults=defaults,
        fits=fits,
        shown=shown,
    )
)
