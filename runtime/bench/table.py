"""python -m spec_edge.runtime.bench.table REPORT.json [README.md]: the README's measured table, from a report.

Enters: report.json and a file with the two markers. Leaves: the file, with what lies between them rewritten. With
--check nothing is written and exit code 1 says that the file shows something else.
"""

from __future__ import annotations

import json
from pathlib import Path

import click

from spec_edge.models.contract import BadUsage, SpecError
from spec_edge.runtime.bench import markdown
from spec_edge.runtime.bench.bench import FORMAT
from spec_edge.runtime.bench.writing import write_text
from spec_edge.runtime.named_path import NamedPath

BEGIN, END = "<!-- bench-table -->", "<!-- /bench-table -->"


def block(report_file: Path) -> str:
    """The text between the markers. BadUsage: the file is no report."""
    try:
        report = json.loads(report_file.read_text("utf-8"))
        if report["format"] != FORMAT:
            raise BadUsage(f"{report_file} has format {report['format']}, not {FORMAT}; run the benchmark again")
        return f"\n{markdown.overall(report)}\n"
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadUsage(f"{report_file} is no report of spec-edge bench ({type(error).__name__}: {error})") from None


def filled(text: str, table: str, name: str) -> str:
    """`text` with the block in its place. BadUsage: it has no such place."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise BadUsage(f"{name} has no place for the table; write {BEGIN} and below it {END}")
    return f"{head}{BEGIN}\n{table}\n{END}{tail}"


@click.command()
@click.argument("report", type=NamedPath())
@click.argument("readme", type=NamedPath(), default=Path("README.md"))
@click.option("--check", is_flag=True, help="Write nothing; fail where README shows another table.")
def main(report: Path, readme: Path, check: bool) -> None:
    """Rewrite the table in README from REPORT."""
    try:
        before = readme.read_text("utf-8")
    except OSError as error:
        raise BadUsage(f"cannot read {readme}: {error.strerror or error}") from None
    after = filled(before, block(report), readme.name)
    if check and after != before:
        raise SpecError(f"{readme} shows another table than {report}; run python -m spec_edge.runtime.bench.table")
    if not check:
        write_text(readme, after)


if __name__ == "__main__":
    main()
