"""The target through static graphs: one graph per width S and past size P, as NPUs need.

Enters: a bundle with portable "verify" and "prefill" graphs. Leaves: the same as the any-width session. A run takes the
smallest graph that fits and pads it; every pad row sees at least itself, so nothing is ever NaN. The new K/V rows come
out of the graph and accepted ones are copied into the cache, which moves to the next bucket as the text grows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spec_edge.models.contract import GraphSpec, SpecError, TensorSpec
from spec_edge.runtime.bundle import Bundle
from spec_edge.runtime.cache import PortableCache
from spec_edge.runtime.draft import Draft, Output
from spec_edge.runtime.providers.provider import Opened, Opener
from spec_edge.runtime.sessions.features import features, joined, widths
from spec_edge.runtime.sessions.fused import BLOCKED
from spec_edge.runtime.sessions.rows import rotary

Array = NDArray[Any]


@dataclass(frozen=True)
class _Run:
    """A graph bound to its buffers. `seen`: committed columns that bias_past shows now (one number, rewritten)."""

    call: Callable[[], None]
    inputs: dict[str, Array]
    outputs: dict[str, Array]
    new: Array
    seen: NDArray[np.int64]


class StaticSession:
    """The `Session` of protocols.py over fixed shapes."""

    def __init__(self, bundle: Bundle, opener: Opener) -> None:
        self.wants: frozenset[str] = frozenset()
        self._opener: Opener | None = opener
        self._model = bundle.manifest.model
        self._verify, self._prefill = (_by_bucket(bundle, role) for role in ("verify", "prefill"))
        if not self._verify or self._verify.keys() != self._prefill.keys():
            raise SpecError("this bundle has no complete set of static graphs; export it again for an NPU target")
        self._buckets = sorted(self._verify)
        dtype = next(t.dtype for t in self._verify[self._buckets[0]][0].inputs if t.name == "past_key.0")
        self._cache = PortableCache(self._model, self._buckets[0], dtype)
        self._opened: dict[str, Opened] = {}
        self._runs: dict[tuple[str, frozenset[str]], _Run] = {}

    @property
    def vocab_size(self) -> int:
        return self._model.vocab_size

    @property
    def capacity(self) -> int:
        return min(self._model.context, self._buckets[-1])

    @property
    def max_width(self) -> int:
        return min(g[-1].width or 0 for g in self._verify.values())

    @property
    def length(self) -> int:
        return self._cache.length

    @property
    def assignment(self) -> dict[str, int]:
        """Nodes per provider over the graphs opened so far."""
        total: dict[str, int] = {}
        for opened in self._opened.values():
            for name, count in opened.placement.items():
                total[name] = total.get(name, 0) + count
        return total

    def prefill(self, ids: Sequence[int]) -> Output:
        """Run and commit `ids` in chunks; logits [1, V] of the last one, features of all that are wanted."""
        if not ids:
            raise SpecError("there is nothing to prefill")
        start, parts = 0, []
        while start < len(ids):
            graph = self._reserve(len(ids) - start, self._prefill)
            size = min(graph.width or 0, len(ids) - start)
            pad = (graph.width or 0) - size
            output = self._run(graph, ids[start : start + size], np.arange(size), np.tri(size, dtype=bool), pad)
            self._cache.commit(range(size))
            start += size
            parts.append(features(output))
        return Output(output.logits, **joined(parts))

    def verify(self, pending: int, draft: Draft) -> Output:
        """Run the pending token and the draft; logits [len(draft) + 1, V]. Commits nothing."""
        size = len(draft) + 1
        if size > self.max_width:
            raise SpecError(f"a draft of {len(draft)} tokens is wider than {self.max_width} rows")
        graph = self._reserve(size, self._verify)
        output = self._run(graph, (pending, *draft.tokens), draft.depths, draft.mask, 0)
        return replace(output, logits=output.logits[:size])

    def commit(self, rows: Sequence[int]) -> None:
        self._cache.commit(rows)

    def truncate(self, length: int) -> None:
        self._cache.truncate(length)

    def close(self) -> None:
        self._runs.clear()
        for opened in self._opened.values():
            opened.close()
        self._opened.clear()
        self._opener = None

    def _reserve(self, rows: int, graphs: dict[int, list[GraphSpec]]) -> GraphSpec:
        """The smallest graph for `rows` more (the widest for as many as it takes), with room to commit them."""
        need = self.length + rows
        if need > self.capacity:
            raise SpecError(f"{need} tokens do not fit into the context of {self.capacity}")
        bucket = next(p for p in self._buckets if p >= need)
        if bucket > self._cache.slots:
            self._cache.grow(bucket)
            self._runs.clear()
        widths = graphs[self._cache.slots]
        return next((g for g in widths if (g.width or 0) >= rows), widths[-1])

    def _run(self, graph: GraphSpec, ids: Sequence[int], depths: Array, mask: Array, pad: int) -> Output:
        """Real rows are pad .. pad + len(ids) - 1; pads lie before them (prefill) or behind (verify)."""
        if min(ids) < 0 or max(ids) >= self.vocab_size:
            raise SpecError(f"token ids must be within 0..{self.vocab_size - 1}")
        run, size = self._bound(graph), len(ids)
        real = slice(pad, pad + size)
        run.inputs["input_ids"][0, real] = ids
        cos, sin = rotary(self._model.rope, self.length + depths)
        run.inputs["cos"][0, 0, real], run.inputs["sin"][0, 0, real] = cos, sin
        bias = run.inputs["bias_new"][0, 0]
        bias[...] = BLOCKED
        np.fill_diagonal(bias, 0)
        bias[real, real] = np.where(mask, 0, BLOCKED)
        _show_past(run, self.length)
        run.call()
        self._cache.stage(run.new[:, :, real])
        wanted = {
            name: run.outputs[name][0, real].astype(np.float32) for name in widths(self._model) if name in self.wants
        }
        return Output(run.outputs["logits"][0].astype(np.float32, copy=False), **wanted)

    def _bound(self, graph: GraphSpec) -> _Run:
        key = (graph.name, self.wants)
        if key not in self._runs:
            if self._opener is None:
                raise SpecError("this session is closed")
            if graph.name not in self._opened:
                self._opened[graph.name] = self._opener(graph)
            self._runs[key] = self._bind(graph, self._opened[graph.name])
        return self._runs[key]

    def _bind(self, graph: GraphSpec, opened: Opened) -> _Run:
        width, past = graph.width or 0, self._cache.past
        layers = range(self._model.layers)
        slots = [f"{kind}.{i}" for i in layers for kind in ("key", "value")]
        new = np.zeros((*past.shape[:2], width, past.shape[3]), past.dtype)
        parts = {f"past_{name}": past[i][None] for i, name in enumerate(slots)}
        parts |= {f"new_{name}": new[i][None] for i, name in enumerate(slots)}
        inputs = {t.name: parts[t.name] if t.name in parts else _zeros(t) for t in graph.inputs}
        unwanted = widths(self._model).keys() - self.wants
        wanted = [t for t in graph.outputs if t.name not in unwanted]
        outputs = {t.name: parts[t.name] if t.name in parts else _zeros(t) for t in wanted}
        inputs["bias_past"][...] = BLOCKED
        return _Run(opened.bind(inputs, outputs), inputs, outputs, new, np.zeros(1, np.int64))


def _zeros(tensor: TensorSpec) -> Array:
    """A buffer for a static tensor."""
    return np.zeros([int(d) for d in tensor.shape], tensor.dtype)


def _show_past(run: _Run, length: int) -> None:
    """Open or close the columns of bias_past between the last run's length and this one's."""
    seen, bias = int(run.seen[0]), run.inputs["bias_past"]
    bias[..., seen:length] = 0
    bias[..., length:seen] = BLOCKED
    run.seen[0] = length


def _by_bucket(bundle: Bundle, role: str) -> dict[int, list[GraphSpec]]:
    """Static portable graphs of the target by past size, narrow first."""
    found: dict[int, list[GraphSpec]] = {}
    for graph in bundle.graphs("target", role):
        if graph.lowering == "portable" and graph.past and graph.width:
            found.setdefault(graph.past, []).append(graph)
    return found
