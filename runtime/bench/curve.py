"""t(width): what a run costs by its width, for every graph of a bundle and every provider of this machine.

Enters: a bundle. Leaves: rows of milliseconds. The target's any-width graph runs through its session, as in use; every
other graph runs alone on buffers of zeros, whose values do not change the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median
from time import perf_counter
from typing import Any

from spec_edge.models.contract import GraphSpec, SpecError
from spec_edge.runtime.bundle import Bundle
from spec_edge.runtime.costs import CostCurve, measure
from spec_edge.runtime.protocols import Session
from spec_edge.runtime.providers.opening import empty, opener, usable
from spec_edge.runtime.providers.provider import Opened, Opener, Provider
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
    return [_row(bundle, graph, on, threads, tick) for on in usable() for graph in bundle.manifest.graphs]


def _row(bundle: Bundle, graph: GraphSpec, on: Provider, threads: int | None, tick: Tick) -> Row:
    tick(f"{graph.name} on {on.name}")
    row: Row = {"graph": graph.name, "network": graph.network, "role": graph.role, "provider": on.name}
    row["past"] = graph.past if graph.past is not None else PAST if _symbols(graph) & {"P", "M"} else 0
    try:
        if graph.lowering == "fused" and not on.fused:
            raise SpecError("this provider does not take fused graphs")
        if not on.symbolic and _symbols(graph):
            raise SpecError("this provider takes no symbolic shapes")
        times = zip(*_times(bundle, graph, opener(bundle, on, threads)), strict=True)
        return row | dict(zip(("widths", "ms"), times, strict=True))
    except SpecError as error:
        return row | {"absent": error.message}


def _times(bundle: Bundle, graph: GraphSpec, opens: Opener) -> Iterator[tuple[int, float]]:
    """(width, milliseconds)."""
    if graph.network == "target" and graph.role == "step" and graph.lowering == "fused":
        session = OrtSession(bundle, opens)
        try:
            curve = of_session(session)
        finally:
            session.close()
        yield from zip(curve.widths, (1000 * s for s in curve.seconds), strict=True)
        return
    if unknown := sorted(_symbols(graph) - sizes(1).keys()):
        raise SpecError(f"nobody here knows the size '{unknown[0]}' of its inputs")
    opened = opens(graph)
    for width in WIDTHS if graph.width is None else (graph.width,):
        yield width, _alone(opened, graph, width)
    opened.close()


def sizes(width: int) -> dict[str, int]:
    """Of the symbolic dimensions: rows, rows with logits, past, slots of a cache that holds past and rows."""
    return {"S": width, "R": width, "P": PAST, "M": PAST + WIDTHS[-1]}


def _symbols(graph: GraphSpec) -> set[str]:
    return {dim for tensor in graph.inputs for dim in tensor.shape if isinstance(dim, str)}


def _alone(opened: Opened, graph: GraphSpec, width: int) -> float:
    """Milliseconds on zeros, but for the numbers that say how full a fused cache is."""
    known = sizes(width)
    feeds, outputs = ({t.name: empty(t, known) for t in side} for side in (graph.inputs, graph.outputs))
    for name, value in (("seqlens_k", PAST + width - 1), ("total_len", known["M"])):
        if name in feeds:
            feeds[name][...] = value
    for name, array in outputs.items():  # a fused cache is written in place, as in a session
        past = feeds.get(name.replace("present_", "past_"))
        outputs[name] = past if past is not None and past.shape == array.shape else array
    run, times = opened.bind(feeds, outputs), []
    for turn in range(REPEATS + 1):
        begun = perf_counter()
        run()
        if turn:  # the first run allocates
            times.append(1000 * (perf_counter() - begun))
    return median(times)
