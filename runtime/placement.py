"""Where the nodes of every opened graph are, and how much arithmetic is where.

Enters: the networks that were placed. Leaves: a row for each of their graphs, for `--stats`, `--json` and `doctor`.
Arithmetic is an estimate (onnx_nodes.py): what multiplies by constant matrices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from spec_edge.models.contract import GraphSpec
from spec_edge.runtime.onnx_nodes import nodes_of, operations
from spec_edge.runtime.providers.provider import Found, Opened, Provider


@runtime_checkable
class NamesNodes(Protocol):
    """An `Opened` that knows which node is where."""

    @property
    def names(self) -> Mapping[str, Sequence[str]]:
        """Nodes by the short name of what runs them, as `placement` counts them."""
        ...


@dataclass(frozen=True)
class Part:
    """A graph that was opened. nodes: how many each provider runs; names: of those not on the network's own one."""

    graph: GraphSpec
    model: Path
    nodes: Mapping[str, int]
    names: Mapping[str, Sequence[str]]


@dataclass
class Place:
    """Where a network runs now. parts: its graphs that have been opened; options: of the provider."""

    on: Provider
    found: Found
    options: Mapping[str, str] = field(default_factory=dict)
    parts: list[Part] = field(default_factory=list)

    def add(self, graph: GraphSpec, model: Path, opened: Opened) -> None:
        names = opened.names if isinstance(opened, NamesNodes) else {}
        others = {name: tuple(nodes) for name, nodes in names.items() if name != self.on.name}
        self.parts.append(Part(graph, model, dict(opened.placement), others))


@dataclass(frozen=True)
class GraphPlacement:
    """network     "target", "draft" or a method with weights in the bundle
    graph, width, past  as in the bundle; None: symbolic
    provider    that it was opened on
    nodes       by what runs them
    operations  floating-point operations of one run (of one row where the width is symbolic), by what runs them
    """

    network: str
    graph: str
    width: int | None
    past: int | None
    provider: str
    nodes: dict[str, int]
    operations: dict[str, int]


def placements(places: Mapping[str, Place]) -> tuple[GraphPlacement, ...]:
    """A row for each opened graph. It reads the graph files."""
    return tuple(_row(network, place, part) for network, place in places.items() for part in place.parts)


def _row(network: str, place: Place, part: Part) -> GraphPlacement:
    cost = operations(part.graph, nodes_of(part.model.read_bytes()))
    elsewhere = {name: sum(cost.get(node, 0) for node in nodes) for name, nodes in part.names.items()}
    main = sum(cost.values()) - sum(elsewhere.values())
    graph = part.graph
    nodes = dict(part.nodes)
    return GraphPlacement(
        network, graph.name, graph.width, graph.past, place.on.name, nodes, {place.on.name: main, **elsewhere}
    )


def lines(rows: Iterable[GraphPlacement]) -> list[str]:
    """For each network: nodes by provider over its graphs, and the share of the arithmetic on its own provider."""
    by_network: dict[str, list[GraphPlacement]] = {}
    for row in rows:
        by_network.setdefault(row.network, []).append(row)
    return [_line(network, found) for network, found in by_network.items()]


def _line(network: str, rows: Sequence[GraphPlacement]) -> str:
    nodes, cost = (_added(getattr(row, name) for row in rows) for name in ("nodes", "operations"))
    where = ", ".join(f"{count} on {name}" for name, count in sorted(nodes.items())) or f"all on {rows[0].provider}"
    total = sum(cost.values())
    share = 100 * cost.get(rows[0].provider, 0) / total if total else 100.0
    graphs = f" in {len(rows)} graphs" if len(rows) > 1 else ""
    return f"{network}: {where}{graphs}; {rows[0].provider} has {share:.3g} % of the arithmetic"


def _added(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in parts:
        for name, count in part.items():
            total[name] = total.get(name, 0) + count
    return total
