"""npu_compile.py ROWS.jsonl BUNDLE...: compile the static portable graphs of bundles with the real NPU compilers.

Enters: bundles. Leaves: one JSON row per graph and compiler, appended to ROWS.jsonl as each ends, so that it can be
interrupted and run again: what is there for the same graph, weights and compiler is not compiled again. npu_table.py
makes the tables of docs/targets.md of the rows.

Intel's compiler runs under Wine (intel_npu/compile.sh), Qualcomm's in a Python that has onnxruntime-qnn
(SPEC_EDGE_QNN_PYTHON). No NPU is used: a row says "compiles for", not "runs on", and its latency is the compiler's own
estimate. Linux only.
"""

from __future__ import annotations

import argparse
import datetime
import fnmatch
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
INTEL = ("3720", "4000", "5010")
COMPILERS = {**dict.fromkeys(INTEL, "openvino 2026.4.1"), "qnn": "onnxruntime-qnn 2.7.0"}
"""What compiles for each target; pinned in intel_npu/compiler.txt and in the Python that is given."""

TARGETS = {"meteor-lake": "3720", "lunar-lake": "4000", "panther-lake": "5010", "snapdragon-x": "qnn"}
"""A bundle made for one of these is compiled for it alone, any other bundle for all."""

TIMEOUT_S = 2400


@dataclass(frozen=True)
class Row:
    """One graph through one compiler.

    zero_ops   operators that the compiler's cost model lacks and counts as zero in `estimate_us`
    peak_mb    largest resident set of the compiler's process
    """

    target: str
    compiler: str
    graph_sha256: str
    weights_sha256: str
    model: str
    precision: str
    graph: str
    network: str
    role: str
    width: int
    past: int
    compiled: bool
    seconds: float
    blob_bytes: int
    peak_mb: int
    estimate_us: float | None
    zero_ops: list[str]
    error: str
    date: str

    @property
    def key(self) -> tuple[str, ...]:
        return key(self.graph_sha256, self.weights_sha256, self.target)


def key(graph: str, weights: str, target: str) -> tuple[str, ...]:
    """What makes a row still hold."""
    return graph, weights, target, COMPILERS[target]


def read_rows(file: Path) -> list[Row]:
    """Rows so far; [] where there is no file."""
    if not file.exists():
        return []
    return [Row(**json.loads(line)) for line in file.read_text("utf-8").splitlines() if line]


def main() -> int:
    """0: every graph that was asked for is compiled by every target."""
    arguments = _arguments()
    rows = {row.key: row for row in read_rows(arguments.rows)}
    failed = 0
    for bundle in arguments.bundles:
        manifest = json.loads((bundle / "bundle.json").read_text("utf-8"))
        for graph in _graphs(manifest, arguments.graphs, arguments.past):
            for target in arguments.targets or _targets_of(manifest):
                found = rows.get(key(graph["file"]["sha256"], manifest["weights"]["sha256"], target))
                if found is None or (arguments.again and not found.compiled):
                    found = _row(bundle, manifest, graph, target)
                    rows[found.key] = found
                    with arguments.rows.open("a", encoding="utf-8") as out:
                        out.write(json.dumps(asdict(found)) + "\n")
                    print(f"{bundle.name} {graph['name']} {target}: {said(found)}", flush=True)
                failed += not found.compiled
    return int(failed > 0)


def said(row: Row) -> str:
    """A row in words, as in a table's cell."""
    if not row.compiled:
        return f"**fails**: {row.error[-160:]}"
    cell = f"{row.seconds:.0f} s, {row.blob_bytes / 1e6:.0f} MB"
    return cell if row.estimate_us is None else f"{cell}, est. {row.estimate_us / 1000:.2f} ms"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("rows", type=Path)
    parser.add_argument("bundles", type=Path, nargs="+")
    parser.add_argument("--targets", type=lambda s: s.split(","), default=[], help="3720,4000,5010,qnn")
    parser.add_argument("--graphs", type=lambda s: s.split(","), default=["*"], help="patterns of names, by comma")
    parser.add_argument("--past", type=int, help="the bucket P; the bundle's largest otherwise")
    parser.add_argument("--again", action="store_true", help="try once more what failed")
    parsed = parser.parse_args()
    if unknown := set(parsed.targets) - set(COMPILERS):
        parser.error(f"unknown target {', '.join(sorted(unknown))}; known: {', '.join(COMPILERS)}")
    return parsed


def _targets_of(manifest: dict[str, Any]) -> list[str]:
    own = TARGETS.get(manifest["target"])
    return [own] if own else list(COMPILERS)


def _graphs(manifest: dict[str, Any], patterns: list[str], past: int | None) -> list[dict[str, Any]]:
    """Static portable graphs whose name fits, of one bucket, in the order of the patterns, then by width."""
    static = [g for g in manifest["graphs"] if g["width"] and g["lowering"] == "portable"]
    bucket = past or max((g["past"] or 0 for g in static), default=0)
    of_bucket = sorted((g for g in static if (g["past"] or bucket) == bucket), key=lambda g: int(g["width"]))
    chosen = (g for pattern in patterns for g in of_bucket if fnmatch.fnmatch(g["name"], pattern))
    return list({g["name"]: g for g in chosen}.values())


def _row(bundle: Path, manifest: dict[str, Any], graph: dict[str, Any], target: str) -> Row:
    model = (bundle / graph["file"]["file"]).resolve()
    with tempfile.TemporaryDirectory() as scratch:
        blob = Path(scratch) / "model.blob"
        begun = time.perf_counter()
        code, text, peak = _run(_command(model, target, blob), Path(scratch))
        seconds = time.perf_counter() - begun
        compiled = code == 0 and blob.is_file()
        size = blob.stat().st_size if compiled else 0
    if not compiled and "not compiled" not in text:
        raise SystemExit(f"the compiler for {target} did not run (exit {code}): {text[-2000:]}")
    estimate = re.search(r"Estimated inference latency\D*([\d.]+)", text)
    lacks = re.search(r"unsupported by VPUNN[^\[]*\[([^\]]*)\]", text)
    return Row(
        target=target,
        compiler=COMPILERS[target],
        graph_sha256=graph["file"]["sha256"],
        weights_sha256=manifest["weights"]["sha256"],
        model=manifest["model"]["name"],
        precision=_precision(manifest, graph),
        graph=graph["name"],
        network=graph["network"],
        role=graph["role"],
        width=graph["width"],
        past=graph["past"] or 0,
        compiled=compiled,
        seconds=round(seconds, 1),
        blob_bytes=size,
        peak_mb=peak,
        estimate_us=float(estimate[1]) if estimate else None,
        zero_ops=sorted(name.strip().removeprefix("builtin_") for name in lacks[1].split(",")) if lacks else [],
        error="" if compiled else f"exit {code}: {' '.join(text.split())[-600:]}",
        date=datetime.date.today().isoformat(),
    )


def _precision(manifest: dict[str, Any], graph: dict[str, Any]) -> str:
    """Of the weights, and of the activations where they are not the 16 bits that an NPU computes in."""
    wide = any(tensor["dtype"] == "float32" for tensor in graph["inputs"])
    return manifest["precision"] + (", float32 activations" if wide and manifest["precision"] != "fp32" else "")


def _command(model: Path, target: str, blob: Path) -> list[str]:
    if target == "qnn":
        python = os.environ.get("SPEC_EDGE_QNN_PYTHON", sys.executable)
        return [python, str(HERE / "qnn_compile.py"), str(model), str(blob)]
    return [str(HERE / "intel_npu" / "compile.sh"), str(model), target, str(blob)]


def _run(command: list[str], folder: Path) -> tuple[int, str, int]:
    """Exit code, output, and the largest resident set (MB) of one compiler run in a scratch folder."""
    environment = {**os.environ, "ESTIMATE": "1", "TIMEOUT_S": str(TIMEOUT_S)}
    log = folder / "log"
    with log.open("wb") as out:
        child = subprocess.Popen(command, cwd=folder, env=environment, stdout=out, stderr=subprocess.STDOUT)
        _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    return child.returncode, log.read_text("utf-8", errors="replace"), used.ru_maxrss // 1024


if __name__ == "__main__":
    sys.exit(main())
