"""report.md: the report as a person reads it.

Enters: a report. Leaves: Markdown. The same report gives the same text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from spec_edge.runtime.bench import rows
from spec_edge.runtime.bench.questions import OVERALL
from spec_edge.runtime.bench.rows import Cells, number

Report = Mapping[str, Any]


def table(cells: Cells) -> str:
    """Markdown of a header and rows."""
    header, body = cells
    lines = ["| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in body)])


def overall(report: Report) -> str:
    """The table that the README shows, with what it was measured on."""
    return f"{conditions(report)}\n\n{table(rows.overall(report))}"


def conditions(report: Report) -> str:
    """One paragraph: model, machine, settings, versions."""
    model, machine, how = report["model"], report["machine"], report["settings"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    text = "greedy" if how["temperature"] == 0 else f"sampled at temperature {how['temperature']:g}"
    busy = machine["load"]
    note = "" if busy is None else f" Load before the run: {busy:.1f}."
    if speed := machine.get("memory_gb_s"):
        note += f" Memory gave {speed['median']:.0f} ({speed['low']:.0f} to {speed['high']:.0f}) GB/s meanwhile."
    held = how.get("sittings", 1)
    sittings = "" if held == 1 else f", the peers in {held} sittings with every method of spec-edge in each"
    repeats = "once" if how["repeat"] == 1 else f"{how['repeat']} times"
    return (
        f"{model['name']} ({model['precision']}), {machine['processor']}, {machine['physical_cores']} cores, "
        f"{machine['system']}, Python {machine['python']}, {versions}. {how['threads']} threads for everybody, {text}, "
        f"{how['count']} questions ({how['questions']}) of {len(report['questions'])} turns in all, at most "
        f"{how['max_new_tokens']} new tokens a turn, each {repeats}, interleaved{sittings}.{note}"
    )


def whole(report: Report, plots: Sequence[str]) -> str:
    """All of report.md. plots: names of the files that lie beside it."""
    return "\n\n".join(_parts(report, plots)) + "\n"


def _parts(report: Report, plots: Sequence[str]) -> Iterator[str]:
    yield "# spec-edge bench"
    yield conditions(report)
    yield table(rows.overall(report))
    yield from (f"![{name.removesuffix('.png')}]({name})" for name in plots)
    yield "## What the columns mean"
    yield "\n".join(f"- **{name}**: {meaning}" for name, meaning in report["definitions"].items())
    for name in _tasks(report):
        yield f"## {name}"
        yield table(rows.task(report, name))
    yield "## Is the text plain decoding's own?"
    yield from _lossless(report)
    yield "## Quality of the weights as they are run"
    yield table(_quality(report))
    if (cells := rows.starts(report))[1]:
        yield "## In a process of its own"
        yield table(cells)
    yield "## What a verify run costs by its width"
    yield table(_curve(report))
    yield "## Peers, and what was not measured"
    yield from _contenders(report)


def _tasks(report: Report) -> list[str]:
    names = dict.fromkeys(q["task"] for q in report["questions"])
    return [OVERALL, *names]


def _lossless(report: Report) -> Iterator[str]:
    if not report["lossless"]:
        yield "Sampled text has the target's law, not plain decoding's tokens: nothing is compared."
        return
    yield (
        "Ours against plain decoding, a peer's methods against the peer's own plain decoding. Margin: logit of plain "
        "decoding's token less that of the other one, in our target. A near-tie: the target itself writes the other "
        "token when it reads its own text in runs of the same shapes; anything else is a fault. A peer's kernels are "
        "not ours, so its differences are listed and not judged."
    )
    yield table(_verdicts(report))
    if lines := list(_differences(report)):
        yield "\n".join(lines)


def _verdicts(report: Report) -> Cells:
    header = ["", "answers", "tokens", "differences", "near-ties", "faults", "not the same in every repeat", "as ours"]
    body = []
    for name, found in report["lossless"].items():
        parted, peer = found["divergences"], "/" in name
        near = sum(not row["fault"] for row in parted)
        verdict = [rows.UNKNOWN, rows.UNKNOWN] if peer else [str(near), str(found["faults"])]
        cells = [name, str(found["answers"]), str(found["tokens"]), str(len(parted)), *verdict]
        body.append([*cells, str(found["unrepeatable"]), str(found.get("as_ours", rows.UNKNOWN))])
    return header, body


def _differences(report: Report) -> Iterator[str]:
    for name, found in report["lossless"].items():
        for row in found["divergences"]:
            where = f"- {name}, question {row['question']}, turn {row['turn'] + 1}, token {row['at'] + 1}"
            if "lengths" in row:
                yield f"{where}: {row['lengths'][1]} tokens instead of {row['lengths'][0]}, **a fault**"
            else:
                verdict = "" if "/" in name else ", **a fault**" if row["fault"] else ", a near-tie"
                yield f"{where}: margin {row['margin']:.3g}, noise of widths {row['noise']:.2g}{verdict}"


def _quality(report: Report) -> Cells:
    header = ["weights", "KL to fp32", "top-1 agreement", "perplexity", "within KL 0.02 and top-1 0.95"]
    body = []
    for name, found in report["quality"].items():
        whose = f"ours, {report['model']['precision']}" if name == "plain" else name
        if "absent" in found:
            body.append([whose, f"not known: {found['absent']}", *[rows.UNKNOWN] * 3])
        else:
            cells = [number(found["kl"], 4), number(found["top1"], 3), number(found["perplexity"], 3)]
            body.append([whose, *cells, "yes" if found["within"] else "no"])
    return header, body


def _curve(report: Report) -> Cells:
    widths, times = report["curve"]["widths"], report["curve"]["ms"]
    header = ["width", *map(str, widths)]
    relative = ["t(width) / t(1)", *(f"{ms / times[0]:.2f}" for ms in times)]
    return header, [["ms", *(f"{ms:.2f}" for ms in times)], relative]


def _contenders(report: Report) -> Iterator[str]:
    lines = []
    for name, state in report["contenders"].items():
        if "absent" in state:
            lines.append(f"- {name}: not measured, {state['absent']}")
        elif state["kind"] == "peer":
            how = ", ".join(f"{key} {value}" for key, value in state["settings"].items())
            own = report["ratios"].get(name, {}).get("to_own_plain", {}).get(OVERALL)
            beside = f"; to its own plain decoding {rows.ratio(own)}" if own else ""
            lines.append(f"- {name}: {state['version']}, weights {state['precision']}, {how}{beside}")
    yield "\n".join(lines) or "No peers were asked for, and every method ran."
