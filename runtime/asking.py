"""Providers asked in a child process what they find, since a driver may crash or hang when it is loaded.

Enters: names of providers. Leaves: what each one finds, or why not; one that took the child down or did not answer is
said to have done so, and the others are asked by a new child.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from spec_edge.runtime.compiling import exit_words
from spec_edge.runtime.doctor_child import MARK
from spec_edge.runtime.providers.provider import ProviderMissing
from spec_edge.runtime.remembered import folder_of, recall, remember
from spec_edge.runtime.termination import termination_as_interrupt

COMMAND = (sys.executable, "-m", "spec_edge.runtime.doctor_child")
TIMEOUT_S = 30.0
"""For all providers together; one that has not answered by then hangs."""

PACKAGES = ("onnxruntime", "openvino", "windowsml", "voe")
"""Packages of providers, and how the names of others begin."""

ASKED = "asked"


@dataclass(frozen=True)
class Provider:
    """state  "ready", "missing", "broken" (it failed when it was asked) or "silent" (it took the child down or hung)
    device  "cpu", "gpu" or "npu"; "" where unknown
    found   the device that it would use; reason: why there is none
    """

    name: str
    state: str
    device: str = ""
    found: str = ""
    driver: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    reason: str = ""
    install: str = ""


def installed() -> dict[str, str]:
    """Versions of the packages that providers need or bring, and of spec-edge, by name."""
    found = {(d.metadata["Name"] or "").lower(): d.version for d in distributions()}
    return {name: found[name] for name in sorted(found) if name.startswith((*PACKAGES, "spec-edge"))}


def ask_first(
    name: str, command: Sequence[str] = COMMAND, folder: Path | None = None, timeout_s: float = TIMEOUT_S
) -> None:
    """ProviderMissing: it took a child down when it was asked, or hung. Asked once for each set of packages.

    A frozen app has no Python to start: nothing is asked there.
    """
    if command is COMMAND and (getattr(sys, "frozen", False) or not sys.executable):
        return
    folder, key = folder or folder_of(ASKED), json.dumps([name, installed()])
    known = recall(folder, key)
    if known is None:
        found = asked([*command, name], timeout_s).get(name)
        known = {"silent": found.reason if found is not None and found.state == "silent" else ""}
        remember(folder, key, known)
    if known.get("silent"):
        raise ProviderMissing(f"{known['silent']}; 'spec-edge doctor --recompile' makes it ask again")


def asked(command: Sequence[str] = COMMAND, timeout_s: float = TIMEOUT_S) -> dict[str, Provider]:
    """Every provider's answer, by name."""
    found: dict[str, Provider] = {}
    left: list[str] = []
    while True:
        lines, how = _child([*command, *left], timeout_s)
        answers, begun = _answers(lines)
        if begun:
            answers[begun] = Provider(begun, "silent", reason=f"it {how} when it was asked")
        found |= answers
        names: list[str] = next((line["names"] for line in lines if "names" in line), [])
        left = [name for name in names if name not in found]
        if not left or not answers:
            return found


def _answers(lines: Sequence[dict[str, Any]]) -> tuple[dict[str, Provider], str]:
    """(answers by name, the one that was asked last and has not answered)."""
    answers: dict[str, Provider] = {}
    begun = ""
    for line in (line for line in lines if "name" in line):
        if line["state"] == "begun":
            begun = line["name"]
        else:
            answers[line["name"]], begun = Provider(**line), ""
    return answers, begun


def _child(command: Sequence[str], timeout_s: float) -> tuple[list[dict[str, Any]], str]:
    """The lines of one child, and how it ended."""
    with tempfile.TemporaryFile() as out, termination_as_interrupt():
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.DEVNULL,
                timeout=timeout_s,
                check=False,
                creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
                env={**os.environ, "PYTHONUTF8": "1"},
            )
            how = f"crashed ({exit_words(done.returncode)})"
        except subprocess.TimeoutExpired:
            how = f"did not answer within {timeout_s:g} s"
        except OSError as error:
            return [], f"cannot be started ({error})"
        out.seek(0)
        told = (line for line in out.read().decode("utf-8", "replace").splitlines() if line.startswith(MARK))
        return [json.loads(line.removeprefix(MARK)) for line in told], how
