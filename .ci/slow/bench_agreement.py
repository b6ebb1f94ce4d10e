"""bench_agreement.py REPORT REPORT: how far two runs of one benchmark are apart in every overall ratio to plain.

Enters: two report.json of `spec-edge bench` with the same model, questions and contenders. Leaves: a markdown table,
and exit code 1 where a ratio moved by more than 7 %, or the reports are of different things.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

MOST = 0.07


def same(first: dict[str, Any], second: dict[str, Any]) -> bool:
    """One benchmark, run twice."""
    facts = [(r["settings"], r["model"]["bundle"], sorted(r["ratios"])) for r in (first, second)]
    return facts[0] == facts[1]


def rows(first: dict[str, Any], second: dict[str, Any]) -> list[tuple[str, str, float, float]]:
    """(contender, kind, ratio of the first, of the second)."""
    kinds = ("decode", "end_to_end")
    pairs = [(name, kind) for name in first["ratios"] for kind in kinds]
    return [
        (name, kind, *(float(r["ratios"][name][kind]["overall"]["ratio"]) for r in (first, second)))  # type: ignore[misc]
        for name, kind in pairs
    ]


def main(paths: list[str]) -> int:
    """Print the table."""
    if len(paths) != 2:
        print("usage: bench_agreement.py REPORT.json REPORT.json", file=sys.stderr)
        return 2
    first, second = (json.loads(Path(path).read_text("utf-8")) for path in paths)
    if not same(first, second):
        print("the two reports are of different bundles, settings or contenders", file=sys.stderr)
        return 1
    found = rows(first, second)
    print("| | decode, first | second | end to end, first | second | largest difference |\n|---|---|---|---|---|---|")
    for decode, whole in zip(found[::2], found[1::2], strict=True):
        moved = max((b / a - 1 for _, _, a, b in (decode, whole)), key=abs)
        cells = " | ".join(f"{ratio:.3f}" for ratio in (*decode[2:], *whole[2:]))
        print(f"| {decode[0]} | {cells} | {100 * moved:+.1f} % |")
    worst = max(abs(b / a - 1) for _, _, a, b in found)
    print(f"\nlargest of {len(found)}: {100 * worst:.1f} %")
    speeds = [r["machine"].get("memory_gb_s") for r in (first, second)]
    if all(speeds):
        print(
            "memory, GB/s: " + ", then ".join(f"{s['median']:.1f} ({s['low']:.1f} to {s['high']:.1f})" for s in speeds)
        )
    return int(worst > MOST)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
