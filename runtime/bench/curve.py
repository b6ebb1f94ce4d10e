"""t(width): what a run costs by its width, for every graph of a bundle and every provider of this machine.

Enters: a bundle. Leaves: rows of milliseconds. Any-width graphs run through their session, as in use; fixed ones run
alone on buffers of zeros, whose values do not change the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from spec_edge.models.contract import GraphSpec, SpecError
from spec_edge.runtime.bundle import Bundle
from spec_edge.runtime.costs import CostCurve, measure
from spec_edge.runtime.protocols import Session
from spec_edge.runtime.sessions.opening import available, guarded, open_graph
from spec_edge.runtime.sessions.ort import OrtSession

WIDTHS = (1, 2, 4, 8, 16, 32)
PAST = 256
"""Tokens of past in an any-width run."""

REPEATS = 7
Row = dict[str, Any]
Tick = Callable[[str], object]


def of_session(session: Session) -> CostCurve:
    """The curve of an open session over some text."""
    session.truncate(0)
    session.prefill([0] * min(PAST, session.capacity // 2))
    found = measure(session, WIDTHS, REPEATS)
    session.truncate(0)
    return found


def every_graph(bundle: Bundle, threads: int | None, tick: Tick = len) -> list[Row]:
    """A row per graph and provider: widths and milliseconds, or why there are none."""
    return [
        _row(bundle, graph, provider, threads, tick) for provider in available() for graph in bundle.manifest.graphs
    ]


def _row(bundle: Bundle, graph: GraphSpec, provider: str, threads: int | None, tick: Tick) -> Row:
    tick(f"{graph.name} on {provider}")
    past = PAST if graph.past is None else graph.past
    row: Row = {"graph": graph.name, "network": graph.network, "role": graph.role, "provider": provider, "past": past}
    try:
        return row | dict(
            zip(("widths", "ms"), zip(*_times(bundle, graph, provider, threads), strict=True), strict=True)
        )
    except SpecError as error:
        return row | {"absent": error.message}


def _times(bundle: Bundle, graph: GraphSpec, provider: str, threads: int | None) -> Iterator[tuple[int, float]]:
    """(width, milliseconds)."""
    if graph.network == "target" and graph.role == "step" and graph.lowering == "fused":
        session = OrtSession(bundle, threads, provider)
        try:
            curve = of_session(session)
        finally:
            session.close()
        yield from zip(curve.widths, (1000 * s for s in curve.seconds), strict=True)
    elif graph.width is None or graph.past is None:
        raise SpecError("a graph of any width that no session of its own runs here")
    else:
        yield graph.width, _fixed(bundle, graph, provider, threads)


def _fixed(bundle: Bundle, graph: GraphSpec, provider: str, threads: int | None) -> float:
    session = open_graph(bundle, graph, provider, threads)
    feeds = {t.name: np.zeros([int(d) for d in t.shape], t.dtype) for t in graph.inputs}
    times = []
    for turn in range(REPEATS + 1):
        begun = perf_counter()
        guarded(f"{graph.name} failed", lambda: session.run(None, feeds))
        if turn:  # the first run allocates
            times.append(1000 * (perf_counter() - begun))
    return median(times)
