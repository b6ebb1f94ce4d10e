"""intel_npu/compile.sh with a stand-in for Wine: a run that dies is repeated and said, a refusal is not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "slow" / "intel_npu" / "compile.sh"

WINE = """#!/usr/bin/env bash
echo run >>"$RUNS"
[[ $(wc -l <"$RUNS") -le $DEATHS ]] && { echo "wine: could not start" >&2; exit 1; }
[[ $REFUSES ]] && { echo "compile: cannot handle the node"; exit 6; }
out=${3//\\\\//}; echo blob >"${out#Z:}"; echo "compile_s 1.0"; echo ok
"""

NEEDS = ("bash", "realpath", "timeout", "stat", "grep")
pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not all(map(shutil.which, NEEDS)),
    reason="compile.sh needs Linux with bash and GNU tools, and was found to lack one of them here",
)


def compile_with(folder: Path, deaths: int, refuses: str = "") -> tuple[int, str, int]:
    """Exit code, what was said, and how often the compiler was started."""
    programs, libraries = folder / "bin", folder / "cache" / "2026.4.1" / "openvino" / "libs"
    programs.mkdir()
    libraries.mkdir(parents=True)
    (libraries / ".ready").touch()
    (programs / "wine").write_text(WINE)
    (programs / "x86_64-w64-mingw32-gcc").write_text("#!/usr/bin/env bash\ntrue\n")
    (programs / "sleep").write_text("#!/usr/bin/env bash\ntrue\n")
    for program in programs.iterdir():
        program.chmod(0o755)
    model, runs = folder / "model.onnx", folder / "runs"
    model.touch()
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "RUNS": str(runs)}
    environment |= {"SPEC_EDGE_NPU_CACHE": str(folder / "cache"), "DEATHS": str(deaths), "REFUSES": refuses}
    command = ["bash", str(SCRIPT), str(model), "5010", str(folder / "out.blob")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr, len(runs.read_text().splitlines())


@pytest.mark.parametrize(("deaths", "runs"), [(0, 1), (1, 2), (2, 3)])
def test_a_death_is_repeated_and_said(tmp_path: Path, deaths: int, runs: int) -> None:
    code, said, started = compile_with(tmp_path, deaths)
    assert (code, started) == (0, runs), said
    assert "npu 5010: compiled" in said
    assert said.count("before an answer: wine: could not start") == deaths


def test_three_deaths_are_a_failure(tmp_path: Path) -> None:
    code, said, started = compile_with(tmp_path, 9)
    assert (code, started) == (1, 3)
    assert "not compiled (exit 1)" in said


def test_a_refusal_is_an_answer(tmp_path: Path) -> None:
    code, said, started = compile_with(tmp_path, 0, "yes")
    assert (code, started) == (1, 1)
    assert "compile: cannot handle the node" in said
    assert "not compiled (exit 6)" in said
