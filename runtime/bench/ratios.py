"""Is it faster? Ratios paired by question, with an interval that says whether the answer is known.

Enters: a speed of two contenders for each question and repeat. Leaves: the geometric mean of the questions' ratios and
its paired bootstrap interval. Source: Efron 1979, percentile method over questions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

SEED = 20260
RESAMPLES = 10_000
CONFIDENCE = 0.95
LEAST = 6
"""Fewest questions for a verdict: five that all agree do so by chance in 2 of 32 cases, more than one in twenty."""

Speeds = Mapping[str, Sequence[float]]
"""Question -> speed in each repeat."""


@dataclass(frozen=True)
class Ratio:
    """low, high: the 95 % interval. resolved: it does not contain 1, and there are questions enough to say so."""

    ratio: float
    low: float
    high: float
    questions: int

    @property
    def resolved(self) -> bool:
        return self.questions >= LEAST and not self.low <= 1.0 <= self.high


def per_question(base: Speeds, other: Speeds) -> dict[str, float]:
    """Median over repeats of other / base, of the questions that both have; runs of the same repeat are compared."""
    out = {}
    for question in base:
        pairs = list(zip(base[question], other.get(question, ()), strict=False))
        if pairs and all(b > 0 and o > 0 for b, o in pairs):
            out[question] = float(np.median([o / b for b, o in pairs]))
    return out


def paired(base: Speeds, other: Speeds) -> Ratio | None:
    """How many times faster `other` is. None: they share no question. The same numbers give the same interval."""
    ratios = list(per_question(base, other).values())
    if not ratios:
        return None
    logs = np.log(ratios)
    rng = np.random.default_rng(SEED)
    means = logs[rng.integers(len(logs), size=(RESAMPLES, len(logs)))].mean(axis=1)
    low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Ratio(float(np.exp(logs.mean())), float(np.exp(low)), float(np.exp(high)), len(logs))
