"""A toy target in numpy: the whole loop runs on it in milliseconds, with no ONNX Runtime.

Enters: a seed and sizes. Leaves: a `Session` over a small random attention network whose K/V cache really
matters: a wrong, missing or misplaced row changes later logits. Each row is computed on its own, in the order of
its own path, so any width and any tree give bit-equal rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from spec_edge.models.contract import SpecError
from spec_edge.runtime.draft import EMPTY, Draft, Output

Doubles = NDArray[np.float64]


class ToySession:
    """Two attention layers of width 8. `grain` rounds logits to its multiples, so that ties occur."""

    def __init__(
        self, vocab_size: int = 16, capacity: int = 64, max_width: int = 8, seed: int = 0, grain: float = 0.0
    ) -> None:
        rng = np.random.default_rng(seed)
        self.vocab_size = vocab_size
        self.capacity = capacity
        self.max_width = max_width
        self.length = 0
        self.wants: frozenset[str] = frozenset()
        self._grain = grain
        self._embed = rng.normal(size=(vocab_size, DIM))
        self._position = rng.normal(size=(capacity, DIM))
        self._mix = rng.normal(size=(LAYERS, 4, DIM, DIM)) / DIM**0.5
        self._head = rng.normal(size=(DIM, vocab_size))
        self._cache: Doubles = np.zeros((LAYERS, 2, capacity, DIM))
        self._new: Doubles | None = None

    @property
    def cache(self) -> Doubles:
        """float64 [layers, 2, length, 8]: the committed keys and values."""
        return self._cache[:, :, : self.length]

    def prefill(self, ids: Sequence[int]) -> Output:
        """Run and commit `ids`, token by token. Features are given whether wanted or not; `taps` is `hidden` twice."""
        if not ids or self.length + len(ids) > self.capacity:
            raise SpecError(f"toy: {len(ids)} more tokens do not fit after {self.length} of {self.capacity}")
        outputs = []
        for token in ids:
            outputs.append(self._run([token], EMPTY))
            self.commit([0])
        hidden = np.concatenate([output.hidden for output in outputs if output.hidden is not None])
        return Output(outputs[-1].logits, hidden, np.concatenate([hidden, hidden], axis=1))

    def verify(self, pending: int, draft: Draft) -> Output:
        """Logits of the pending token's row and of every drafted one."""
        rows = len(draft) + 1
        if rows > self.max_width or self.length + rows > self.capacity:
            raise SpecError(f"toy: {rows} rows do not fit ({self.max_width} wide, {self.length} of {self.capacity})")
        return self._run([pending, *draft.tokens], draft)

    def commit(self, rows: Sequence[int]) -> None:
        """Copy these rows of the last run to the end of the cache."""
        if self._new is None or not rows or rows[0] != 0 or max(rows) >= self._new.shape[2]:
            raise SpecError(f"toy: rows {tuple(rows)} were not in the last run")
        end = self.length + len(rows)
        self._cache[:, :, self.length : end] = self._new[:, :, list(rows)]
        self.length, self._new = end, None

    def truncate(self, length: int) -> None:
        """Forget the rows from `length` on."""
        if not 0 <= length <= self.length:
            raise SpecError(f"toy: cannot truncate {self.length} rows to {length}")
        self.length, self._new = length, None

    def close(self) -> None:
        """Nothing to release."""

    def _run(self, tokens: list[int], draft: Draft) -> Output:
        if not all(0 <= t < self.vocab_size for t in tokens):
            raise SpecError(f"toy: a token of {tokens} is outside the vocabulary of {self.vocab_size}")
        new = np.zeros((LAYERS, 2, len(tokens), DIM))
        hidden = np.empty((len(tokens), DIM))
        for row, token in enumerate(tokens):
            x = self._embed[token] + self._position[self.length + draft.depths[row]]
            hidden[row] = self._row(x, new, row, np.flatnonzero(draft.mask[row]))
        self._new = new
        logits = np.stack([h @ self._head for h in hidden])
        if self._grain:
            logits = np.round(logits / self._grain) * self._grain
        features = hidden.astype(np.float32)
        return Output(logits.astype(np.float32), features, np.concatenate([features, features], axis=1))

    def _row(self, x: Doubles, new: Doubles, row: int, seen: NDArray[np.intp]) -> Doubles:
        """One row through the layers; writes its keys and values into `new`."""
        for layer, (wq, wk, wv, wo) in enumerate(self._mix):
            new[layer, 0, row], new[layer, 1, row] = x @ wk, x @ wv
            keys, values = np.concatenate([self._cache[layer, :, : self.length], new[layer][:, seen]], axis=1)
            score = np.exp(keys @ (x @ wq) / DIM**0.5)
            x = np.tanh(x + (score / score.sum()) @ values @ wo)
        return x


LAYERS, DIM = 2, 8
