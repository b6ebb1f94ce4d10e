"""`spec-edge targets`: what a bundle can be exported for.

Enters: the profiles in targets/. Leaves: one record each, as a table for people or as JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import click

from spec_edge.targets.target import Target, targets

LINE = 100
"""Columns of the text."""


@dataclass(frozen=True)
class Row:
    """A profile in words. refuses: why nothing is exported for it; "": it is."""

    name: str
    hardware: str
    device: str
    providers: tuple[str, ...]
    precisions: tuple[str, ...]
    widths: tuple[int, ...]
    prefill: int
    buckets: tuple[int, ...]
    opset: int
    compiler: dict[str, str]
    proof: str
    refuses: str


def rows() -> tuple[Row, ...]:
    """Every profile, by name."""
    return tuple(_row(profile) for profile in targets())


def _row(profile: Target) -> Row:
    compiler = profile.compiler
    return Row(
        name=profile.name,
        hardware=profile.description,
        device=profile.device,
        providers=tuple(provider.name for provider in profile.providers),
        precisions=profile.precisions,
        widths=() if profile.refuses else profile.widths,
        prefill=0 if profile.refuses else profile.prefill,
        buckets=() if profile.refuses else profile.buckets,
        opset=profile.rules.opset,
        compiler=dict(compiler.arguments) if compiler else {},
        proof=profile.proof,
        refuses=profile.refuses,
    )


def table(found: Sequence[Row]) -> str:
    """A few lines a target: its name and hardware, its chain, its graphs, what is proved."""
    return "\n".join(line for row in found for line in _lines(row))


def _lines(row: Row) -> list[str]:
    width = max(len(row.name), 14)
    lines = [f"{row.name:<{width}} {row.hardware}"]
    facts = [("refused", row.refuses)] if row.refuses else _facts(row)
    for label, text in facts:
        wrapped = click.wrap_text(text, LINE, " " * 4 + f"{label:<11}", " " * 15)
        lines += wrapped.splitlines()
    return lines


def _facts(row: Row) -> list[tuple[str, str]]:
    sizes = f"verify {_numbers(row.widths)}, prefill {row.prefill}; past {_numbers(row.buckets)}; opset {row.opset}"
    return [
        ("runs on", " -> ".join(row.providers)),
        ("precision", ", ".join(row.precisions)),
        ("graphs", sizes),
        ("proved", row.proof),
    ]


def _numbers(values: Sequence[int]) -> str:
    return "/".join(map(str, values))
