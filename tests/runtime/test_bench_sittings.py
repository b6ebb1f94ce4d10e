"""Peers that do not fit into memory together: who is open when, and what is written down of it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from spec_edge.runtime.bench import peer, sittings
from spec_edge.runtime.bench.process import Child
from spec_edge.runtime.bench.runs import Item, Run
from spec_edge.runtime.bench.settings import Settings
from spec_edge.runtime.bench.show import Progress
from spec_edge.runtime.bench.weights import Source, Weights

ADAPTER = """
import os
PACKAGE = PIP = "nothing"
METHODS = ("plain",)
PRECISIONS = DEFAULTS = ("a", "b", "c")
NEEDS = dict.fromkeys(PRECISIONS, "gguf")

def version():
    return "1.0"

def settings(method):
    return {}

def open_model(model, draft, threads, precision, methods):
    if precision == os.environ.get("FAKE"):
        raise RuntimeError("no memory")
    return precision

def generate(state, method, ids, new_tokens):
    return [7] * new_tokens, [[0.1, 1], [0.2, new_tokens - 1]], None
"""


class Ours:
    """Plain decoding that counts the peers beside it. kept: what there was after each sitting but the last."""

    name = "plain"

    def __init__(self, alive: list[str]) -> None:
        self._alive, self.beside = alive, set[tuple[str, ...]]()
        self.kept: list[sittings.Sat] = []

    def generate(self, item: Item) -> Run:
        self.beside.add(tuple(self._alive))
        return Run((7,) * item.new_tokens, ((0.1, 1), (0.3, item.new_tokens - 1)), 3)


@pytest.fixture
def alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Labels of the peers that are open. Three forms of one peer are wanted, whatever is asked for."""
    path = tmp_path / "fake_peer.py"
    path.write_text(ADAPTER, encoding="utf-8")
    module = ModuleType("fake_peer")
    exec(ADAPTER, module.__dict__)
    module.__file__ = str(path)
    open_now: list[str] = []
    open_peer, close = peer.open_peer, Child.close

    def opening(want: peer.Wanted, *rest: object) -> tuple[peer.Peer, dict[str, str]]:
        found, absent = open_peer(want, *rest)  # type: ignore[arg-type]
        open_now.append(want.label)
        found.child.label = want.label  # type: ignore[attr-defined]
        return found, absent

    def closing(child: Child) -> None:
        if (label := getattr(child, "label", "")) in open_now:
            open_now.remove(label)
        close(child)

    monkeypatch.setattr(peer, "wanted", lambda _: [peer.Wanted("fake", form, module) for form in "abc"])
    monkeypatch.setattr(peer, "python_for", lambda *_: sys.executable)
    monkeypatch.setattr(peer, "open_peer", opening)
    monkeypatch.setattr(Child, "close", closing)
    return open_now


def sat(tmp_path: Path, alive: list[str], most: int | None) -> tuple[sittings.Sat, Ours]:
    ours, items = Ours(alive), [Item(q, "qa", 0, (1, 2), (7, 7, 7)) for q in "01"]
    settings = Settings("toy", peers="fake", repeat=2, threads=1, peers_at_once=most)
    weights = Weights(Source(tmp_path / "weights", "0", tmp_path / "cache"), None)
    return sittings.sit(settings, weights, [ours], items, Progress(), ours.kept.append), ours  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("most", "beside"),
    [
        (None, {("fake:a", "fake:b", "fake:c")}),
        (2, {("fake:a", "fake:b"), ("fake:c",)}),
        (1, {("fake:a",), ("fake:b",), ("fake:c",)}),
    ],
)
def test_no_more_peers_are_open_than_asked(
    tmp_path: Path, alive: list[str], most: int | None, beside: set[tuple[str, ...]]
) -> None:
    found, ours = sat(tmp_path, alive, most)
    assert ours.beside == beside and not alive and found.held == len(beside)
    assert found.measured.names == ["plain", "fake:a/plain", "fake:b/plain", "fake:c/plain"]
    repeats = {name: {r.repeat for r in found.measured.records if r.contender == name} for name in found.measured.names}
    assert len(ours.kept) == len(beside) - 1  # so that a later sitting's end loses no earlier one
    for name in found.measured.names[1:]:
        number = found.states[name]["sitting"]
        assert repeats[name] == {2 * number - 2, 2 * number - 1} <= repeats["plain"]
    assert set(found.memory) == {"fake:a", "fake:b", "fake:c"} and len(found.peers) == 3
    assert found.speed is not None and 0 < found.speed["low"] <= found.speed["median"] <= found.speed["high"]


def test_a_sitting_of_which_no_peer_opens_is_left_out(
    tmp_path: Path, alive: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE", "c")
    found, ours = sat(tmp_path, alive, 2)
    assert ours.beside == {("fake:a", "fake:b")} and found.held == 1
    assert "no memory" in found.states["fake:c"]["absent"] and found.states["fake:c"]["status"] == "failed"


def test_without_any_peer_there_is_one_sitting(
    tmp_path: Path, alive: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer, "wanted", lambda _: [])
    found, ours = sat(tmp_path, alive, None)
    assert ours.beside == {()} and found.held == 1 and found.measured.names == ["plain"]
