"""What `spec-edge bench` does with its options.

Enters: `Settings`. Leaves: a table on standard output and, with a folder, report.json, report.md and plots in it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import click

from spec_edge.models.contract import SpecError
from spec_edge.runtime.bench import bench, curve, markdown, plots, show, writing
from spec_edge.runtime.bench.settings import Settings
from spec_edge.runtime.bundle import open_bundle
from spec_edge.runtime.resolve import bundle_folder
from spec_edge.runtime.termination import termination_as_interrupt


def run(settings: Settings, as_json: bool) -> None:
    """The benchmark. Everything that can be refused is refused before anything is measured."""
    settings.check_read(curve=False)
    settings = _with_weights(settings)
    settings.check()
    with termination_as_interrupt(), writing.ready(settings.out):
        with show.Progress() as progress:
            report = bench.run(settings, progress, lambda found: keep(found, settings.out))
        if settings.out is not None:
            save(report, settings.out)
    if as_json:
        click.echo(json.dumps(report, ensure_ascii=False))
    else:
        show.report(report)


def keep(report: bench.State, folder: Path | None) -> None:
    """report.json alone, of a benchmark that is not over yet."""
    if folder is not None:
        writing.write_text(folder / "report.json", writing.dumped(report))


def save(report: bench.State, folder: Path) -> None:
    """report.json, the plots, report.md; without matplotlib no plots, and a line that says so."""
    writing.write_text(folder / "report.json", writing.dumped(report))
    names = plots.draw(report, folder) if plots.available() else []
    if not names:
        click.echo("no plots: pip install spec-edge[bench] for matplotlib", err=True)
    writing.write_text(folder / "report.md", markdown.whole(report, names))


def run_curve(settings: Settings, as_json: bool) -> None:
    """Only t(width)."""
    settings.check_read(curve=True)
    with termination_as_interrupt(), writing.ready(settings.out):
        bundle = open_bundle(bundle_folder(settings.model))
        with show.Progress() as progress:
            rows = curve.every_graph(bundle, settings.thread_count, lambda what: progress.stage(what, None))
        if settings.out is not None:
            writing.write_text(settings.out / "curve.json", writing.dumped({"format": bench.FORMAT, "curve": rows}))
    if as_json:
        click.echo(json.dumps(rows, ensure_ascii=False))
    else:
        show.curve(rows)
    if all("absent" in row for row in rows):
        raise SpecError("no graph of this bundle runs here")


def _with_weights(settings: Settings) -> Settings:
    """A model that is named by its weights needs no second name for them."""
    return settings if settings.weights else replace(settings, weights=model_weights(settings.model))


def model_weights(model: str) -> Path | None:
    """The GGUF file or Hugging Face folder that `--model` itself is, or None."""
    path = Path(model)
    return path if (path.suffix == ".gguf" and path.is_file()) or (path / "config.json").is_file() else None
