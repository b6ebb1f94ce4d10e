"""npu_cut.py: real NPU compilers on a two-layer cut of every kind of graph. Called by .ci/run; a few minutes.

Enters: nothing. Leaves: exit code 0 if Intel's compiler (Meteor, Lunar and Panther Lake) and Qualcomm's (Snapdragon X)
take every graph that `spec-export --target` makes for them, and refuse what they are known to refuse. No NPU is used:
this proves compilation alone. What it needs is installed: Wine and mingw-w64 with apt-get as root, Intel's and
Qualcomm's packages by pip, pinned with their SHA-256. Where that cannot be done it fails; it never skips.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from toy_checkpoint import LAYERS, write_checkpoints

from spec_edge.targets.target import target

HERE = Path(__file__).resolve().parent
SLOW = HERE / "slow"
CACHE = Path(
    os.environ.get("SPEC_EDGE_NPU_CACHE")
    or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "spec-edge-npu-compiler"
)
QNN = "2.7.0"
PROGRAMS = {"wine": ("wine", "wine64"), "x86_64-w64-mingw32-gcc": ("gcc-mingw-w64-x86-64",)}
"""What intel_npu/compile.sh calls, and Debian's packages with it."""

CAN_QNN = "import sys, venv; assert (3, 11) <= sys.version_info[:2] <= (3, 14)"
"""onnxruntime-qnn has wheels for these, and ONNX Runtime no release for Python 3.10 that could load it."""

INTEL = ("3720", "4000", "5010")
TARGETS = ("meteor-lake", "lunar-lake", "panther-lake", "snapdragon-x")
OTHERS = {"meteor-lake": ",".join(INTEL), "snapdragon-x": "qnn"}
"""Whose further precisions are tried, and on what: Intel's targets offer the same ones."""


class Stop(Exception):
    """The check cannot be made here, or a compiler did what it should not."""


def main() -> int:
    """0: all graphs compile and the controls are refused."""
    begun = time.monotonic()
    try:
        _install_programs()
        os.environ |= {"SPEC_EDGE_NPU_CACHE": str(CACHE), "PYTHON": sys.executable}
        os.environ["SPEC_EDGE_QNN_PYTHON"] = str(_qnn_python())
        with tempfile.TemporaryDirectory() as scratch:
            _controls(Path(scratch))
            _cut(Path(scratch))
    except Stop as stop:
        print(f"npu_cut: {stop}", file=sys.stderr)
        return 1
    print(f"npu_cut: every graph compiles for {', '.join(TARGETS)} ({time.monotonic() - begun:.0f} s)")
    return 0


# What it needs


def _install_programs() -> None:
    if packages := [p for program, names in PROGRAMS.items() if not shutil.which(program) for p in names]:
        _apt(packages)
    if missing := [program for program in PROGRAMS if not shutil.which(program)]:
        raise Stop(f"{missing[0]} is still missing after apt-get install")


def _apt(packages: list[str]) -> None:
    if not shutil.which("apt-get") or os.geteuid():
        raise Stop(f"needs {' '.join(packages)}, and only root with apt-get can install them")
    for command in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
        print("+ apt-get", *command, flush=True)
        done = subprocess.run(
            ["apt-get", "-q", *command],
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            stdout=subprocess.DEVNULL,
            check=False,
        )
        if done.returncode:
            raise Stop(f"apt-get {' '.join(command)} failed ({done.returncode})")


def _qnn_python() -> Path:
    """A Python with ONNX Runtime and onnxruntime-qnn, made once."""
    folder = CACHE / f"qnn-{QNN}"
    python, ready = folder / "bin" / "python", folder / ".ready"
    if not ready.is_file():
        shutil.rmtree(folder, ignore_errors=True)
        _call([_base_python(), "-m", "venv", str(folder)], "no virtual environment")
        for names in (HERE.parent / "requirements" / "base.txt", SLOW / "qnn.txt"):
            command = [str(python), "-m", "pip", "install", "-q", "--no-deps", "--require-hashes", "-r", str(names)]
            _call(command, f"pip cannot install {names.name}")
        ready.touch()
    return python


def _base_python() -> str:
    names = [sys.executable, *(f"python3.{minor}" for minor in (11, 12, 13, 14))]
    for attempt in range(2):
        for name in names:
            if shutil.which(name) and not subprocess.run([name, "-c", CAN_QNN], capture_output=True).returncode:
                return name
        if not attempt:
            _apt(["python3.11", "python3.11-venv"])
    raise Stop("Qualcomm's compiler needs Python 3.11 to 3.14, and none is here")


def _call(command: list[str], failure: str) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise Stop(f"{failure}: {done.stdout[-2000:]}")
    return done.stdout


# What must compile


def _cut(folder: Path) -> None:
    """Every graph in each target's first precision, and the widest verify graph in all others that they offer and cut
    into two parts."""
    model, medusa, eagle = write_checkpoints(folder / "toys")
    drafters = ["--medusa", str(medusa), "--eagle", str(eagle)]
    for name in TARGETS:
        _compile(folder, name, target(name).precisions[0], [str(model), *drafters], [])
    for name, compilers in OTHERS.items():
        profile = target(name)
        for precision in profile.precisions[1:]:
            widest = f"verify-*-s{profile.widths[-1]}-*"
            _compile(folder, name, precision, [str(model)], ["--graphs", widest, "--targets", compilers])
        parts = [str(model), "--parts", str(LAYERS)]
        options = ["--graphs", "verify-*-s8-*,prefill-*", "--targets", compilers]
        _compile(folder, name, profile.precisions[0], parts, options, "-parts")


def _compile(folder: Path, name: str, precision: str, model: list[str], options: list[str], label: str = "") -> None:
    bundle = folder / f"{name}-{precision}{label}"
    command = [sys.executable, "-m", "spec_edge.export", *model, "-o", str(bundle), "--target", name]
    _call([*command, "--precision", precision], f"no bundle for {name}")
    command = [sys.executable, str(SLOW / "npu_compile.py"), str(folder / "rows.jsonl"), str(bundle), *options]
    print(_call(command, f"{name}, {precision}"), end="", flush=True)


# What must be refused


def _controls(folder: Path) -> None:
    """A compiler that takes anything would prove nothing."""
    heads = folder / "transposed-heads.onnx"
    for rows, taken in ((1, INTEL), (8, INTEL[1:])):
        onnx.save(_transposed_heads(rows), heads)
        for platform in INTEL:
            _expect(_intel(heads, platform, folder), platform in taken, f"heads by Transpose, S = {rows}, {platform}")
    onnx.save(_transposed_heads("S"), heads)
    _expect(_intel(heads, INTEL[0], folder), False, f"a symbolic dimension, {INTEL[0]}")
    _expect(_qnn(heads), False, "a symbolic dimension, qnn")
    onnx.save(_transposed_heads(8), heads)
    _expect(_qnn(heads), True, "heads by Transpose, S = 8, qnn")


def _expect(compiles: bool, should: bool, what: str) -> None:
    if compiles != should:
        raise Stop(f"control: {what} is {'taken' if compiles else 'refused'}, which it should not be")
    print(f"control: {what}: {'taken' if compiles else 'refused'}, as it should be", flush=True)


def _intel(model: Path, platform: str, folder: Path) -> bool:
    command = [str(SLOW / "intel_npu" / "compile.sh"), str(model), platform, str(folder / "control.blob")]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    ran: Callable[[str], bool] = done.stdout.__contains__
    if not ran("compile_s"):
        raise Stop(f"Intel's compiler does not run: {done.stdout[-2000:]}")
    return not done.returncode


def _qnn(model: Path) -> bool:
    command = [os.environ["SPEC_EDGE_QNN_PYTHON"], str(SLOW / "qnn_compile.py"), str(model)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if "qnn snapdragon_x" not in done.stdout:
        raise Stop(f"Qualcomm's compiler does not run: {done.stdout[-2000:]}")
    return not done.returncode


def _transposed_heads(rows: int | str) -> onnx.ModelProto:
    """Attention with rotary embedding whose heads are split by Reshape and Transpose.

    Meteor Lake's compiler refuses it for more than one row ("UnrollPermuteDMA"), which is why no graph of ours has it.
    """
    hidden, heads, dim, node = 192, 3, 64, helper.make_node
    rng = np.random.default_rng(0)
    weights = {f"w{n}": rng.normal(size=(hidden, hidden)).astype(np.float16) for n in "qkvo"}
    lead = rows if isinstance(rows, int) else -1
    shapes = {"split": np.array([1, lead, heads, dim]), "join": np.array([1, lead, hidden]), "half": np.array([32, 32])}
    nodes = []
    for n in "qkv":
        nodes += [node("MatMul", ["x", f"w{n}"], [n]), node("Reshape", [n, "split"], [f"{n}r"])]
        nodes.append(node("Transpose", [f"{n}r"], [f"{n}t"], perm=[0, 2, 1, 3]))
    for n in "qk":
        nodes += [node("Split", [f"{n}t", "half"], [f"{n}a", f"{n}b"], axis=3), node("Neg", [f"{n}b"], [f"{n}n"])]
        nodes += [node("Concat", [f"{n}n", f"{n}a"], [f"{n}h"], axis=3), node("Mul", [f"{n}h", "sin"], [f"{n}s"])]
        nodes += [node("Mul", [f"{n}t", "cos"], [f"{n}c"]), node("Add", [f"{n}c", f"{n}s"], [f"{n}e"])]
    nodes += [node("Transpose", ["ke"], ["kT"], perm=[0, 1, 3, 2]), node("MatMul", ["qe", "kT"], ["s"])]
    nodes += [node("Softmax", ["s"], ["p"], axis=-1), node("MatMul", ["p", "vt"], ["o"])]
    nodes += [node("Transpose", ["o"], ["ot"], perm=[0, 2, 1, 3]), node("Reshape", ["ot", "join"], ["oj"])]
    nodes.append(node("MatMul", ["oj", "wo"], ["y"]))

    def value(name: str, *shape: int | str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT16, shape)

    inputs = [value("x", 1, rows, hidden), value("cos", 1, 1, rows, dim), value("sin", 1, 1, rows, dim)]
    outputs = [value("y", 1, rows, hidden), *(value(n, 1, heads, rows, dim) for n in ("ke", "vt"))]
    constants = [numpy_helper.from_array(v, k) for k, v in (weights | shapes).items()]
    graph = helper.make_graph(nodes, "control", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


if __name__ == "__main__":
    sys.exit(main())
