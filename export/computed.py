"""A bundle's fixed-width graphs as its target's hardware computes them, for checks on a CPU.

Enters: a bundle that is being made. Leaves: for as long as the check lasts, a bundle whose graphs round every value.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import onnx

from spec_edge.models.contract import FileFact, GraphSpec
from spec_edge.models.lowerings.rounding import rounded
from spec_edge.runtime.bundle import Bundle
from spec_edge.targets.target import Target

PREFIX = "computed-"


@contextmanager
def as_computed(bundle: Bundle, target: Target) -> Iterator[Bundle]:
    """The bundle itself where the target computes in the types that the graphs state."""
    to = target.rounds_to(bundle.manifest.precision)
    if not to:
        yield bundle
        return
    graphs = tuple(_rounding(bundle, graph, to) for graph in bundle.manifest.graphs if graph.width)
    try:
        yield Bundle(bundle.folder, replace(bundle.manifest, graphs=graphs), bundle.digest)
    finally:
        for graph in graphs:
            bundle.path(graph.file).unlink()


def _rounding(bundle: Bundle, graph: GraphSpec, to: str) -> GraphSpec:
    data = rounded(onnx.load(str(bundle.path(graph.file)), load_external_data=False), to).SerializeToString()
    fact = FileFact(f"{PREFIX}{graph.file.file}", len(data), hashlib.sha256(data).hexdigest())
    bundle.path(fact).write_bytes(data)
    return replace(graph, file=fact)
