"""Pictures of a report, with matplotlib (extra `bench`).

Enters: a report and a folder. Leaves: PNG files: ratio by task, t(width), acceptance by depth, speed against quality.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from spec_edge.models.contract import SpecError
from spec_edge.runtime.bench.own import BASELINE
from spec_edge.runtime.bench.questions import OVERALL
from spec_edge.runtime.bench.rows import side
from spec_edge.runtime.bench.writing import write
from spec_edge.runtime.quality import KL_LIMIT

Report = Mapping[str, Any]
SIZE = (9.0, 5.5)
DPI = 120
THIN = {"linewidth": 0.8}
SMALLEST_KL = 1e-5
"""What is closer to the fp32 target is drawn here: on a log scale nothing is 0."""


def available() -> bool:
    """Whether matplotlib is installed."""
    try:
        import matplotlib
    except ImportError:
        return False
    del matplotlib
    return True


def draw(report: Report, folder: Path) -> list[str]:
    """Names of the files written; a picture without anything to show is left out."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise SpecError("plots need matplotlib: pip install spec-edge[bench]") from None
    names = []
    for name, fill in PLOTS.items():
        figure = Figure(figsize=SIZE, dpi=DPI, layout="constrained")
        if fill(report, figure.add_subplot()):
            write(folder / f"{name}.png", partial(figure.savefig, metadata={"Software": None}))
            names.append(f"{name}.png")
    return names


def _by_task(report: Report, axes: Any) -> bool:
    """Bars with their 95 % intervals: a group per task, a bar per contender."""
    decode = {name: kinds["decode"] for name, kinds in report["ratios"].items()}
    tasks = list(dict.fromkeys([OVERALL, *(q["task"] for q in report["questions"])]))
    width = 0.8 / max(1, len(decode))
    for number, (name, ratios) in enumerate(decode.items()):
        found = [(at, ratios[task]) for at, task in enumerate(tasks) if ratios.get(task)]
        places = [at - 0.4 + (number + 0.5) * width for at, _ in found]
        heights = [r["ratio"] for _, r in found]
        errors = [[r["ratio"] - r["low"] for _, r in found], [r["high"] - r["ratio"] for _, r in found]]
        colour = f"C{number % 10}"
        hatch = "//" * (number // 10)  # ten colours in the cycle
        axes.bar(places, heights, width, label=name, color=colour, hatch=hatch, yerr=errors, error_kw=THIN)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(tasks)), tasks)
    axes.set_ylabel("decode speed / plain decoding's")
    axes.figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", fontsize="x-small", ncols=3)
    return bool(decode)


def _curve(report: Report, axes: Any) -> bool:
    curve = report["curve"]
    axes.plot(curve["widths"], curve["ms"], marker="o")
    axes.set_xscale("log", base=2)
    axes.set_xticks(curve["widths"], [str(w) for w in curve["widths"]])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("width of a verify run, rows")
    axes.set_ylabel("t(width), ms")
    return True


def _by_depth(report: Report, axes: Any) -> bool:
    shown = False
    for name, groups in report["figures"].items():
        if depth := groups[OVERALL]["accepted_by_depth"]:
            axes.plot(range(1, len(depth) + 1), depth, marker="o", label=name)
            shown = True
    axes.set_ylim(0, 1)
    axes.set_xlabel("depth of the drafted token")
    axes.set_ylabel("accepted, of the steps that held one")
    if shown:
        axes.legend(fontsize="x-small")
    return shown


def _pareto(report: Report, axes: Any) -> bool:
    """Speed against KL to fp32: up and to the left is better. The line: up to here a model counts as the target."""
    shown = False
    for name, groups in report["figures"].items():
        kl, speed = report["quality"].get(side(name), {}).get("kl"), groups[OVERALL]["decode_tokens_per_s"]
        if kl is None or speed is None:
            continue
        at = (max(kl, SMALLEST_KL), speed["median"])
        axes.scatter([at[0]], [at[1]], marker="o" if side(name) == BASELINE else "s")
        axes.annotate(name, at, fontsize="x-small", xytext=(4, 2), textcoords="offset points")
        shown = True
    axes.axvline(KL_LIMIT, color="lightgrey", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlim(SMALLEST_KL / 2, 30)  # names stand to the right of their marks
    axes.set_ylim(bottom=0)
    axes.set_xlabel("KL divergence from the fp32 target, nats per token")
    axes.set_ylabel("decode, tokens/s")
    return shown


PLOTS: dict[str, Callable[[Report, Any], bool]] = {
    "ratio-by-task": _by_task,
    "cost-curve": _curve,
    "acceptance-by-depth": _by_depth,
    "speed-and-quality": _pareto,
}
