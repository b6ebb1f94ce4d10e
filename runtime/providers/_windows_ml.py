"""The execution providers that Windows ML keeps on this machine. Untested on hardware.

Enters: nothing. Leaves: name, version and library of each. It is asked in a child process: its Windows runtime gets in
the way of some providers, and letting go of it was seen to crash. Nothing is downloaded: what is not installed is
listed without a library.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

PACKAGE = "windowsml"
TIMEOUT_S = 60.0
COMMAND = (sys.executable, "-m", "spec_edge.runtime.providers._windows_ml")


@dataclass(frozen=True)
class Entry:
    """library: path of its .dll; "" where Windows has not installed it."""

    name: str
    version: str
    library: str


def catalogue(command: Sequence[str] = COMMAND) -> tuple[Entry, ...]:
    """What Windows ML lists; empty where the package is missing or does not answer.

    A frozen app has no Python to start (its own executable would be started instead), and gets nothing from here.
    """
    frozen = command is COMMAND and (getattr(sys, "frozen", False) or not sys.executable)
    if frozen or importlib.util.find_spec(PACKAGE) is None:
        return ()
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S, check=False)
        lines = done.stdout.decode("utf-8", "replace").splitlines()
        return tuple(Entry(*map(str, entry)) for entry in json.loads(lines[-1] if lines else "[]"))
    except (OSError, subprocess.TimeoutExpired, ValueError, TypeError):
        return ()


def main(package: Any) -> list[list[str]]:
    """The entries of the catalogue as `package` tells them."""
    entries = []
    for found in package.EpCatalog().find_all_providers():
        here = found.ready_state.name != "NotPresent"
        if here:
            found.ensure_ready()
        entries.append([found.name, found.version, found.library_path if here else ""])
    return entries


if __name__ == "__main__":
    print(json.dumps(main(importlib.import_module(PACKAGE))), flush=True)
    os._exit(0)
