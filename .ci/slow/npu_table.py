"""npu_table.py ROWS.jsonl DOC.md: the rows of npu_compile.py as tables, between two marks of DOC.md.

Enters: rows. Leaves: DOC.md with a table for each model and precision: graphs down, NPUs across. Of several rows for
the same cell (a graph that was made again) the last is shown.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from npu_compile import COMPILERS, Row, read_rows, said

BEGIN, END = "<!-- npu tables -->", "<!-- end of npu tables -->"
COLUMNS = {
    "3720": "Meteor Lake (3720)",
    "4000": "Lunar Lake (4000)",
    "5010": "Panther Lake (5010)",
    "qnn": "Snapdragon X (HTP v73)",
}


def tables(rows: Iterable[Row]) -> str:
    """Markdown of all rows."""
    cells = {(r.model, r.precision, r.past, r.network, r.role, r.width, r.target): r for r in rows}
    groups = sorted({key[:2] for key in cells})
    return "\n\n".join(_table(*group, [r for key, r in cells.items() if key[:2] == group]) for group in groups)


def _table(model: str, precision: str, rows: list[Row]) -> str:
    dates = sorted({r.date for r in rows})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    past = max(r.past for r in rows)
    lines = [f"**{model}, {precision}**, P = {past}, the whole model in each graph, {when}", ""]
    lines.append("| graph | " + " | ".join(COLUMNS.values()) + " |")
    lines.append("|---" * (len(COLUMNS) + 1) + "|")
    names = sorted({_place(r) for r in rows}, key=lambda p: (p[0] != "target", p[0], p[1], p[2]))
    for network, role, width in names:
        found = {r.target: r for r in rows if _place(r) == (network, role, width)}
        of = "" if network == "target" else f"{network} "
        cells = (said(found[target]) if target in found else "not tried" for target in COLUMNS)
        lines.append(f"| {of}{role}, S = {width} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *_notes(rows)])


def _place(row: Row) -> tuple[str, str, int]:
    return row.network, row.role, row.width


def _notes(rows: list[Row]) -> list[str]:
    # A name may carry the form of its kernel: Convert.convert_p00 is Convert.
    zero = {t: sorted({op.partition(".")[0] for r in rows if r.target == t for op in r.zero_ops}) for t in COLUMNS}
    peak = max(r.peak_mb for r in rows)
    counted = "; ".join(f"{COLUMNS[t]}: {', '.join(ops)}" for t, ops in zero.items() if ops)
    made = ", ".join(sorted({r.compiler for r in rows}))
    lines = [f"Compilers: {made}. Largest compiler process: {peak / 1000:.1f} GB."]
    return [*lines, f"Counted as zero in the estimates: {counted}."] if counted else lines


def main() -> int:
    """Rewrite the part between the marks."""
    rows, doc = read_rows(Path(sys.argv[1])), Path(sys.argv[2])
    text = doc.read_text("utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        print(f"{doc} has no single '{BEGIN}' and '{END}'", file=sys.stderr)
        return 1
    before, _, rest = text.partition(BEGIN)
    made = tables(row for row in rows if row.compiler == COMPILERS[row.target])
    doc.write_text(f"{before}{BEGIN}\n\n{made}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
