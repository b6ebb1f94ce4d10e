"""Medusa heads: one hidden state enters, candidates for the next positions leave.

Enters: a bundle with Medusa heads. Leaves: for each head the best ids of the target and their log-probabilities. The
graph with float32 activations serves where fused graphs run, elsewhere the one of the bundle's target.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from spec_edge.models.contract import DrafterFact, SpecError
from spec_edge.runtime.bundle import Bundle
from spec_edge.runtime.costs import run_seconds
from spec_edge.runtime.providers.provider import Opener, Provider
from spec_edge.runtime.sessions.chain import Chain

NAME = "medusa"
Candidates = tuple[NDArray[np.int32], NDArray[np.float32]]


@runtime_checkable
class Heads(Protocol):
    """heads: number of them; top: candidates of each."""

    fact: DrafterFact
    heads: int
    top: int

    def run(self, hidden: NDArray[np.float32]) -> Candidates:
        """hidden [H], the target's last normed state of a token -> ids and log-probabilities [heads, top], best first.

        Head i is about the token i + 2 positions behind that one. The views are valid until the next run.
        """
        ...

    def close(self) -> None: ...


class MedusaSession:
    """`Heads` in a graph of the bundle."""

    def __init__(self, bundle: Bundle, opener: Opener, lowering: str = "fused") -> None:
        """lowering: of the graph that is wanted, if there is one."""
        self.fact = _fact(bundle)
        graphs = bundle.graphs(NAME, "heads")
        if not graphs:
            raise SpecError("this bundle's Medusa heads have no graph; export it again with --medusa")
        graph = min(graphs, key=lambda g: g.lowering != lowering)
        self._opened = opener(graph)
        shapes = {t.name: (t.dtype, [int(d) for d in t.shape]) for t in (*graph.inputs, *graph.outputs)}
        self._arrays = {name: np.zeros(shape, dtype) for name, (dtype, shape) in shapes.items()}
        self.heads, self.top = shapes["top_ids"][1][1:]
        sides = [{t.name: self._arrays[t.name] for t in side} for side in (graph.inputs, graph.outputs)]
        self._call: Callable[[], None] | None = self._opened.bind(*sides)

    def run(self, hidden: NDArray[np.float32]) -> Candidates:
        if self._call is None:
            raise SpecError("this session is closed")
        self._arrays["hidden"][0, 0] = hidden
        self._call()
        return self._arrays["top_ids"][0], self._arrays["top_logprobs"][0]

    def step_seconds(self, width: int, clock: Callable[[], float] = perf_counter) -> float:
        """Median time of a run. width: H."""
        return _timed(self, width, clock)

    def close(self) -> None:
        self._call = None
        self._opened.close()


class FailoverHeads:
    """`Heads` over a chain of them: they remember nothing, so the next one goes on."""

    def __init__(self, chain: Chain[Heads]) -> None:
        self._chain = chain
        self.fact, self.heads, self.top = chain.now.fact, chain.now.heads, chain.now.top

    def run(self, hidden: NDArray[np.float32]) -> Candidates:
        return self._chain.run(None, lambda heads: heads.run(hidden), lambda _: None)

    def step_seconds(self, width: int, clock: Callable[[], float] = perf_counter) -> float:
        """Median time of a run. width: H."""
        return _timed(self, width, clock)

    def close(self) -> None:
        self._chain.close()


def _timed(heads: Heads, width: int, clock: Callable[[], float]) -> float:
    hidden = np.zeros(width, np.float32)
    return run_seconds(lambda: heads.run(hidden), lambda: None, clock)


def failover(bundle: Bundle, chain: Chain[Heads]) -> Heads:  # noqa: ARG001
    """What choose.py calls for several providers."""
    return FailoverHeads(chain)


def _fact(bundle: Bundle) -> DrafterFact:
    fact = next((d for d in bundle.manifest.drafters if d.name == NAME), None)
    if fact is None:
        raise SpecError("this bundle has no Medusa heads; export the model again with --medusa PATH")
    return fact


def open_network(bundle: Bundle, on: Provider, opener: Opener) -> MedusaSession:
    """What choose.py calls."""
    return MedusaSession(bundle, opener, "fused" if on.fused else "portable")
