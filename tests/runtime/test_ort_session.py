"""The any-width and the static sessions against the network in numpy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spec_edge.models.contract import SpecError
from spec_edge.runtime.bundle import Bundle, open_bundle
from spec_edge.runtime.draft import EMPTY, Draft
from spec_edge.runtime.providers import opening
from spec_edge.runtime.providers.opening import on_cpu
from spec_edge.runtime.providers.provider import Opener
from spec_edge.runtime.sessions.ort import CHUNK, OrtSession
from spec_edge.runtime.sessions.portable import PortableSession
from spec_edge.runtime.sessions.resident import ResidentSession
from spec_edge.runtime.sessions.static import StaticSession

Reference = Callable[[list[int]], tuple[np.ndarray, np.ndarray]]
TREE = Draft((5, 6, 7, 8, 9), (-1, -1, 0, 1, 3), (True,) * 5)


KINDS: dict[str, Any] = {
    "fused": OrtSession,
    "portable": PortableSession,
    "static": StaticSession,
    "resident": ResidentSession,
}


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest, tiny: Path, tiny_resident: Path) -> Callable[..., Any]:
    """The device of the resident session is the CPU, through the calls that a GPU would get."""
    return lambda: KINDS[request.param](*reference(tiny_resident if request.param == "resident" else tiny))


def reference(folder: Path) -> tuple[Bundle, Opener]:
    """What a session takes, on the reference provider."""
    bundle = open_bundle(folder)
    return bundle, on_cpu(bundle, 1)


def prompt(count: int) -> list[int]:
    return [int(t) for t in np.random.default_rng(count).integers(0, 200, count)]


@pytest.mark.parametrize("count", [1, 15, 16, 17, 40, 100])
def test_prefill_gives_the_last_row(make: Callable[..., Any], network: Reference, count: int) -> None:
    session = make()
    session.wants = frozenset({"hidden"})
    output = session.prefill(prompt(count))
    logits, hidden = network(prompt(count))
    assert output.logits.shape == (1, logits.shape[1]) and session.length == count
    np.testing.assert_allclose(output.logits[0], logits[-1], atol=2e-5)
    assert output.hidden is not None
    np.testing.assert_allclose(output.hidden, hidden, atol=2e-5)


def test_each_row_of_a_tree_sees_its_ancestors_only(make: Callable[..., Any], network: Reference) -> None:
    session, ids = make(), prompt(20)
    session.prefill(ids)
    logits = session.verify(3, TREE).logits
    paths = {0: [], 1: [5], 2: [6], 3: [5, 7], 4: [6, 8], 5: [6, 8, 9]}
    for row, path in paths.items():
        np.testing.assert_allclose(logits[row], network([*ids, 3, *path])[0][-1], atol=2e-5)


def test_committed_rows_of_a_tree_are_the_cache(make: Callable[..., Any], network: Reference) -> None:
    session, ids = make(), prompt(20)
    session.prefill(ids)
    session.verify(3, TREE)
    session.commit((0, 2, 4, 5))
    assert session.length == 24
    # The next run must show no trace of the tree's mask or of the rows that lost.
    logits = session.verify(11, Draft.chain((1, 2, 3))).logits
    expected = network([*ids, 3, 6, 8, 9, 11, 1, 2, 3])[0][-4:]
    np.testing.assert_allclose(logits, expected, atol=2e-5)


def test_truncate_forgets(make: Callable[..., Any], network: Reference) -> None:
    session, ids = make(), prompt(50)
    session.prefill(ids)
    session.truncate(10)
    np.testing.assert_allclose(session.verify(4, EMPTY).logits[0], network([*ids[:10], 4])[0][-1], atol=2e-5)
    with pytest.raises(SpecError, match="cannot truncate"):
        session.truncate(11)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_sequence_of_steps_equals_one_pass(make: Callable[..., Any], network: Reference, data: Any) -> None:
    session = make()
    ids = data.draw(st.lists(st.integers(0, 200), min_size=1, max_size=70))
    session.prefill(ids)
    for _ in range(data.draw(st.integers(1, 4))):
        n = data.draw(st.integers(0, session.max_width - 1 if session.max_width < 9 else 9))
        tokens = data.draw(st.lists(st.integers(0, 200), min_size=n, max_size=n))
        parents = [data.draw(st.integers(-1, i - 1)) for i in range(n)]
        draft = Draft(tuple(tokens), tuple(parents), (True,) * n)
        pending = data.draw(st.integers(0, 200))
        logits = session.verify(pending, draft).logits
        leaf = data.draw(st.integers(-1, n - 1))
        path = []
        while leaf >= 0:
            path.insert(0, leaf)
            leaf = parents[leaf]
        ids = [*ids, pending, *(tokens[i] for i in path)]
        rows = (0, *(i + 1 for i in path))
        expected = network(ids)[0]
        np.testing.assert_allclose(logits[list(rows)], expected[-len(rows) :], atol=5e-5)
        session.commit(rows)
        assert session.length == len(ids)


def test_the_buffer_grows_to_the_context_and_not_beyond(tiny: Path, network: Reference) -> None:
    session = OrtSession(*reference(tiny))
    ids = prompt(1000)
    session.prefill(ids[: CHUNK + 1])
    session.prefill(ids[CHUNK + 1 :])
    np.testing.assert_allclose(session.verify(1, EMPTY).logits[0], network([*ids, 1])[0][-1], atol=1e-4)
    assert session._graph.cache.slots == session.capacity == 1024
    with pytest.raises(SpecError, match=r"1025 tokens do not fit into the context of 1024"):
        session.verify(1, Draft.chain(tuple(range(24))))


def test_the_portable_cache_doubles(tiny: Path, network: Reference) -> None:
    session = PortableSession(*reference(tiny))
    ids = prompt(250)
    session.prefill(ids)
    assert session._cache.slots == 256
    for token in range(8):
        session.verify(token, Draft.chain((1, 2)))
        session.commit((0,))
    assert session._cache.slots == 512 and len(session._runs) == 1
    np.testing.assert_allclose(session.verify(9, EMPTY).logits[0], network([*ids, *range(8), 9])[0][-1], atol=5e-5)
    with pytest.raises(SpecError, match="do not fit into the context of 1024"):
        session.prefill(prompt(767))


def test_static_buckets_grow(tiny: Path, network: Reference) -> None:
    session = StaticSession(*reference(tiny))
    ids = prompt(60)
    session.prefill(ids)
    assert session._cache.slots == 64
    for token in range(10):
        session.verify(token, EMPTY)
        session.commit((0,))
    assert session._cache.slots == 128 == session.capacity
    np.testing.assert_allclose(session.verify(99, EMPTY).logits[0], network([*ids, *range(10), 99])[0][-1], atol=2e-5)
    with pytest.raises(SpecError, match="do not fit"):
        session.prefill(prompt(59))


def test_the_smallest_static_graph_that_fits_runs(tiny: Path) -> None:
    session = StaticSession(*reference(tiny))
    session.prefill(prompt(5))
    session.verify(1, Draft.chain((1, 2)))
    assert sorted(session._opened) == ["prefill_16_64", "verify_4_64"]
    with pytest.raises(SpecError, match="wider than 8"):
        session.verify(1, Draft.chain(tuple(range(8))))


def test_every_row_sees_itself_and_biases_are_finite(tiny: Path) -> None:
    session = StaticSession(*reference(tiny))
    session.prefill(prompt(5))
    session.verify(1, TREE)
    for run in session._runs.values():
        assert np.all(np.diagonal(run.arrays["bias_new"][0, 0]) == 0)
        for name in ("bias_new", "bias_past"):
            assert set(np.unique(run.arrays[name])) <= {0, -1e4}


def test_half_precision_graphs(tiny_half: Path, network: Reference) -> None:
    session = StaticSession(*reference(tiny_half))
    ids = prompt(37)
    session.prefill(ids)
    logits = session.verify(3, TREE).logits
    assert logits.dtype == np.float32
    np.testing.assert_allclose(logits[5], network([*ids, 3, 6, 8, 9])[0][-1], atol=0.05)


def test_pads_and_losers_leave_no_trace(tiny: Path) -> None:
    """Rows that no one reads hold anything; the logits of real rows stay the same bits."""
    first, second = (StaticSession(*reference(tiny)) for _ in range(2))
    first.prefill(prompt(7))
    second.prefill(prompt(120))
    second.truncate(0)
    second._cache.past[:, :, :] = 1e3
    second.prefill(prompt(7))
    a, b = (s.verify(3, Draft.chain((1, 2))).logits for s in (first, second))
    np.testing.assert_allclose(a, b, atol=1e-6)


def test_steps_reuse_their_buffers(tiny: Path) -> None:
    session = OrtSession(*reference(tiny))
    session.prefill(prompt(5))
    first = session.verify(1, EMPTY).logits
    session.commit((0,))
    assert session.verify(2, EMPTY).logits.ctypes.data == first.ctypes.data
    assert len(session._graph.runs) == 2


def test_rows_are_committed_once_and_in_order(make: Callable[..., Any]) -> None:
    session = make()
    session.prefill(prompt(5))
    session.verify(1, Draft.chain((2, 3)))
    for rows in ((), (0, 3), (0, 2, 1), (-1,)):
        with pytest.raises(SpecError, match="cannot commit"):
            session.commit(rows)
    session.commit((0, 1))
    with pytest.raises(SpecError, match="cannot commit"):
        session.commit((0,))


def test_bad_input_is_refused(make: Callable[..., Any]) -> None:
    session = make()
    with pytest.raises(SpecError, match="nothing to prefill"):
        session.prefill([])
    with pytest.raises(SpecError, match="token ids"):
        session.prefill([10**6])


def test_where_the_nodes_are(make: Callable[..., Any]) -> None:
    session = make()
    session.prefill(prompt(3))
    assert session.assignment.keys() == {"cpu"} and session.assignment["cpu"] >= 10


def test_a_closed_session_is_closed(make: Callable[..., Any]) -> None:
    session = make()
    session.prefill(prompt(3))
    session.close()
    session.close()
    with pytest.raises(SpecError, match="closed"):
        session.verify(1, EMPTY)


def test_a_graph_that_is_not_the_stated_one(tiny: Path) -> None:
    bundle, open_graph = reference(tiny)
    graph = bundle.graphs("target", "step")[0]
    inputs = (dataclasses.replace(graph.inputs[0], dtype="int64"), *graph.inputs[1:])
    with pytest.raises(SpecError, match=r"input 'input_ids' is int32\[1, 'S'\], but bundle.json says int64"):
        open_graph(dataclasses.replace(graph, inputs=inputs))
    with pytest.raises(SpecError, match=r"output 'logits' is .* says absent"):
        open_graph(dataclasses.replace(graph, outputs=graph.outputs[1:]))


def test_what_cannot_be_opened_is_one_line(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle, open_graph = reference(tiny)
    graph = dataclasses.replace(bundle.graphs("target", "step")[0], file=bundle.manifest.text.tokenizer)
    for message in ("graph tokenizer.json has in its model a field", "ONNX Runtime cannot open tokenizer.json on cpu"):
        with pytest.raises(SpecError) as caught:
            open_graph(graph)
        assert caught.value.message.startswith(message) and "\n" not in caught.value.message
        monkeypatch.setattr(opening, "check_graph", lambda *_: None)


def test_a_graph_without_the_buffers_is_one_line(tiny: Path) -> None:
    bundle, open_graph = reference(tiny)
    graph = open_graph(bundle.graphs("target", "step")[0])
    for sides in (({"past_key.9": np.zeros(1)}, {}), ({}, {"present_key.9": np.zeros(1)})):
        with pytest.raises(SpecError, match=r"refuses the buffers.*export the model again"):
            graph.bind(*sides)
