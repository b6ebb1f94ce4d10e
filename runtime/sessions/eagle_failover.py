"""An EAGLE drafter that goes on drafting where a provider fails.

Enters: a chain of EAGLE drafters. Leaves: the `Rows` of eagle_rows.py over them. Ids and features of every committed
row are kept, 4 bytes a number, so that what is opened next can read them again and draft the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from spec_edge.runtime.eagle_model import EagleModel
from spec_edge.runtime.eagle_rows import F32, Level, Rows
from spec_edge.runtime.sessions.chain import Chain

R = TypeVar("R")
Drafted = tuple[list[int], F32, list[int]]


class FailoverRows:
    """The `Rows` of eagle_rows.py."""

    def __init__(self, chain: Chain[EagleModel]) -> None:
        self.chain = chain
        self._ids: list[int] = []
        self._features: list[F32] = []
        self._drafted: list[Drafted] = []

    @property
    def length(self) -> int:
        return len(self._ids)

    @property
    def capacity(self) -> int:
        """Of what runs now: a text that outgrows it is drafted for no more."""
        return self.chain.now.rows.capacity

    @property
    def room(self) -> int:
        return self.chain.now.rows.room

    @property
    def reads(self) -> str:
        return self.chain.now.rows.reads

    @property
    def vocabulary(self) -> NDArray[np.int64] | None:
        return self.chain.now.rows.vocabulary

    def extend(self, ids: Sequence[int], features: F32) -> Level:
        self._drafted.clear()
        level = self._run(lambda rows: rows.extend(ids, features))
        self._ids += ids
        self._features += list(features.copy())
        return level

    def expand(self, ids: Sequence[int], hidden: F32, parents: Sequence[int]) -> Level:
        level = self._run(lambda rows: rows.expand(ids, hidden, parents))
        self._drafted.append((list(ids), hidden.copy(), list(parents)))
        return level

    def truncate(self, length: int) -> None:
        self._drafted.clear()
        self._run(lambda rows: rows.truncate(length))
        del self._ids[length:], self._features[length:]
        if not length:
            self.chain.rearm()

    def close(self) -> None:
        self.chain.close()

    def _run(self, call: Callable[[Rows], R]) -> R:
        return self.chain.run(self.length, lambda model: call(self._synced(model)), self._restore)

    def _synced(self, model: EagleModel) -> Rows:
        """With all rows, also where an interruption has ended the last step down a chain."""
        if model.rows.length != self.length:
            model.rows.truncate(0)
            self._restore(model)
        return model.rows

    def _restore(self, model: EagleModel) -> None:
        if self._ids:
            model.rows.extend(self._ids, np.stack(self._features))
        for drafted in self._drafted:
            model.rows.expand(*drafted)
