"""Rows that are worth their cost, of drafts whose rows say how probable they are.

Enters: each row's chance to be accepted, best first, and a cost curve. Leaves: how many of them to run, and the
expected tokens a second in units of plain decoding's.
"""

from __future__ import annotations

from collections.abc import Sequence

from spec_edge.runtime.costs import CostCurve


def worth(chances: Sequence[float], cost: CostCurve, spent: float = 0.0) -> tuple[int, float]:
    """(how many of the rows give the most tokens a second, that gain over plain decoding).

    chances  that a row's whole path is accepted, in the order in which rows are left out last
    spent    seconds that drafting took, whatever is run of it
    """
    best, expected = 0, 1.0
    gain = cost.at(1) / (cost.at(1) + spent)
    for rows, chance in enumerate(chances, 1):
        expected += chance
        now = expected * cost.at(1) / (cost.at(1 + rows) + spent)
        if now > gain:
            best, gain = rows, now
    return best, gain


def promise(cost: CostCurve, step: float, rate: float, most: int) -> float:
    """The gain of a chain that costs `step` seconds a token, before it is drafted. rate: acceptance at each depth."""
    gain, expected, reach, plain = 1.0, 1.0, 1.0, cost.at(1)
    for rows in range(1, most + 1):
        reach *= rate
        expected += reach
        seconds = cost.at(1 + rows) + rows * step
        gain = max(gain, expected * plain / seconds)
        if rate < 1 and (expected + reach * rate / (1 - rate)) * plain <= gain * seconds:
            break  # a longer one takes no less time, and all that it could give is not worth it
    return gain
