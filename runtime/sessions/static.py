"""The target through static graphs: one graph per width S and past size P, as NPUs need.

Enters: a bundle with portable "verify" and "prefill" graphs. Leaves: the same as the any-width session. A run takes the
smallest graph that fits and pads it; every pad row sees at least itself, so nothing is ever NaN. The new K/V rows come
out of the graph and accepted ones are copied into the cache, which moves to the next bucket as the text grows.
A network that is cut into parts is as many graphs, run one after the other over the same arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spec_edge.models.contract import GraphSpec, SpecError, TensorSpec, taps_of
from spec_edge.runtime.bundle import Bundle
from spec_edge.runtime.cache import PortableCache
from spec_edge.runtime.draft import Draft, Output
from spec_edge.runtime.providers.provider import Opened, Opener
from spec_edge.runtime.sessions.features import features, joined, widths
from spec_edge.runtime.sessions.fused import BLOCKED
from spec_edge.runtime.sessions.rows import rotary

Array = NDArray[Any]


Whole = tuple[GraphSpec, ...]
"""The graphs of one width and past: the network's parts in order, most often one."""


@dataclass(frozen=True)
class _Run:
    """Graphs bound to their buffers.

    arrays  by the graphs' names, all parts in one
    taps    [1, S, H] of each tapped layer, in the model's order; (): not wanted
    seen    committed columns that bias_past shows now (one number, rewritten)
    """

    calls: tuple[Callable[[], None], ...]
    arrays: dict[str, Array]
    taps: tuple[Array, ...]
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
        first = self._verify[self._buckets[0]][0][0]
        dtype = next(t.dtype for t in first.inputs if t.name == "past_key.0")
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
        return min(_width(wholes[-1]) for wholes in self._verify.values())

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
            whole = self._reserve(len(ids) - start, self._prefill)
            size = min(_width(whole), len(ids) - start)
            pad = _width(whole) - size
            output = self._run(whole, ids[start : start + size], np.arange(size), np.tri(size, dtype=bool), pad)
            self._cache.commit(range(size))
            start += size
            parts.append(features(output))
        return Output(output.logits, **joined(parts))

    def verify(self, pending: int, draft: Draft) -> Output:
        """Run the pending token and the draft; logits [len(draft) + 1, V]. Commits nothing."""
        size = len(draft) + 1
        if size > self.max_width:
            raise SpecError(f"a draft of {len(draft)} tokens is wider than {self.max_width} rows")
        whole = self._reserve(size, self._verify)
        output = self._run(whole, (pending, *draft.tokens), draft.depths, draft.mask, 0)
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

    def _reserve(self, rows: int, graphs: dict[int, list[Whole]]) -> Whole:
        """The smallest one for `rows` more (the widest for as many as it takes), with room to commit them."""
        need = self.length + rows
        if need > self.capacity:
            raise SpecError(f"{need} tokens do not fit into the context of {self.capacity}")
        bucket = next(p for p in self._buckets if p >= need)
        if bucket > self._cache.slots:
            self._cache.grow(bucket)
            self._runs.clear()
        widths = graphs[self._cache.slots]
        return next((whole for whole in widths if _width(whole) >= rows), widths[-1])

    def _run(self, whole: Whole, ids: Sequence[int], depths: Array, mask: Array, pad: int) -> Output:
        """Real rows are pad .. pad + len(ids) - 1; pads lie before them (prefill) or behind (verify)."""
        if min(ids) < 0 or max(ids) >= self.vocab_size:
            raise SpecError(f"token ids must be within 0..{self.vocab_size - 1}")
        run, size = self._bound(whole), len(ids)
        real = slice(pad, pad + size)
        arrays = run.arrays
        arrays["input_ids"][0, real] = ids
        cos, sin = rotary(self._model.rope, self.length + depths)
        arrays["cos"][0, 0, real], arrays["sin"][0, 0, real] = cos, sin
        bias = arrays["bias_new"][0, 0]
        bias[...] = BLOCKED
        np.fill_diagonal(bias, 0)
        bias[real, real] = np.where(mask, 0, BLOCKED)
        _show_past(run, self.length)
        for call in run.calls:
            call()
        self._cache.stage(run.new[:, :, real])
        given = {name: arrays[name] for name in ("hidden",) if name in self.wants}
        if run.taps:
            given["taps"] = np.concatenate(run.taps, axis=-1)
        wanted = {name: array[0, real].astype(np.float32) for name, array in given.items()}
        return Output(arrays["logits"][0].astype(np.float32, copy=False), **wanted)

    def _bound(self, whole: Whole) -> _Run:
        key = (whole[0].name, self.wants)
        if key not in self._runs:
            self._runs[key] = self._bind(whole)
        return self._runs[key]

    def _graph(self, graph: GraphSpec) -> Opened:
        if self._opener is None:
            raise SpecError("this session is closed")
        if graph.name not in self._opened:
            self._opened[graph.name] = self._opener(graph)
        return self._opened[graph.name]

    def _bind(self, whole: Whole) -> _Run:
        """All graphs over one set of arrays by name, but for taps, of which each part gives its own."""
        past, model = self._cache.past, self._model
        new = np.zeros((*past.shape[:2], _width(whole), past.shape[3]), past.dtype)
        slots = [f"{kind}.{i}" for i in range(model.layers) for kind in ("key", "value")]
        arrays = {f"past_{name}": past[i][None] for i, name in enumerate(slots)}
        arrays |= {f"new_{name}": new[i][None] for i, name in enumerate(slots)}
        unwanted = widths(model).keys() - self.wants
        calls, tapped = [], dict[int, Array]()
        for graph in whole:
            wanted = [t for t in graph.outputs if t.name not in unwanted]
            for tensor in (*graph.inputs, *wanted):
                if tensor.name not in arrays or tensor.name == "taps":
                    arrays[tensor.name] = _zeros(tensor)
            if any(tensor.name == "taps" for tensor in wanted):
                own = taps_of(model.taps, model.layers, graph.part, graph.parts)
                tapped |= zip(own, np.split(arrays["taps"], len(own), axis=-1), strict=True)
            sides = ({t.name: arrays[t.name] for t in side} for side in (graph.inputs, wanted))
            calls.append(self._graph(graph).bind(*sides))
        arrays["bias_past"][...] = BLOCKED
        taps = tuple(tapped[layer] for layer in model.taps) if tapped else ()
        return _Run(tuple(calls), arrays, taps, new, np.zeros(1, np.int64))


def _width(whole: Whole) -> int:
    return whole[0].width or 0


def _zeros(tensor: TensorSpec) -> Array:
    """A buffer for a static tensor."""
    return np.zeros([int(d) for d in tensor.shape], tensor.dtype)


def _show_past(run: _Run, length: int) -> None:
    """Open or close the columns of bias_past between the last run's length and this one's."""
    seen, bias = int(run.seen[0]), run.arrays["bias_past"]
    bias[..., seen:length] = 0
    bias[..., length:seen] = BLOCKED
    run.seen[0] = length


def _by_bucket(bundle: Bundle, role: str) -> dict[int, list[Whole]]:
    """Static portable graphs of the target by past size, narrow first."""
    graphs = [g for g in bundle.graphs("target", role) if g.lowering == "portable" and g.past and g.width]
    found: dict[int, list[Whole]] = {}
    for (past, _), parts in groupby(graphs, key=lambda g: (g.past or 0, g.width)):
        found.setdefault(past, []).append(tuple(parts))
    return found
