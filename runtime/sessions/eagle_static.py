"""An EAGLE drafter through static graphs, as NPUs need.

Enters: a bundle whose drafter has portable "prefill", "catchup" and "expand" graphs (models/eagle_graph.py). Leaves:
the same `Rows` as the any-width session, without logits. The new K/V rows come out of the graph and are copied behind
the committed ones, where the mask shows each later row its ancestors. The cache moves to the next bucket between
drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spec_edge.models.contract import GraphSpec, SpecError
from spec_edge.runtime.bundle import Bundle
from spec_edge.runtime.cache import PortableCache
from spec_edge.runtime.eagle_rows import F32, Level, Scratch
from spec_edge.runtime.providers.provider import Opened, Opener
from spec_edge.runtime.sessions.eagle_facts import AGAIN, METHOD, drafted_ids, drafter_fact
from spec_edge.runtime.sessions.fused import BLOCKED, Arrays
from spec_edge.runtime.sessions.rows import rotary

ROLES = ("prefill", "catchup", "expand")


@dataclass(frozen=True)
class _Run:
    """A graph bound to its buffers. new: [2L, KVH, S, D], the K/V rows that come out."""

    call: Callable[[], None]
    inputs: Arrays
    outputs: Arrays
    new: NDArray[Any]


class StaticEagleSession:
    """The `Rows` of eagle_rows.py over fixed shapes."""

    def __init__(self, bundle: Bundle, opener: Opener) -> None:
        fact, shape = drafter_fact(bundle)
        self._graphs = {
            role: [g for g in bundle.graphs(METHOD, role) if g.lowering == "portable" and g.past and g.width]
            for role in ROLES
        }
        sizes = [{g.past for g in graphs} for graphs in self._graphs.values()]
        if not all(sizes) or any(found != sizes[0] for found in sizes):
            raise SpecError(f"this bundle's EAGLE drafter has no complete set of static graphs; {AGAIN}")
        self._opener: Opener | None = opener
        self._shape = shape
        self.reads = fact.reads
        self.vocabulary = drafted_ids(bundle, fact)
        self._buckets = sorted({g.past or 0 for g in self._graphs["expand"]})
        self.capacity = min(bundle.manifest.model.context, self._buckets[-1])
        self._tokens = bundle.manifest.model.vocab_size
        first = self._graphs["expand"][0]
        dtype = next(t.dtype for t in first.inputs if t.name == "past_key.0")
        self._cache = PortableCache(shape, self._buckets[0], dtype)
        self._scratch = Scratch()
        self._opened: dict[str, Opened] = {}
        self._runs: dict[str, _Run] = {}

    @property
    def length(self) -> int:
        return self._cache.length

    @property
    def room(self) -> int:
        return self._cache.slots - self.length - len(self._scratch)

    def extend(self, ids: Sequence[int], features: F32) -> Level:
        if self.length + len(ids) > self.capacity:
            raise SpecError(f"{self.length + len(ids)} rows do not fit into the drafter's {self.capacity}")
        self._scratch.clear()
        self._reserve(self.length + len(ids))
        start = 0
        while start < len(ids):
            left = len(ids) - start
            short = self._graph("catchup", left)
            graph = short if (short.width or 0) >= left else self._graph("prefill", left)
            size = min(graph.width or 0, left)
            part = slice(start, start + size)
            mask = np.tri(size, dtype=bool)
            pad = (graph.width or 0) - size
            level, new = self._run(graph, ids[part], features[part], np.arange(size), mask, pad)
            self._cache.stage(new)
            self._cache.commit(range(size))
            start += size
        return level

    def expand(self, ids: Sequence[int], hidden: F32, parents: Sequence[int]) -> Level:
        """In as many runs as the widest graph makes necessary."""
        levels = []
        start = 0
        while start < len(ids):
            graph = self._graph("expand", len(ids) - start)
            part = slice(start, start + (graph.width or 0))
            levels.append(self._drafted(graph, ids[part], hidden[part], parents[part]))
            start += graph.width or 0
        tops, scores, fed = (np.concatenate([getattr(x, n) for x in levels]) for n in ("ids", "logprobs", "hidden"))
        return Level(tops, scores, fed, None)

    def truncate(self, length: int) -> None:
        self._scratch.clear()
        self._cache.truncate(length)

    def close(self) -> None:
        self._runs.clear()
        for opened in self._opened.values():
            opened.close()
        self._opened.clear()
        self._opener = None

    def _drafted(self, graph: GraphSpec, ids: Sequence[int], hidden: F32, parents: Sequence[int]) -> Level:
        if len(ids) > self.room:
            raise SpecError(f"{len(ids)} drafted rows do not fit into the {self.room} that are left")
        at = self.length + len(self._scratch)
        depths, mask = self._scratch.add(parents)
        level, new = self._run(graph, ids, hidden, depths, mask, 0)
        self._cache.past[:, :, at : at + len(ids)] = new
        size = len(ids)
        return Level(level.ids[:size], level.logprobs[:size], level.hidden[:size], None)

    def _reserve(self, rows: int) -> None:
        """A bucket for these rows and the drafted ones behind them, or the largest."""
        wanted = rows + self._shape.scratch
        bucket = next((p for p in self._buckets if p >= wanted), self._buckets[-1])
        if bucket > self._cache.slots:
            self._cache.grow(bucket)
            self._runs.clear()

    def _graph(self, role: str, rows: int) -> GraphSpec:
        """The narrowest graph of this bucket for `rows`, or the widest."""
        here = [g for g in self._graphs[role] if g.past == self._cache.slots]
        return next((g for g in here if (g.width or 0) >= rows), here[-1])

    def _run(
        self,
        graph: GraphSpec,
        ids: Sequence[int],
        features: F32,
        depths: NDArray[np.int64],
        mask: NDArray[np.bool_],
        pad: int,
    ) -> tuple[Level, NDArray[Any]]:
        """Rows pad .. pad + len(ids) - 1 are real. mask [rows, drafted before + rows]. The level, and their new K/V."""
        if min(ids) < 0 or max(ids) >= self._tokens:
            raise SpecError(f"token ids must be within 0..{self._tokens - 1}")
        run, size = self._bound(graph), len(ids)
        real, kept = slice(pad, pad + size), mask.shape[1] - size
        run.inputs["input_ids"][0, real], run.inputs["features"][0, real] = ids, features
        run.inputs["cos"][0, 0, real], run.inputs["sin"][0, 0, real] = rotary(self._shape.rope, self.length + depths)
        past, new = run.inputs["bias_past"][0, 0], run.inputs["bias_new"][0, 0]
        past[...], new[...] = BLOCKED, BLOCKED
        np.fill_diagonal(new, 0)
        past[:, : self.length] = 0
        past[real, self.length : self.length + kept] = np.where(mask[:, :kept], 0, BLOCKED)
        new[real, real] = np.where(mask[:, kept:], 0, BLOCKED)
        run.call()
        out = run.outputs
        logprobs, hidden = (out[name][0].astype(np.float32) for name in ("top_logprobs", "hidden"))
        return Level(out["top_ids"][0].copy(), logprobs, hidden, None), run.new[:, :, real]

    def _bound(self, graph: GraphSpec) -> _Run:
        if graph.name not in self._runs:
            if self._opener is None:
                raise SpecError("this session is closed")
            if graph.name not in self._opened:
                self._opened[graph.name] = self._opener(graph)
            self._runs[graph.name] = self._bind(graph, self._opened[graph.name])
        return self._runs[graph.name]

    def _bind(self, graph: GraphSpec, opened: Opened) -> _Run:
        past = self._cache.past
        new = np.zeros((*past.shape[:2], graph.width or 0, past.shape[3]), past.dtype)
        slots = [f"{kind}.{i}" for i in range(self._shape.layers) for kind in ("key", "value")]
        parts = {f"past_{name}": past[i][None] for i, name in enumerate(slots)}
        parts |= {f"new_{name}": new[i][None] for i, name in enumerate(slots)}
        sides = []
        for tensors in (graph.inputs, graph.outputs):
            fresh = {t.name: np.zeros([int(d) for d in t.shape], t.dtype) for t in tensors if t.name not in parts}
            sides.append(fresh | {t.name: parts[t.name] for t in tensors if t.name in parts})
        return _Run(opened.bind(*sides), sides[0], sides[1], new)
