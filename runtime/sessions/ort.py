"""The target, any width, through the fused graph: what ONNX Runtime's CPU provider runs.

Enters: a bundle with one "step" graph whose past is its present buffer. Leaves: logits of the rows that are needed.
One session; how it runs is in fused.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spec_edge.models.contract import SpecError
from spec_edge.runtime.bundle import Bundle
from spec_edge.runtime.draft import Draft, Output
from spec_edge.runtime.providers.provider import Opener
from spec_edge.runtime.sessions.features import features, joined, widths
from spec_edge.runtime.sessions.fused import Arrays, FusedGraph

WIDEST = 64
"""Rows of the widest verify run; wider drafts have not paid anywhere."""

CHUNK = 256
"""Rows of a prefill run: larger ones are no faster here and need more scratch memory."""


class OrtSession:
    """The `Session` of protocols.py."""

    def __init__(self, bundle: Bundle, opener: Opener) -> None:
        graphs = [g for g in bundle.graphs("target", "step") if g.lowering == "fused"]
        if not graphs:
            raise SpecError("this bundle has no any-width graph for ONNX Runtime; export it again for the target 'cpu'")
        self.wants: frozenset[str] = frozenset()
        self._model = bundle.manifest.model
        opened = opener(graphs[0])
        self.assignment = opened.placement
        self._graph = FusedGraph(opened, self._model, self.capacity, max(CHUNK, self.max_width))
        self._logits = np.empty((self.max_width, self.vocab_size), np.float32)

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
        return self._graph.cache.length

    def prefill(self, ids: Sequence[int]) -> Output:
        """Run and commit `ids` in chunks; logits [1, V] of the last one, features of all that are wanted."""
        if not ids:
            raise SpecError("there is nothing to prefill")
        self._graph.reserve(len(ids), spare=self.max_width)
        parts = []
        for start in range(0, len(ids), CHUNK):
            chunk = ids[start : start + CHUNK]
            size = len(chunk)
            output = self._run(chunk, np.arange(size), np.tri(size, dtype=bool), np.array([size - 1], np.int32))
            self._graph.cache.commit(range(size))
            parts.append({name: part.copy() for name, part in features(output).items()})
        return Output(output.logits, **joined(parts))

    def verify(self, pending: int, draft: Draft) -> Output:
        """Run the pending token and the draft; logits [len(draft) + 1, V]. Commits nothing."""
        size = len(draft) + 1
        if size > self.max_width:
            raise SpecError(f"a draft of {len(draft)} tokens is wider than {self.max_width} rows")
        self._graph.reserve(size)
        return self._run((pending, *draft.tokens), draft.depths, draft.mask, np.arange(size, dtype=np.int32))

    def commit(self, rows: Sequence[int]) -> None:
        self._graph.cache.commit(rows)

    def truncate(self, length: int) -> None:
        self._graph.cache.truncate(length)

    def close(self) -> None:
        self._graph.close()

    def _run(
        self, ids: Sequence[int], depths: NDArray[np.int64], mask: NDArray[np.bool_], rows: NDArray[np.int32]
    ) -> Output:
        if min(ids) < 0 or max(ids) >= self.vocab_size:
            raise SpecError(f"token ids must be within 0..{self.vocab_size - 1}")
        size = len(ids)
        run = self._graph.bound((size, len(rows), self.wants), size, lambda: self._arrays(size, rows))
        run.inputs["input_ids"][0] = ids
        np.add(depths, self.length, out=run.inputs["position_ids"][0])
        self._graph.run(run, mask)
        wanted: dict[str, Any] = {name: run.outputs[name][0] for name in self.wants if name in run.outputs}
        return Output(run.outputs["logits"][0], **wanted)

    def _arrays(self, size: int, rows: NDArray[np.int32]) -> tuple[Arrays, Arrays]:
        """The rows are a function of the shape: all of them, or the last."""
        outputs: Arrays = {"logits": self._logits[None, : len(rows)]}
        wanted = (item for item in widths(self._model).items() if item[0] in self.wants)
        outputs |= {name: np.zeros((1, size, width), np.float32) for name, width in wanted}
        return {"input_ids": np.zeros((1, size), np.int32), "rows": rows}, outputs
