"""Graphs of a bundle on a provider.

Enters: a bundle and a provider. Leaves: an `Opener` for its sessions. Every graph file is looked at before a runtime
reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from spec_edge.models.contract import GraphSpec, SpecError, TensorSpec
from spec_edge.models.plugins import known
from spec_edge.runtime.bundle import Bundle
from spec_edge.runtime.onnx_file import check_graph
from spec_edge.runtime.providers.provider import (
    PACKAGE,
    Array,
    Job,
    Opened,
    Opener,
    Provider,
    ProviderMissing,
    provider,
)

NO_OPTIONS: Mapping[str, str] = {}


def job(bundle: Bundle, graph: GraphSpec, threads: int | None = None, options: Mapping[str, str] = NO_OPTIONS) -> Job:
    """`graph` as something to open. SpecError: its file holds what spec-edge does not write."""
    path = bundle.path(graph.file)
    check_graph(path.read_bytes(), graph.file.file, bundle.manifest.weights)
    return Job(path, graph, bundle.manifest.weights, threads, options)


def opener(bundle: Bundle, on: Provider, threads: int | None = None, options: Mapping[str, str] = NO_OPTIONS) -> Opener:
    """Opens graphs of `bundle` on one provider. threads: None for one per physical core."""
    return lambda graph: on.open(job(bundle, graph, threads, options))


def unsuited(bundle: Bundle, on: Provider, network: str) -> str:
    """Why a provider is not for a network of this bundle; "" where it is, or where only opening its graphs tells."""
    if on.suits is None:
        return ""
    own = [graph for graph in bundle.manifest.graphs if graph.network == network]
    graphs = [graph for graph in own if graph.lowering == "fused" and graph.past is None]
    if not graphs:
        return "the bundle has no any-width graph for it"
    return next((why for graph in graphs if (why := on.suits(job(bundle, graph)))), "")


def on_cpu(bundle: Bundle, threads: int | None = None) -> Opener:
    """On the reference: ONNX Runtime's CPU provider."""
    return opener(bundle, provider("cpu"), threads)


def usable() -> Iterator[Provider]:
    """Every provider that can be used here, by name."""
    for name in known(PACKAGE, "PROVIDER"):
        found = provider(name)
        try:
            found.find(NO_OPTIONS)
        except ProviderMissing:
            continue
        yield found


def run_once(opened: Opened, graph: GraphSpec, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Every output of one run over `feeds`, which hold every input. SpecError: a size that no input tells."""
    sizes = {
        dim: length
        for tensor in graph.inputs
        for dim, length in zip(tensor.shape, feeds[tensor.name].shape, strict=True)
        if isinstance(dim, str)
    }
    outputs = {t.name: empty(t, sizes) for t in graph.outputs}
    opened.bind({name: np.ascontiguousarray(array) for name, array in feeds.items()}, outputs)()
    return outputs


def empty(tensor: TensorSpec, sizes: Mapping[str, int]) -> Array:
    """Zeros for a tensor, its symbolic dimensions by name."""
    if unknown := [d for d in tensor.shape if isinstance(d, str) and d not in sizes]:
        raise SpecError(f"nobody here knows the size '{unknown[0]}' of '{tensor.name}'")
    return np.zeros([sizes[d] if isinstance(d, str) else d for d in tensor.shape], tensor.dtype)
