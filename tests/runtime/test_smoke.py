# ruff: noqa: ARG001, ARG002, ARG005 (stand-ins for protocols take what those take)
"""A device whose logits are not the target's is found out before it writes anything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spec_edge.models.contract import KindQuality, Quality
from spec_edge.runtime import quality
from spec_edge.runtime.bundle import Bundle, open_bundle
from spec_edge.runtime.draft import Draft, Output
from spec_edge.runtime.providers.provider import Found, Provider, ProviderFailed, provider
from spec_edge.runtime.quality import Reference
from spec_edge.runtime.sessions.toy import ToySession
from spec_edge.runtime.smoke import ROWS, Figures, check, measure, wrong

V, CAPACITY = 48, 96
EXACT = Quality(0.0, 1.0, 60, "prose", (KindQuality("prose", 0.0, 1.0, 60),))
CODED = Quality(0.004, 0.965, 60, "code", (KindQuality("prose", 0.003, 0.97, 30), KindQuality("code", 0.005, 0.95, 30)))
FOUND = Found("a device", "driver 1", {"package": "1.0"})


def reference(ids: Sequence[int]) -> Reference:
    session = ToySession(V, CAPACITY, 8, seed=2)
    logits = np.concatenate(list(quality.rows(session, np.array(ids, np.int32))))
    return Reference(("prose",), np.array([0, len(ids)]), np.array(ids, np.int32), *quality.top_law(logits))


TEXT = [int(i) for i in np.random.default_rng(0).integers(0, V, 60)]
REFERENCE = reference(TEXT)


class Lying(ToySession):
    """The toy, whose logits pass through `lie`."""

    def __init__(self, lie: Callable[[np.ndarray, Draft], np.ndarray], width: int = 8) -> None:
        super().__init__(V, CAPACITY, width, seed=2)
        self.lie, self.runs = lie, 0

    def verify(self, pending: int, draft: Draft) -> Output:
        self.runs += 1
        output = super().verify(pending, draft)
        return replace(output, logits=self.lie(output.logits, draft).astype(np.float32))


def honest(logits: np.ndarray, draft: Draft) -> np.ndarray:
    return logits


def noisy(size: float) -> Callable[[np.ndarray, Draft], np.ndarray]:
    rng = np.random.default_rng(1)
    return lambda logits, draft: logits + rng.normal(size=logits.shape) * size


LIES: dict[str, Callable[[np.ndarray, Draft], np.ndarray]] = {
    "noise": noisy(1.0),
    "rows swapped": lambda logits, draft: logits[::-1],
    "zeros": lambda logits, draft: np.zeros_like(logits),
    "wrong only in trees": lambda logits, draft: logits if draft.is_chain else np.roll(logits, 1, axis=0),
    "wrong only in single rows": lambda logits, draft: -logits if not len(draft) else logits,
    "wrong only past the first row": lambda logits, draft: np.concatenate([logits[:1], logits[1:] * 0.1]),
    "one token's column": lambda logits, draft: np.where(np.arange(V) == 5, 9.0, logits),
}


@pytest.mark.parametrize("name", LIES)
@pytest.mark.parametrize("stated", [EXACT, CODED], ids=["fp32", "quantised"])
def test_a_lie_is_found_out(name: str, stated: Quality) -> None:
    said = wrong(measure(REFERENCE, Lying(LIES[name])), stated)
    assert "KL " in said and "(at most 0.0" in said and "another best token in " in said and "\n" not in said


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_found_out(value: float) -> None:
    def lie(logits: np.ndarray, draft: Draft) -> np.ndarray:
        return np.where((np.arange(V) == 3) & (not draft.is_chain), value, logits)

    assert wrong(measure(REFERENCE, Lying(lie)), CODED) == "some are not finite"


@pytest.mark.parametrize("width", [1, 2, 3, 4, 8, 40])
def test_an_honest_device_passes_at_every_width(width: int) -> None:
    session = Lying(honest, width)
    figures = measure(REFERENCE, session)
    assert figures.kl < 1e-6 and figures.missed == 0 and figures.finite
    assert figures.rows >= 30 and session.length == 0
    assert not wrong(figures, EXACT)


def test_rounding_passes() -> None:
    """Errors of 16-bit arithmetic: a few hundredths on logits of this size."""
    assert not wrong(measure(REFERENCE, Lying(noisy(0.03))), EXACT)


def test_a_commit_that_keeps_the_wrong_rows_is_found_out() -> None:
    class Misplaced(Lying):
        def commit(self, rows: Sequence[int]) -> None:
            super().commit(range(len(rows)))

    assert "KL" in wrong(measure(REFERENCE, Misplaced(honest)), EXACT)


def test_a_bundle_may_state_no_kinds() -> None:
    assert wrong(Figures(0.0, 0, 33), replace(EXACT, kinds=())) == ""
    assert "KL 1" in wrong(Figures(1.0, 0, 33), replace(EXACT, kinds=()))


def test_a_short_text_is_read_as_far_as_it_goes() -> None:
    for length in (1, 4, 16, 17, 20, 24, 30):
        figures = measure(reference(TEXT[:length]), Lying(honest))
        assert figures.rows >= 1 and not wrong(figures, EXACT)


def test_a_bundle_that_states_more_is_allowed_more() -> None:
    figures = Figures(0.02, 8, ROWS)
    assert wrong(figures, EXACT) and not wrong(figures, CODED)


@pytest.fixture
def bundle(tiny: Path, tmp_path: Path) -> Bundle:
    """The tiny bundle with the toy's reference."""
    found = open_bundle(tiny)
    quality.write(REFERENCE, tmp_path / "reference.npz")
    return replace(found, folder=tmp_path)


def smoke(bundle: Bundle, session: Any, folder: Path, **changes: Any) -> None:
    on: Provider = replace(provider("cpu"), name="openvino-npu")
    found = replace(FOUND, **{k: v for k, v in changes.items() if k != "options"})
    check(bundle, session, on, found, changes.get("options", {}), folder)


def test_the_result_is_kept(bundle: Bundle, tmp_path: Path) -> None:
    folder = tmp_path / "smoke"
    liar = Lying(LIES["zeros"])
    with pytest.raises(ProviderFailed, match=r"its logits are wrong on the bundle's check text: KL \d"):
        smoke(bundle, liar, folder)
    assert liar.runs
    again = Lying(honest)
    with pytest.raises(ProviderFailed, match=r"rows \(at most \d+\); found before: 'spec-edge doctor --recompile'"):
        smoke(bundle, again, folder)
    assert not again.runs
    next(folder.iterdir()).unlink()
    smoke(bundle, again, folder)
    assert again.runs


@pytest.mark.parametrize(
    "changes",
    [{"driver": "driver 2"}, {"device": "another"}, {"versions": {"package": "1.1"}}, {"options": {"mode": "fast"}}],
)
def test_a_new_driver_is_asked_again(bundle: Bundle, tmp_path: Path, changes: dict[str, Any]) -> None:
    smoke(bundle, Lying(honest), tmp_path / "smoke")
    same, other = Lying(honest), Lying(honest)
    smoke(bundle, same, tmp_path / "smoke")
    smoke(bundle, other, tmp_path / "smoke", **changes)
    assert not same.runs and other.runs


def test_a_failure_is_not_a_wrong_result(bundle: Bundle, tmp_path: Path) -> None:
    class Failing(Lying):
        def verify(self, pending: int, draft: Draft) -> Output:
            raise ProviderFailed("it broke")

    with pytest.raises(ProviderFailed, match="it broke"):
        smoke(bundle, Failing(honest), tmp_path / "smoke")
    smoke(bundle, Lying(honest), tmp_path / "smoke")


@pytest.mark.parametrize("text", ["", "{}", '{"key": 1}', "[]", "\x00"])
def test_a_damaged_note_is_ignored(bundle: Bundle, tmp_path: Path, text: str) -> None:
    smoke(bundle, Lying(honest), tmp_path / "smoke")
    next((tmp_path / "smoke").iterdir()).write_text(text)
    session = Lying(honest)
    smoke(bundle, session, tmp_path / "smoke")
    assert session.runs
