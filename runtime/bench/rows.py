"""Numbers of a report as cells: the same text in the terminal, in report.md and in the README.

Enters: a report. Leaves: header and rows. What is not known is "-", never a zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spec_edge.runtime.bench.own import BASELINE
from spec_edge.runtime.bench.questions import OVERALL

MEGA = 1 << 20
UNKNOWN = "-"
Cells = tuple[list[str], list[list[str]]]


def number(value: float | None, digits: int) -> str:
    """Fixed digits, or a dash."""
    return UNKNOWN if value is None else f"{value:.{digits}f}"


def spread(values: Mapping[str, float] | None, digits: int) -> str:
    """Median and quartiles."""
    if values is None:
        return UNKNOWN
    return f"{values['median']:.{digits}f} ({values['low']:.{digits}f}-{values['high']:.{digits}f})"


def ratio(value: Mapping[str, Any] | None) -> str:
    """With its interval; says where the interval leaves it open."""
    if value is None:
        return UNKNOWN
    text = f"{value['ratio']:.2f} ({value['low']:.2f}-{value['high']:.2f})"
    return text if value["resolved"] else f"{text} not resolved"


def side(name: str) -> str:
    """Whose weights it runs: the key of the report's quality."""
    return name.rpartition("/")[0] or BASELINE


def memory(report: Mapping[str, Any], name: str) -> str:
    """MB: peak resident set, proportional set in brackets."""
    found = report["memory"].get(name) or report["memory"].get(side(name)) or {}
    if found.get("peak_rss") is None:
        return UNKNOWN
    pss = "" if found.get("pss") is None else f" ({found['pss'] / MEGA:.0f})"
    return f"{found['peak_rss'] / MEGA:.0f}{pss}"


def starts(report: Mapping[str, Any]) -> Cells:
    """What was run once in a process of its own."""
    seconds = {name: (report["memory"].get(name) or {}).get("startup_s") for name in report["figures"]}
    body = [[name, number(s, 2), memory(report, name)] for name, s in seconds.items() if s is not None]
    return ["", "start s", "MB"], body


def text(found: Mapping[str, Any] | None, peer: bool) -> str:
    """The verdict on a contender's text."""
    if found is None:
        return UNKNOWN
    parted = len(found["divergences"])
    if not parted:
        return f"same, {found['answers']} answers"
    if peer:
        return f"{parted} of {found['answers']} differ from its own plain"
    if found["faults"]:
        return f"**{found['faults']} faults**, {parted} of {found['answers']} differ"
    return f"{parted} of {found['answers']} differ, near-ties"


def short(report: Mapping[str, Any]) -> Cells:
    """What fits a terminal: medians over all questions."""
    header = ["", "tok/s", "ratio to plain", "end to end", "first ms", "accept", "KL", "text"]
    rows = []
    for name, groups in report["figures"].items():
        own, ratios = groups[OVERALL], report["ratios"].get(name, {})
        cells = [name, _median(own["decode_tokens_per_s"], 1), ratio(ratios.get("decode", {}).get(OVERALL))]
        whole = ratios.get("end_to_end", {}).get(OVERALL)
        cells += [UNKNOWN if whole is None else f"{whole['ratio']:.2f}", _median(own["first_token_ms"], 0)]
        cells += [number(own["acceptance_length"], 2), number(report["quality"].get(side(name), {}).get("kl"), 4)]
        rows.append([*cells, text(report["lossless"].get(name), "/" in name)])
    return header, rows


def _median(values: Mapping[str, float] | None, digits: int) -> str:
    return UNKNOWN if values is None else f"{values['median']:.{digits}f}"


def overall(report: Mapping[str, Any]) -> Cells:
    """One row per contender, over all questions."""
    header = ["", "decode tok/s", "ratio to plain", "end to end tok/s", "ratio", "first token ms", "accept length"]
    header += ["KL", "top-1", "text"]
    rows = []
    for name, groups in report["figures"].items():
        own, ratios = groups[OVERALL], report["ratios"].get(name, {})
        quality = report["quality"].get(side(name), {})
        cells = [name, spread(own["decode_tokens_per_s"], 1), ratio(ratios.get("decode", {}).get(OVERALL))]
        cells += [spread(own["end_to_end_tokens_per_s"], 1), ratio(ratios.get("end_to_end", {}).get(OVERALL))]
        cells += [spread(own["first_token_ms"], 0), number(own["acceptance_length"], 2)]
        cells += [number(quality.get("kl"), 4), number(quality.get("top1"), 3)]
        rows.append([*cells, text(report["lossless"].get(name), "/" in name)])
    return header, rows


def task(report: Mapping[str, Any], name: str) -> Cells:
    """Every figure of one group of questions."""
    header = ["", "questions", "decode tok/s", "ratio to plain", "end to end tok/s", "first token ms"]
    header += ["inter-token p50 / p95 ms", "pause p95 ms", "accept length", "by depth", "draft / verify / rest", "MB"]
    rows = []
    for contender, groups in report["figures"].items():
        if name in groups:
            own = groups[name]
            found = report["ratios"].get(contender, {}).get("decode", {}).get(name)
            rows.append([contender, str(own["questions"]), *_cells(own, found), memory(report, contender)])
    return header, rows


def _cells(own: Mapping[str, Any], found: Mapping[str, Any] | None) -> list[str]:
    shares, depth = own["time_in"], own["accepted_by_depth"]
    waits = f"{number(own['inter_token_p50_ms'], 1)} / {number(own['inter_token_p95_ms'], 1)}"
    return [
        spread(own["decode_tokens_per_s"], 1),
        ratio(found),
        spread(own["end_to_end_tokens_per_s"], 1),
        spread(own["first_token_ms"], 0),
        waits,
        number(own["pause_p95_ms"], 1),
        number(own["acceptance_length"], 2),
        " ".join(f"{share:.2f}" for share in depth) if depth else UNKNOWN,
        " / ".join(f"{100 * shares[part]:.0f} %" for part in shares) if shares else UNKNOWN,
    ]
