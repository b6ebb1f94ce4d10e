"""The summary of an export, for people."""

from __future__ import annotations

import click

from spec_edge.export.memory import memory_lines
from spec_edge.export.options import Summary


def summary_lines(summary: Summary) -> list[str]:
    """A few plain lines: what was made, how good it is, what was passed over."""
    quality = summary.quality
    worst = next(kind for kind in quality.kinds if kind.kind == quality.worst)
    lines = [
        f"{summary.model} -> {summary.bundle}",
        f"  precision {summary.precision}, target {summary.target}, context {summary.context}, "
        f"{summary.graphs} graphs, "
        f"{summary.bytes / 1e6:.0f} MB (weights {summary.weights_bytes / 1e6:.0f} MB)",
        f"  against fp32 on {quality.tokens} tokens: KL {quality.kl:.4f}, top-1 {quality.top1:.3f}; "
        f"worst kind {worst.kind}: KL {worst.kl:.4f}, top-1 {worst.top1:.3f}",
    ]
    if summary.parity:
        lines.append(f"  fp32 graph against the numpy reference: logits within {summary.parity.max_abs_error:.1e}")
    lines += [f"  passed over {r.precision}: {r.reason}" for r in summary.rejected]
    lines += memory_lines(summary.memory)
    lines.append(f"  {summary.seconds:.1f} s")
    return [*lines, *(line for other in beside(summary) for line in summary_lines(other))]


def beside(summary: Summary) -> list[Summary]:
    """Of the bundles that were made with it."""
    return [other for other in (summary.draft, summary.fallback) if other is not None]


def print_summary(summary: Summary) -> None:
    """Summary on standard output, warnings on standard error."""
    for line in summary_lines(summary):
        click.echo(line)
    for made in (summary, *beside(summary)):
        for warning in made.warnings:
            click.echo(f"warning: {warning}", err=True)
