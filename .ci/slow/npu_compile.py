"""npu_compile.py FP16_BUNDLE OUT.md: compile every portable graph of the largest bucket with the real NPU compilers.

Intel's compiler runs under Wine (.ci/slow/intel_npu/compile.sh), Qualcomm's in a Python that has onnxruntime-qnn
(SPEC_EDGE_QNN_PYTHON). No NPU is used: the result says "compiles for", not "runs on", and latencies are the
compiler's own estimates.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
INTEL = {"Meteor Lake (3720)": "3720", "Lunar Lake (4000)": "4000", "Panther Lake (5010)": "5010"}


def run(command: list[str], folder: Path) -> tuple[int, str]:
    """Exit code and output of one compiler run in a scratch folder."""
    environment = {**os.environ, "ESTIMATE": "1", "TIMEOUT_S": "1200"}
    done = subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return done.returncode, done.stdout


def intel(model: Path, platform: str) -> str:
    """A table cell: seconds, blob size and the compiler's estimate."""
    with tempfile.TemporaryDirectory() as scratch:
        blob = Path(scratch) / "model.blob"
        code, text = run([str(HERE / "intel_npu" / "compile.sh"), str(model), platform, str(blob)], Path(scratch))
        if code:
            return "**fails**: " + " ".join(text.split())[-160:]
        seconds = re.search(r"compile_s ([\d.]+)", text)
        estimate = re.search(r"Estimated inference latency\D*([\d.]+)", text)
        cell = f"{float(seconds[1]):.0f} s, {blob.stat().st_size / 1e6:.0f} MB" if seconds else "compiled"
        return f"{cell}, est. {float(estimate[1]) / 1000:.2f} ms" if estimate else cell


def qualcomm(model: Path) -> str:
    """A table cell for Snapdragon X."""
    python = os.environ.get("SPEC_EDGE_QNN_PYTHON", sys.executable)
    with tempfile.TemporaryDirectory() as scratch:
        code, text = run([python, str(HERE / "qnn_compile.py"), str(model)], Path(scratch))
    found = re.search(r"compiled in ([\d.]+) s, (\d+) bytes", text)
    if code or not found:
        return "**fails**: " + " ".join(text.split())[-160:]
    return f"{float(found[1]):.0f} s, {int(found[2]) / 1e6:.0f} MB"


def main() -> int:
    bundle, out = Path(sys.argv[1]), Path(sys.argv[2])
    manifest = json.loads((bundle / "bundle.json").read_text("utf-8"))
    static = [g for g in manifest["graphs"] if g["width"] and g["lowering"] == "portable"]
    bucket = max(g["past"] for g in static)
    graphs = sorted((g for g in static if g["past"] == bucket), key=lambda g: g["width"])
    columns = [*INTEL, "Snapdragon X (QNN HTP v73)"]
    rows = [f"| graph, P = {bucket} | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for graph in graphs:
        model = bundle / graph["file"]["file"]
        cells = [*(intel(model, platform) for platform in INTEL.values()), qualcomm(model)]
        rows.append(f"| {graph['role']}, S = {graph['width']} | " + " | ".join(cells) + " |")
        print(rows[-1], flush=True)
    facts, table = manifest["model"], "\n".join(rows)
    about = (
        f"{facts['name']}, precision {manifest['precision']}, whole model in one graph. Made by "
        "`.ci/slow/npu_compile.py`; no NPU was used. Compiles for, not runs on; milliseconds are the compiler's own "
        "cost-model estimate of one inference (norms and rotary embedding count as zero in it)."
    )
    out.write_text(f"# NPU compilers on the portable graphs\n\n{about}\n\n{table}\n", encoding="utf-8")
    return int("fails" in table)


if __name__ == "__main__":
    sys.exit(main())
