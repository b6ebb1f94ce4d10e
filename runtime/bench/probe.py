"""How fast memory is, asked now and then while contenders run: one row of a model is bound by it, many rows are not, so
that ratios of two runs can only agree where this did.

Enters: threads. Leaves: gigabytes a second that numpy reads on as many, at each question.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from statistics import quantiles
from time import perf_counter

import numpy as np

BYTES = 1 << 27
"""Read at once: more than what a core keeps to itself."""


class Probe:
    """`ask` reads memory once."""

    def __init__(self, threads: int) -> None:
        self._parts = np.array_split(np.ones(BYTES // 8, np.uint64), threads)
        self._pool = ThreadPoolExecutor(threads)
        self.rates: list[float] = []

    def ask(self) -> None:
        begun = perf_counter()
        list(self._pool.map(np.add.reduce, self._parts))
        self.rates.append(BYTES / (perf_counter() - begun) / 1e9)

    def told(self) -> dict[str, float] | None:
        """GB/s: the median and the quartiles; None where it was asked less than twice."""
        if len(self.rates) < 2:
            return None
        low, median, high = quantiles(self.rates, n=4, method="inclusive")
        return {"median": median, "low": low, "high": high}

    def close(self) -> None:
        self._pool.shutdown()
