"""How much memory a process has used, by its id.

Enters: a process id. Leaves: `Memory`, with None for what this system does not tell. Standard library only.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import wintypes
from dataclasses import dataclass
from pathlib import Path

KILO = 1024
QUERY = 0x1000
"""PROCESS_QUERY_LIMITED_INFORMATION."""


@dataclass(frozen=True)
class Memory:
    """Bytes. peak_rss: largest resident set so far. pss: proportional set now (pages shared with others divided)."""

    peak_rss: int | None
    pss: int | None


def usage(pid: int) -> Memory:
    """Of a running process."""
    if os.name == "nt":
        return Memory(_windows_peak(pid), None)
    return Memory(_field(pid, "status", "VmHWM:"), _field(pid, "smaps_rollup", "Pss:"))


def _field(pid: int, file: str, name: str) -> int | None:
    """A line "name  123 kB" of /proc; None where there is no such file."""
    try:
        lines = Path(f"/proc/{pid}/{file}").read_text("ascii", errors="replace").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * KILO for line in lines if line.startswith(name)), None)


class _Counters(ctypes.Structure):
    """PROCESS_MEMORY_COUNTERS."""

    _fields_ = (
        ("cb", wintypes.DWORD),
        ("PageFaultCount", wintypes.DWORD),
        *((name, ctypes.c_size_t) for name in ("PeakWorkingSetSize", "WorkingSetSize", "a", "b", "c", "d", "e", "f")),
    )


def _windows_peak(pid: int) -> int | None:
    kernel = getattr(ctypes, "windll").kernel32  # noqa: B009
    kernel.OpenProcess.restype = wintypes.HANDLE
    handle = wintypes.HANDLE(kernel.OpenProcess(QUERY, False, pid))
    if not handle:
        return None
    try:
        counters = _Counters()
        counters.cb = ctypes.sizeof(counters)
        known = kernel.K32GetProcessMemoryInfo(handle, ctypes.byref(counters), counters.cb)
        return int(counters.PeakWorkingSetSize) if known else None
    finally:
        kernel.CloseHandle(handle)
