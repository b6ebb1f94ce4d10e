"""Where nodes and arithmetic are, of graphs that are split between providers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spec_edge.runtime.bundle import Bundle, open_bundle
from spec_edge.runtime.onnx_nodes import nodes_of, operations
from spec_edge.runtime.placement import Place, lines, placements
from spec_edge.runtime.providers import cpu
from spec_edge.runtime.providers.provider import Found


class Split:
    """An `Opened` with these nodes on the CPU, the others on a GPU."""

    def __init__(self, count: int, names: list[str]) -> None:
        self.placement = {"gpu": count - len(names), "cpu": len(names)} if names else {"gpu": count}
        self.names = {"gpu": ["fused away"], "cpu": names}

    def bind(self, inputs: Any, outputs: Any) -> Any: ...

    def close(self) -> None: ...


@pytest.fixture
def bundle(tiny: Path) -> Bundle:
    return open_bundle(tiny)


def place_of(bundle: Bundle, left: int) -> tuple[Place, int, int]:
    """A graph whose `left` costliest nodes are on the CPU; its operations, and theirs."""
    graph = next(g for g in bundle.manifest.graphs if g.name == "verify_8_64")
    found = nodes_of(bundle.path(graph.file).read_bytes())
    cost = operations(graph, found)
    heavy = sorted(cost, key=lambda name: -cost[name])[:left]
    place = Place(replace(cpu.PROVIDER, name="gpu", device="gpu"), Found("a GPU"))
    place.add(graph, bundle.path(graph.file), Split(len(found.nodes), heavy))
    return place, sum(cost.values()), sum(cost[name] for name in heavy)


def test_arithmetic_is_told_apart_by_node(bundle: Bundle) -> None:
    place, total, heavy = place_of(bundle, 1)
    (row,) = placements({"target": place})
    assert (row.network, row.graph, row.width, row.past, row.provider) == ("target", "verify_8_64", 8, 64, "gpu")
    assert row.operations == {"gpu": total - heavy, "cpu": heavy} and 0 < heavy < total
    assert row.nodes["cpu"] == 1


def test_one_line_for_each_network(bundle: Bundle) -> None:
    place, total, heavy = place_of(bundle, 1)
    place.parts.append(place.parts[0])
    whole, _, _ = place_of(bundle, 0)
    found = lines(placements({"target": place, "eagle": whole}))
    share = f"{100 * (total - heavy) / total:.3g}"
    assert found[0].startswith("target: 2 on cpu, ") and f"in 2 graphs; gpu has {share} % of the" in found[0]
    assert found[1].startswith("eagle: ") and "cpu" not in found[1] and found[1].endswith("100 % of the arithmetic")


def test_a_runtime_that_does_not_tell(bundle: Bundle) -> None:
    """ONNX Runtime before 1.24 gives no placement."""
    place, total, _ = place_of(bundle, 0)
    place.parts[0] = replace(place.parts[0], nodes={}, names={})
    (row,) = placements({"target": place})
    assert row.nodes == {} and row.operations == {"gpu": total}
    assert lines([row]) == ["target: all on gpu; gpu has 100 % of the arithmetic"]
