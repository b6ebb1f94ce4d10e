"""An EAGLE drafter that keeps up with the text.

Enters: the target's features of each committed row, as they become known, and the text. Leaves: what the drafter says
after the text, and after tokens that it drafts. True features wait until the next draft is wanted; then one run reads
all of them (the catch-up), which replaces the drafted rows.

Row t needs the token after it, so of n tokens whose last one is pending n - 1 rows are committed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from spec_edge.runtime.costs import run_seconds
from spec_edge.runtime.draft import ROOT
from spec_edge.runtime.eagle_rows import F32, Level, Rows


class EagleModel:
    """Rows and the text that they are of. It outlives a generation: the next one keeps the common prefix.

    tokens  number of the target's real token ids; nothing past them is drafted
    """

    def __init__(self, rows: Rows, tokens: int) -> None:
        self.rows, self.tokens = rows, tokens
        self._ids: list[int] = []
        self._base = 0  # text row of the cache's first one: rotary positions are relative, so it may begin anywhere
        self._waiting: list[F32] = []
        self._level: Level | None = None
        self._known = None if rows.vocabulary is None else _within(rows.vocabulary, tokens)

    def begin(self, prompt: Sequence[int], features: F32 | None) -> None:
        """A new text, and the features of its last rows: all of them, or those past what an earlier text shares.

        Where rows are missing in between, the drafter's own text begins with the first feature.
        """
        first = len(prompt) - (0 if features is None else len(features))
        told = [] if features is None else [features]
        common = _common(self._ids, prompt)
        held = self._base + self.rows.length
        sure, waiting = min(held, common - 1), _joined(self._waiting)
        if sure <= self._base or first > min(held + len(waiting), common) or (first > sure and sure < held):
            self.rows.truncate(0)
            self._base, self._waiting = first, told
        elif first <= sure:
            self.rows.truncate(sure - self._base)
            self._waiting = [part[sure - first :] for part in told]
        else:
            self._waiting = [waiting[: first - held], *told]
        self._ids, self._level = list(prompt), None
        self._catch_up()

    def observe(self, features: F32, tokens: Sequence[int]) -> None:
        """The features of the rows that a step has committed, and the tokens that it gave."""
        known = self._base + self.rows.length + sum(map(len, self._waiting))
        self._waiting.append(features)
        if known == len(self._ids) - 1:  # else the first token of the text has not been seen yet
            self._ids.extend(tokens)

    def follow(self, ids: Sequence[int]) -> Level | None:
        """What the drafter says after `ids`, which go on from the last text. None where it has not been told enough
        of it, or it is longer than the drafter's context."""
        if len(ids) - 1 - self._base > self.rows.capacity:
            return None
        self._ids = list(ids)
        self._catch_up()
        caught_up = self._base + self.rows.length == len(ids) - 1
        self.rows.truncate(self.rows.length)
        return self._level if caught_up else None

    def logits(self, level: Level, row: int) -> F32 | None:
        """float32 [tokens] after a row of a level that no run has followed; -inf where an id is never drafted."""
        if level.logits is None:
            return None
        if self._known is None:
            plain: F32 = level.logits[row, : self.tokens]
            return plain
        drafted, ids = self._known
        full = np.full(self.tokens, -np.inf, level.logits.dtype)
        full[ids] = level.logits[row, drafted]
        return full

    def step_seconds(self, width: int, clock: Callable[[], float] = perf_counter) -> float:
        """Median time of a run of one drafted row; width: H. Its text is forgotten."""
        features = np.zeros((1, width), np.float32)
        self._ids, self._base, self._waiting, self._level = [], 0, [], None
        try:
            return run_seconds(lambda: self.rows.expand([0], features, [ROOT]), lambda: self.rows.truncate(0), clock)
        finally:
            self.rows.truncate(0)

    def close(self) -> None:
        self.rows.close()

    def _catch_up(self) -> None:
        """Commit every waiting row whose next token is known."""
        held = self._base + self.rows.length
        waiting = _joined(self._waiting)
        count = min(len(waiting), len(self._ids) - 1 - held)
        if count < 1 or held + count - self._base > self.rows.capacity:
            return
        level = self.rows.extend(self._ids[held + 1 : held + 1 + count], waiting[:count])
        # The next run rewrites the buffer, and this level may be asked for again.
        self._level = replace(level, logits=None if level.logits is None else level.logits.copy())
        self._waiting = [waiting[count:]] if count < len(waiting) else []


def _within(ids: NDArray[np.int64], tokens: int) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
    """Places and ids of those that are real tokens."""
    drafted = np.flatnonzero(ids < tokens)
    return drafted, ids[drafted]


def _joined(parts: Sequence[F32]) -> F32:
    return np.concatenate(parts) if parts else np.empty((0, 0), np.float32)


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common beginning."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
