"""Versions of packages that are known not to work together.

Enters: versions of installed packages by name. Leaves: a line for each pair that fails, with what to install instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

Versions = Mapping[str, str]

BUILDS = (
    "onnxruntime",
    "onnxruntime-directml",
    "onnxruntime-gpu",
    "onnxruntime-openvino",
    "onnxruntime-windowsml",
)
"""Packages that bring the module onnxruntime."""

LEAST = {"onnxruntime-qnn": "1.24.2", "onnxruntime-ep-webgpu": "1.24.4"}
"""The ONNX Runtime that a plug-in's own documentation asks for."""

OPENVINO_EP = "onnxruntime-ep-openvino"


def known_bad(versions: Versions) -> list[str]:
    """One line each; empty where nothing is known against these versions."""
    found = [openvino_ep(versions), _symlinks(versions), _builds(versions)]
    return [line for line in (*found, *(_least(name, versions) for name in LEAST)) if line]


def openvino_ep(versions: Versions) -> str:
    """1.8.0 was seen with ONNX Runtime 1.31.1, where it ran everything on the CPU, and with 1.32, where it fails."""
    runtime = versions.get("onnxruntime", "")
    if versions.get(OPENVINO_EP) != "1.8.0" or numbers(runtime) < (1, 31):
        return ""
    return (
        f"{OPENVINO_EP} 1.8.0 does not work with ONNX Runtime {runtime} (it runs everything on the CPU or fails); "
        f"pip install '{OPENVINO_EP}>=1.8.1'"
    )


def _symlinks(versions: Versions) -> str:
    if versions.get("onnxruntime") not in ("1.24.0", "1.24.1"):
        return ""
    return (
        f"ONNX Runtime {versions['onnxruntime']} refuses weights in a folder behind a symbolic link; "
        "pip install 'onnxruntime>=1.24.2'"
    )


def _builds(versions: Versions) -> str:
    here = [name for name in BUILDS if name in versions]
    if len(here) < 2:
        return ""
    return f"{' and '.join(here)} overwrite each other's files; uninstall all of them, then install one"


def _least(name: str, versions: Versions) -> str:
    runtime = versions.get("onnxruntime", "")
    if name not in versions or not runtime or numbers(runtime) >= numbers(LEAST[name]):
        return ""
    return (
        f"{name} {versions[name]} needs ONNX Runtime {LEAST[name]} or later, not {runtime}; "
        f"pip install 'onnxruntime>={LEAST[name]}'"
    )


def numbers(version: str) -> tuple[int, ...]:
    """Those that a version begins with, for comparison."""
    start = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(number) for number in start[0].split(".")) if start else ()
