"""An EAGLE drafter, any width: what ONNX Runtime's CPU provider runs.

Enters: a bundle whose drafter has a "step" graph and, if it reads taps, a "fuse" graph (models/eagle_graph.py). Leaves:
the `Rows` of eagle_rows.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from spec_edge.models.contract import GraphSpec, SpecError
from spec_edge.runtime.bundle import Bundle
from spec_edge.runtime.eagle_model import EagleModel
from spec_edge.runtime.eagle_rows import F32, Level, Rows, Scratch
from spec_edge.runtime.providers.provider import Opened, Opener, Provider
from spec_edge.runtime.sessions.any_width import CHUNK
from spec_edge.runtime.sessions.chain import Chain
from spec_edge.runtime.sessions.eagle_facts import AGAIN, METHOD, drafted_ids, drafter_fact, size_of
from spec_edge.runtime.sessions.eagle_failover import FailoverRows
from spec_edge.runtime.sessions.eagle_static import StaticEagleSession
from spec_edge.runtime.sessions.fused import Arrays, FusedGraph


class EagleSession:
    """The `Rows` of eagle_rows.py."""

    def __init__(self, bundle: Bundle, opener: Opener) -> None:
        fact, shape = drafter_fact(bundle)
        steps = [g for g in bundle.graphs(METHOD, "step") if g.lowering == "fused"]
        fuses = bundle.graphs(METHOD, "fuse")
        if not steps or (fact.reads == "taps" and not fuses):
            raise SpecError(f"this bundle's EAGLE drafter has no any-width graph; {AGAIN}, for the target 'cpu'")
        self.reads = fact.reads
        self.vocabulary = drafted_ids(bundle, fact)
        self.capacity = bundle.manifest.model.context
        self._tokens, self._slots = bundle.manifest.model.vocab_size, self.capacity + shape.scratch
        self._spec = steps[0]
        if self.vocabulary is not None and len(self.vocabulary) != size_of(self._spec, "logits"):
            raise SpecError(f"this bundle's EAGLE drafter has a vocabulary of another size; {AGAIN}")
        self._graph = FusedGraph(opener(steps[0]), shape, self._slots, CHUNK)
        self._fuse = _Fuse(opener(fuses[0]), fuses[0]) if fact.reads == "taps" else None
        self._scratch = Scratch()
        self._depths, self._causal = np.arange(CHUNK), np.tri(CHUNK, dtype=bool)

    @property
    def length(self) -> int:
        return self._graph.cache.length

    @property
    def room(self) -> int:
        return self._slots - self.length - len(self._scratch)

    def extend(self, ids: Sequence[int], features: F32) -> Level:
        if self.length + len(ids) > self.capacity:
            raise SpecError(f"{self.length + len(ids)} rows do not fit into the drafter's {self.capacity}")
        self._scratch.clear()
        self._graph.reserve(len(ids), spare=CHUNK)
        for start in range(0, len(ids), CHUNK):
            chunk = ids[start : start + CHUNK]
            size = len(chunk)
            rows = np.array([size - 1], np.int32)
            read = features[start : start + size]
            fused = read if self._fuse is None else self._fuse.run(read)
            level = self._run(chunk, fused, self._depths[:size], self._causal[:size, :size], rows)
            self._graph.cache.commit(range(size))
        return level

    def expand(self, ids: Sequence[int], hidden: F32, parents: Sequence[int]) -> Level:
        kept = len(self._scratch)
        self._graph.reserve(kept + len(ids), kept=kept)
        depths, mask = self._scratch.add(parents)
        return self._run(ids, hidden, depths, mask, np.arange(len(ids), dtype=np.int32))

    def truncate(self, length: int) -> None:
        self._scratch.clear()
        self._graph.cache.truncate(length)

    def close(self) -> None:
        self._graph.close()
        if self._fuse is not None:
            self._fuse.close()

    def _run(
        self,
        ids: Sequence[int],
        features: F32,
        depths: NDArray[np.int64],
        mask: NDArray[np.bool_],
        rows: NDArray[np.int32],
    ) -> Level:
        if min(ids) < 0 or max(ids) >= self._tokens:
            raise SpecError(f"token ids must be within 0..{self._tokens - 1}")
        size, asked = len(ids), len(rows)
        run = self._graph.bound((size, asked), size, lambda: self._arrays(size, rows))
        run.inputs["input_ids"][0], run.inputs["features"][0] = ids, features
        np.add(depths, self.length, out=run.inputs["position_ids"][0])
        self._graph.run(run, mask, mask.shape[1] - size)
        out = run.outputs
        return Level(out["top_ids"][0].copy(), out["top_logprobs"][0].copy(), out["hidden"][0].copy(), out["logits"][0])

    def _arrays(self, size: int, rows: NDArray[np.int32]) -> tuple[Arrays, Arrays]:
        spec, asked = self._spec, len(rows)
        hidden, top = size_of(spec, "hidden"), size_of(spec, "top_ids")
        inputs: Arrays = {
            "input_ids": np.zeros((1, size), np.int32),
            "features": np.zeros((1, size, hidden), np.float32),
            "rows": rows,
        }
        outputs: Arrays = {
            "top_ids": np.zeros((1, asked, top), np.int32),
            "top_logprobs": np.zeros((1, asked, top), np.float32),
            "logits": np.zeros((1, asked, size_of(spec, "logits")), np.float32),
            "hidden": np.zeros((1, asked, hidden), np.float32),
        }
        return inputs, outputs


class _Fuse:
    """Taps of up to CHUNK rows -> the drafter's features."""

    def __init__(self, opened: Opened, graph: GraphSpec) -> None:
        self._opened = opened
        self._taps, self._features = (
            np.zeros((CHUNK, int(tensor.shape[-1])), np.float32)
            for tensors, name in ((graph.inputs, "taps"), (graph.outputs, "features"))
            for tensor in tensors
            if tensor.name == name
        )
        self._calls: dict[int, Callable[[], None]] = {}

    def run(self, taps: F32) -> F32:
        """A view that is valid until the next run."""
        size = len(taps)
        if size not in self._calls:
            sides = ({"taps": self._taps[None, :size]}, {"features": self._features[None, :size]})
            self._calls[size] = self._opened.bind(*sides)
        self._taps[:size] = taps
        self._calls[size]()
        return self._features[:size]

    def close(self) -> None:
        self._calls.clear()
        self._opened.close()


def open_network(bundle: Bundle, on: Provider, opener: Opener) -> EagleModel:
    """What choose.py calls: the drafter on its session, which remembers the last text."""
    wide = on.fused and any(g.lowering == "fused" for g in bundle.graphs(METHOD, "step"))
    rows: Rows = EagleSession(bundle, opener) if wide else StaticEagleSession(bundle, opener)
    return EagleModel(rows, bundle.manifest.text.tokens)


def failover(bundle: Bundle, chain: Chain[EagleModel]) -> EagleModel:
    """What choose.py calls for several providers."""
    return EagleModel(FailoverRows(chain), bundle.manifest.text.tokens)
