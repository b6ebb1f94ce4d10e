"""The target, any width, through the fused graph: what ONNX Runtime's CPU provider runs.

Enters: a bundle with one "step" graph whose past is its present buffer. Leaves: logits of the rows that are needed.
One session; how it runs is in fused.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spec_edge.runtime.bundle import Bundle
from spec_edge.runtime.cache import Cache
from spec_edge.runtime.draft import Output
from spec_edge.runtime.providers.provider import Opener
from spec_edge.runtime.sessions.any_width import CHUNK, AnyWidthSession, step_graph
from spec_edge.runtime.sessions.features import widths
from spec_edge.runtime.sessions.fused import Arrays, FusedGraph

MISSING = "this bundle has no any-width graph for ONNX Runtime; export it again for the target 'cpu'"


class OrtSession(AnyWidthSession):
    """The `Session` of protocols.py."""

    def __init__(self, bundle: Bundle, opener: Opener) -> None:
        super().__init__(bundle.manifest.model)
        opened = opener(step_graph(bundle, "fused", MISSING))
        self.assignment = opened.placement
        self._graph = FusedGraph(opened, self._model, self.capacity, max(CHUNK, self.max_width))
        self._logits = np.empty((self.max_width, self.vocab_size), np.float32)

    @property
    def _cache(self) -> Cache:
        return self._graph.cache

    def close(self) -> None:
        self._graph.close()

    def _reserve(self, rows: int, spare: int = 0) -> None:
        self._graph.reserve(rows, spare)

    def _run(
        self, ids: Sequence[int], depths: NDArray[np.int64], mask: NDArray[np.bool_], rows: NDArray[np.int32]
    ) -> Output:
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
