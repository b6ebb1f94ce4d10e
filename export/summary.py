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
    return lines if summary.draft is None else [*lines, *summary_lines(summary.draft)]


def print_summary(summary: Summary) -> None:
    """Summary on standard output, warnings on standard error."""
    for line in summary_lines(summary):
        click.echo(line)
    for warning in (*summary.warnings, *(summary.draft.warnings if summary.draft else ())):
        click.echo(f"warning: {warning}", err=True)
