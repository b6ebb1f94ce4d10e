"""The machine and the programs that a report speaks of.

Enters: nothing. Leaves: plain values, and the number of threads that everybody gets.
"""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

CPUS = Path("/sys/devices/system/cpu")


def physical_cores() -> int:
    """On Linux by their sibling lists; elsewhere the logical ones, since the standard library knows no others."""
    lists = {path.read_text().strip() for path in CPUS.glob("cpu[0-9]*/topology/thread_siblings_list")}
    return len(lists) or os.cpu_count() or 1


def processor() -> str:
    """Its name, as far as the system tells."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text("utf-8", errors="replace").splitlines() if info.exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def load() -> float | None:
    """Processes that wanted to run in the last minute; None where the system does not count them."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def facts() -> dict[str, Any]:
    """Of this machine now. `load` is of the moment before the run."""
    return {
        "processor": processor(),
        "logical_cores": os.cpu_count(),
        "physical_cores": physical_cores(),
        "system": platform.system(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("spec-edge", "onnxruntime", "numpy")},
        "load": load(),
    }


def interpreter() -> str:
    """This Python, for children that run spec-edge itself."""
    return sys.executable
