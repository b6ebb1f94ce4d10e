# ruff: noqa: ARG005 (stand-ins for protocols take what those take)
"""The cost curve: interpolation, measurement, and a cache file that may be anything."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spec_edge.models.contract import SpecError
from spec_edge.runtime import costs, remembered
from spec_edge.runtime.costs import CostCurve, cost_key, load_costs, measure, measured, save_costs
from spec_edge.runtime.draft import Draft, Output
from spec_edge.runtime.providers.provider import Found
from spec_edge.runtime.remembered import place
from spec_edge.runtime.sessions.toy import ToySession

CURVE = CostCurve((1, 2, 4, 8), (1.0, 1.2, 2.0, 4.0), 0.01)
FOUND = Found("a processor", versions={"onnxruntime": "1.32.0"})
KEY = cost_key("abc", "cpu", FOUND, 2)


def test_at() -> None:
    assert [CURVE.at(w) for w in (0, 1, 2, 3, 4, 6, 8, 10)] == pytest.approx([1, 1, 1.2, 1.6, 2, 3, 4, 5])
    assert CostCurve((2,), (3.0,)).at(9) == 3
    assert CostCurve((1, 2, 4), (1.0, 3.0, 2.0)).at(8) == 2


@pytest.mark.parametrize(
    ("widths", "seconds"),
    [((), ()), ((1, 2), (1.0,)), ((2, 1), (1.0, 1.0)), ((0,), (1.0,)), ((1,), (0.0,)), ((1,), (float("nan"),))],
)
def test_bad_curves(widths: tuple[int, ...], seconds: tuple[float, ...]) -> None:
    with pytest.raises(SpecError, match="cost curve"):
        CostCurve(widths, seconds)


def test_what_is_interrupted_leaves_no_rows() -> None:
    """A draft model takes the rows of its session for its text's."""

    class Interrupted(ToySession):
        def verify(self, *args: Any) -> Any:  # noqa: ARG002
            raise KeyboardInterrupt

    session = Interrupted(vocab_size=16, capacity=64)
    with pytest.raises(KeyboardInterrupt):
        measured(session)
    assert session.length == 0


@pytest.mark.parametrize("text", ['{"key": "k", "widths": [1e400], "seconds": [1]}', "[" * 100_000])
def test_a_stored_curve_that_nobody_wrote_is_none(tmp_path: Path, text: str) -> None:
    place(tmp_path, "k").write_text(text, "utf-8")
    assert load_costs("k", tmp_path) is None


def test_measure_takes_medians_and_leaves_the_session_alone() -> None:
    session = ToySession(capacity=16, max_width=8)
    session.prefill([1, 2, 3])
    before, now = session.cache.copy(), [0.0]
    turns = iter(range(1000))
    verify = session.verify

    def timed(pending: int, draft: object) -> object:
        # width w takes w seconds; the first run of each, and one more, a hundred times that
        turn = next(turns)
        now[0] += (len(draft) + 1) * (100 if turn < 4 or turn == 9 else 1)  # type: ignore[arg-type]
        return verify(pending, draft)  # type: ignore[arg-type]

    session.verify = timed  # type: ignore[assignment, method-assign]
    curve = measure(session, (8, 1, 2, 4, 16), repeats=3, clock=lambda: now[0])
    assert curve == CostCurve((1, 2, 4, 8), (1.0, 2.0, 4.0, 8.0))
    assert session.length == 3
    assert np.array_equal(session.cache, before)


def test_measure_needs_a_text_and_keeps_to_the_room() -> None:
    session = ToySession(capacity=6, max_width=8)
    with pytest.raises(SpecError, match="prefill"):
        measure(session, (1,))
    session.prefill([1, 2, 3])
    assert measure(session, (1, 2, 4, 8), repeats=1).widths == (1, 2)


class Clocked(ToySession):
    """Its runs take what a model of their rows and their text says; the machine's speed changes as the text grows."""

    slow = 1.0

    def verify(self, pending: int, draft: Draft) -> Output:
        rows = 1 + len(draft)
        self.now += (2.0 + 0.25 * rows + 0.001 * rows * (self.length - costs.PAST)) * (
            self.slow if self.length > 300 else 1
        )
        return super().verify(pending, draft)


@pytest.mark.parametrize("slow", [1.0, 0.4, 2.5])
def test_how_costs_grow_with_the_text_is_seen_whatever_the_machines_speed(
    slow: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Clocked(capacity=600, max_width=16)
    session.now, session.slow = 0.0, slow  # type: ignore[attr-defined]
    real = costs.measure
    monkeypatch.setattr(costs, "measure", lambda s, widths: real(s, widths, clock=lambda: s.now))
    curve = measured(session)
    assert session.length == 0 and curve.at(8) == pytest.approx(4.0) and curve.growth == pytest.approx(0.001)
    assert curve.over(costs.PAST) == CostCurve(curve.widths, curve.seconds)
    for length in (0, 64, 1000, 4000):
        for width in (1, 4, 16):
            want = max(2.0 + 0.25 * width + 0.001 * width * (length - costs.PAST), curve.at(width) / 2)
            assert curve.over(length).at(width) == pytest.approx(want)
    assert curve.over(1000).over(2000) == curve.over(1000)


def test_a_short_context_or_few_rows_say_nothing_of_growth() -> None:
    assert measured(ToySession(capacity=300)).growth == 0
    assert measured(ToySession(capacity=600, max_width=2)).growth == 0
    flat = CostCurve((1, 4), (1.0, 2.0))
    assert flat.over(5000) is flat
    for growth in (-1.0, float("nan"), float("inf")):
        with pytest.raises(SpecError, match="growth"):
            CostCurve((1,), (1.0,), growth)


def test_stored_and_read(tmp_path: Path) -> None:
    assert load_costs(KEY, tmp_path) is None
    assert save_costs(KEY, CURVE, tmp_path / "new")
    assert load_costs(KEY, tmp_path / "new") == CURVE
    assert load_costs(cost_key("abc", "cpu", FOUND, 4), tmp_path / "new") is None
    other = Found("another processor", versions=FOUND.versions)
    assert load_costs(cost_key("abc", "cpu", other, 2), tmp_path / "new") is None
    assert len(list((tmp_path / "new").iterdir())) == 1


def files(folder: Path) -> Iterator[Path]:
    return folder.glob("*.json")


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", "{}", json.dumps({"key": KEY, "widths": [2, 1], "seconds": [1, 1]}), "\ud800"]
    + [json.dumps({"key": k, "widths": w, "seconds": [1.0]}) for k, w in ((KEY, ["x"]), ("other", [1]), (KEY, 3))],
)
def test_an_unreadable_file_is_ignored(tmp_path: Path, content: str) -> None:
    save_costs(KEY, CURVE, tmp_path)
    next(files(tmp_path)).write_bytes(content.encode("utf-8", "surrogatepass"))
    assert load_costs(KEY, tmp_path) is None
    assert save_costs(KEY, CURVE, tmp_path)
    assert load_costs(KEY, tmp_path) == CURVE


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert not save_costs(KEY, CURVE, tmp_path / "file" / "below")
    assert load_costs(KEY, tmp_path / "file" / "below") is None


def test_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_costs(KEY, CURVE, tmp_path)

    def full(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(remembered.Path, "replace", full)
    assert not save_costs(KEY, CostCurve((1,), (9.0,)), tmp_path)
    assert load_costs(KEY, tmp_path) == CURVE
    assert len(list(tmp_path.iterdir())) == 1


def test_the_default_folder_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(remembered.platformdirs, "user_cache_dir", lambda name, appauthor: str(tmp_path / name))
    assert save_costs(KEY, CURVE)
    assert load_costs(KEY) == CURVE
    assert (tmp_path / "spec-edge" / "costs").is_dir()
