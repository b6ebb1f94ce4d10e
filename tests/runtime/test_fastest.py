"""`--provider fastest`: measured once, the lower curve wins, what cannot run the bundle is said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from spec_edge.models.contract import BadUsage, SpecError
from spec_edge.runtime import fastest as module
from spec_edge.runtime import load
from spec_edge.runtime.bundle import open_bundle
from spec_edge.runtime.costs import CostCurve
from spec_edge.runtime.fastest import FASTEST, fastest
from spec_edge.runtime.protocols import Session
from spec_edge.runtime.providers.provider import Found, Job, Opened, Provider, ProviderFailed, provider

CPU = provider("cpu")


def named(name: str, device: str = "cpu") -> Provider:
    return replace(CPU, name=name, device=device)


pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def curves(monkeypatch: pytest.MonkeyPatch) -> list[CostCurve]:
    """What the next measurements give; each one really runs the session first."""
    left: list[CostCurve] = []

    def measured(session: Session) -> CostCurve:
        session.prefill([1, 2, 3])
        return left.pop(0)

    monkeypatch.setattr(module, "measured", measured)
    return left


def curve(*seconds: float) -> CostCurve:
    return CostCurve((1, 4, 8), seconds)


def test_the_lower_curve_wins_and_is_remembered(tiny: Path, curves: list[CostCurve]) -> None:
    bundle, said = open_bundle(tiny), list[str]()
    backends = [named("steep"), named("flat"), named("elsewhere", "gpu")]
    curves += [curve(0.001, 0.004, 0.009), curve(0.002, 0.002, 0.002)]
    for _ in range(2):  # the second time nothing is left to measure
        assert fastest(bundle, 1, said.append, lambda: backends) == "flat"
    line = "fastest is flat (flat: 2.0, 2.0, 2.0 ms at widths 1, 4, 8; steep: 1.0, 4.0, 9.0 ms at widths 1, 4, 8)"
    assert said == [line, line]
    assert not curves


def test_other_versions_and_threads_are_measured_again(tiny: Path, curves: list[CostCurve]) -> None:
    bundle = open_bundle(tiny)

    def newer(_options: Mapping[str, str]) -> Found:
        return Found("the same", versions={"onnxruntime": "9.9"})

    curves += [curve(1, 1, 1)] * 3
    for threads, on in ((1, CPU), (2, CPU), (1, replace(CPU, find=newer))):
        assert fastest(bundle, threads, len, lambda on=on: [on]) == "cpu"  # type: ignore[misc]
    assert not curves


def test_a_backend_that_fails_is_said(tiny: Path, curves: list[CostCurve]) -> None:
    def refuses(_job: Job) -> Opened:
        raise ProviderFailed("no such instruction")

    bundle, said = open_bundle(tiny), list[str]()
    broken = replace(CPU, name="broken", open=refuses)
    curves += [curve(1, 1, 1)]
    assert fastest(bundle, None, said.append, lambda: [broken, CPU]) == "cpu"
    assert said[0] == "broken is not measured: no such instruction"
    with pytest.raises(SpecError, match="no backend for the CPU"):
        fastest(bundle, None, len, lambda: [broken])


def test_load_measures_and_says(tiny: Path) -> None:
    said = list[str]()
    with load(tiny, provider=FASTEST, threads=1, on_note=said.append) as llm:
        assert llm.provider in said[-1].removeprefix("fastest is ")
        text = llm.generate("ab", chat=False, max_new_tokens=4, method="plain").text
    with load(tiny, threads=1) as llm:
        assert llm.generate("ab", chat=False, max_new_tokens=4, method="plain").text == text
    assert any("ms at widths 1, 4, 8" in line for line in said)


def test_not_for_what_drafts(tiny: Path) -> None:
    with pytest.raises(BadUsage, match="unknown provider 'fastest'"):
        load(tiny, draft_provider=FASTEST)
