"""What sessions over one symbolic graph share: sizes, prefill in chunks, verify of any width.

Enters: token ids and drafts. Leaves: runs of rows at positions under a mask, which a subclass makes over its own cache.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from spec_edge.models.contract import GraphSpec, ModelFacts, SpecError
from spec_edge.runtime.bundle import Bundle
from spec_edge.runtime.cache import Committed
from spec_edge.runtime.draft import Draft, Output
from spec_edge.runtime.sessions.features import features, joined

WIDEST = 64
"""Rows of the widest verify run; wider drafts have not paid anywhere."""

CHUNK = 256
"""Rows of a prefill run: larger ones are no faster here and need more scratch memory."""


def step_graph(bundle: Bundle, lowering: str, missing: str) -> GraphSpec:
    """The target's any-width graph of a lowering. SpecError `missing` where the bundle has none."""
    for graph in bundle.graphs("target", "step"):
        if graph.lowering == lowering:
            return graph
    raise SpecError(missing)


class AnyWidthSession(ABC):
    """The `Session` of protocols.py, but for how rows are run."""

    def __init__(self, model: ModelFacts) -> None:
        self.wants: frozenset[str] = frozenset()
        self._model = model

    @property
    def vocab_size(self) -> int:
        return self._model.vocab_size

    @property
    def capacity(self) -> int:
        return self._model.context

    @property
    def max_width(self) -> int:
        return min(WIDEST, self.capacity)

    @property
    def length(self) -> int:
        return self._cache.length

    def prefill(self, ids: Sequence[int]) -> Output:
        """Run and commit `ids` in chunks; logits [1, V] of the last one, features of all that are wanted."""
        if not ids:
            raise SpecError("there is nothing to prefill")
        self._reserve(len(ids), spare=self.max_width)
        parts = []
        for start in range(0, len(ids), CHUNK):
            chunk = ids[start : start + CHUNK]
            size = len(chunk)
            output = self._rows(chunk, np.arange(size), np.tri(size, dtype=bool), np.array([size - 1], np.int32))
            self._cache.commit(range(size))
            parts.append({name: part.copy() for name, part in features(output).items()})
        return Output(output.logits, **joined(parts))

    def verify(self, pending: int, draft: Draft) -> Output:
        """Run the pending token and the draft; logits [len(draft) + 1, V]. Commits nothing."""
        size = len(draft) + 1
        if size > self.max_width:
            raise SpecError(f"a draft of {len(draft)} tokens is wider than {self.max_width} rows")
        self._reserve(size)
        return self._rows((pending, *draft.tokens), draft.depths, draft.mask, np.arange(size, dtype=np.int32))

    def commit(self, rows: Sequence[int]) -> None:
        self._cache.commit(rows)

    def truncate(self, length: int) -> None:
        self._cache.truncate(length)

    def _slots_for(self, rows: int, spare: int, slots: int) -> int:
        """Slots of a cache of `slots` once it has room for `rows` more: it doubles, with `spare` more where it must
        grow. SpecError: they do not fit into the context."""
        need = self.length + rows
        if need > self.capacity:
            raise SpecError(f"{need} tokens do not fit into the context of {self.capacity}")
        if need <= slots:
            return slots
        while slots < need + spare:
            slots *= 2
        return min(slots, self.capacity)

    def _rows(
        self, ids: Sequence[int], depths: NDArray[np.int64], mask: NDArray[np.bool_], rows: NDArray[np.int32]
    ) -> Output:
        if min(ids) < 0 or max(ids) >= self.vocab_size:
            raise SpecError(f"token ids must be within 0..{self.vocab_size - 1}")
        return self._run(ids, depths, mask, rows)

    @property
    @abstractmethod
    def _cache(self) -> Committed: ...

    @abstractmethod
    def _reserve(self, rows: int, spare: int = 0) -> None:
        """Room for `rows` behind the committed ones, and for `spare` more where it must grow. SpecError: too many."""

    @abstractmethod
    def _run(
        self, ids: Sequence[int], depths: NDArray[np.int64], mask: NDArray[np.bool_], rows: NDArray[np.int32]
    ) -> Output:
        """Run ids [S] at depths [S] under mask [S, S]; logits of `rows` [R], which is all rows or the last one."""

    @abstractmethod
    def close(self) -> None: ...
