"""Acceptance as verification meets it: what a drafter gets accepted at the rows where steps begin.

Enters: for every row of an answer, how many drafted tokens would be right there. Leaves: the mean over the steps that a
greedy decoder would take. Over all rows the mean would be larger: steps begin behind a rejection, where it is harder.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from spec_edge.export.train.packed import Packed


@dataclass(frozen=True)
class Acceptance:
    """length: tokens per step, the bonus token counted. depth: share of the steps that accept at least 1, 2, ..."""

    steps: int
    length: float
    depth: tuple[float, ...]

    def __str__(self) -> str:
        return f"{self.length:.3f} ({' '.join(f'{share:.3f}' for share in self.depth)})"


def steps(texts: Packed, taken: Tensor) -> list[int]:
    """Accepted tokens of each step, all texts one after another. taken [C]: of each row."""
    found, wanted, before = [], 0, -1
    for row, text, count in zip(texts.starts.tolist(), texts.text.tolist(), taken.tolist(), strict=True):
        if text != before:
            wanted, before = row, text
        if row == wanted:
            found.append(count)
            wanted = row + count + 1
    return found


def acceptance(counts: Sequence[int], depth: int) -> Acceptance:
    """Of steps that drafted `depth` tokens each."""
    n = max(1, len(counts))
    shares = tuple(sum(count > i for count in counts) / n for i in range(depth))
    return Acceptance(len(counts), 1 + sum(shares), shares)


def joined(parts: Iterable[Sequence[int]]) -> list[int]:
    return [count for part in parts for count in part]
