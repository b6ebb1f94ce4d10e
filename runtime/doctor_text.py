"""A doctor's report for people.

Enters: a `Report`. Leaves: text, a few lines for each part, wrapped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import click

from spec_edge.runtime.asking import Provider
from spec_edge.runtime.doctor import BundleFacts, Report, Runs

LINE, LABEL = 110, 16
"""Columns of the text, and of what stands in front of it."""


def text(report: Report) -> str:
    """All of it."""
    return "\n".join([*_machine(report), "", *_providers(report), "", *_targets(report), "", *_compiled(report)])


def _machine(report: Report) -> Iterator[str]:
    packages = ", ".join(f"{name} {version}" for name, version in report.packages.items())
    yield from _row("spec-edge", f"{report.version}, Python {report.python}, {report.system}")
    yield from _row("processor", f"{report.processor}, {report.cores} cores")
    yield from _row("packages", packages or "none of a provider")
    for device in report.hardware:
        yield from _row("hardware", f"{device.name} ({device.pci}): export for --target {device.target}")
    for warning in report.warnings:
        yield from _row("WARNING", warning)


def _providers(report: Report) -> Iterator[str]:
    yield "providers: what can run a graph here"
    for provider in report.providers:
        yield from _row(f"  {provider.name}", _provider(provider))


def _provider(provider: Provider) -> str:
    if provider.state != "ready":
        return f"no: {provider.reason}"
    driver = f", driver {provider.driver}" if provider.driver else ""
    versions = "".join(f", {name} {version}" for name, version in provider.versions.items())
    return f"yes: {provider.found}{driver}{versions}"


def _targets(report: Report) -> Iterator[str]:
    yield "targets: what a bundle for each would run on here, its own weights on every step"
    for found in report.targets:
        yield from _row(f"  {found.target}", _runs(found))


def _runs(found: Runs) -> str:
    if found.refuses:
        return f"nothing: {found.refuses}"
    reasons = _reasons(found.before)
    return f"{found.here or 'nothing'}{f' (not {reasons})' if reasons else ''}"


def _reasons(before: Mapping[str, str]) -> str:
    """The names only: the reasons stand above, one for each provider."""
    return ", ".join(before)


def _compiled(report: Report) -> Iterator[str]:
    size = f"{report.compiled_graphs} graphs, {megabytes(report.compiled_bytes)}, in {report.compiled_folder}"
    tried = f"; {report.tried_graphs} more were tried in a child process for GPUs, which keeps nothing of them"
    yield from _row("compiled", size + (tried if report.tried_graphs else ""))
    if report.bundle is not None:
        yield ""
        yield from _bundle(report.bundle)


def _bundle(bundle: BundleFacts) -> Iterator[str]:
    yield from _row("bundle", bundle.folder)
    yield from _row("  model", f"{bundle.model}, {bundle.precision}, target {bundle.runs.target}")
    yield from _row("  chain", " -> ".join(bundle.runs.chain))
    yield from _row("  here", _runs(bundle.runs))
    for name, reason in bundle.runs.before.items():
        yield from _row("", f"{name}: {reason}")
    yield from _row("  compiled", f"{megabytes(bundle.compiled_bytes)}; each compiled graph carries the weights")
    for graph in bundle.graphs:
        blobs = "".join(f", compiled for {name}: {megabytes(size)}" for name, size in graph.compiled.items())
        yield f"    {graph.name:<28} {graph.nodes} nodes, {graph.operations / 1e9:.3g} GFLOP{blobs}"


def megabytes(size: int) -> str:
    return f"{size / 1e6:.0f} MB"


def _row(label: str, value: str) -> list[str]:
    first = f"{label:<{LABEL}} "
    return click.wrap_text(value, LINE, first, " " * (LABEL + 1)).splitlines() or [first]
