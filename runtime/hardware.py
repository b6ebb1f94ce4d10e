"""NPUs and GPUs on this machine's PCI bus, whether a driver knows them or not.

Enters: nothing. Leaves: what is there, with the target that is made for it. Linux tells by sysfs; Windows by its
registry, which was written from documentation and not run; other systems tell nothing.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

SYSFS = Path("/sys/bus/pci/devices")
WINDOWS_KEY = r"SYSTEM\CurrentControlSet\Enum\PCI"
_WINDOWS_ID = re.compile(r"VEN_([0-9A-F]{4})&DEV_([0-9A-F]{4})", re.IGNORECASE)

NPUS = {
    "8086:7d1d": ("Intel Meteor Lake NPU", "meteor-lake"),
    "8086:ad1d": ("Intel Arrow Lake NPU", "meteor-lake"),
    "8086:643e": ("Intel Lunar Lake NPU", "lunar-lake"),
    "8086:b03e": ("Intel Panther Lake NPU", "panther-lake"),
    "1022:1502": ("AMD XDNA1 NPU", "ryzen-ai-xdna1"),
    "1022:17f0": ("AMD XDNA2 NPU", "ryzen-ai"),
}
"""By vendor and device. Arrow Lake's NPU is Meteor Lake's: platform 3720."""

GPUS = {"8086": ("Intel GPU", "openvino-gpu"), "10de": ("NVIDIA GPU", "cuda"), "1002": ("AMD GPU", "migraphx")}
DISPLAY = "0x03"
"""How the PCI class of a graphics device begins."""


@dataclass(frozen=True)
class Device:
    """pci: vendor and device in hex. target: the profile that is made for it."""

    name: str
    pci: str
    target: str


def devices(sysfs: Path = SYSFS) -> tuple[Device, ...]:
    """Known ones, each kind once."""
    found = {
        pci: known
        for pci, kind in (_windows() if sys.platform == "win32" else _linux(sysfs))
        if (known := _known(pci, kind))
    }
    return tuple(found[pci] for pci in sorted(found))


def _known(pci: str, kind: str) -> Device | None:
    entry = NPUS.get(pci) or (GPUS.get(pci[:4]) if kind.startswith(DISPLAY) else None)
    return Device(entry[0], pci, entry[1]) if entry else None


def _linux(sysfs: Path) -> Iterator[tuple[str, str]]:
    """(vendor:device, class) of each device."""
    with suppress(OSError):
        for place in sorted(sysfs.iterdir()):
            with suppress(OSError):
                vendor, device, kind = ((place / name).read_text().strip() for name in ("vendor", "device", "class"))
                yield f"{vendor.removeprefix('0x')}:{device.removeprefix('0x')}", kind


def _windows() -> Iterator[tuple[str, str]]:
    """The registry's names hold vendor and device; a GPU is told by its vendor and the class of its entry."""
    if sys.platform != "win32":
        return
    import winreg

    with suppress(OSError), winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, WINDOWS_KEY) as bus:
        for i in range(winreg.QueryInfoKey(bus)[0]):
            name = winreg.EnumKey(bus, i)
            if match := _WINDOWS_ID.search(name):
                with suppress(OSError), winreg.OpenKey(bus, name) as device:
                    with winreg.OpenKey(device, winreg.EnumKey(device, 0)) as first:
                        kind = winreg.QueryValueEx(first, "Class")[0]
                    yield f"{match[1]}:{match[2]}".lower(), DISPLAY if kind == "Display" else str(kind)
