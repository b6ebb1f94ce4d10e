"""OpenVINO's NPU plugin over the CPU, compiled and tried in the child process: the same numbers from the artefact."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from spec_edge.runtime.bundle import open_bundle
from spec_edge.runtime.compiling import CompileSettings, compiled
from spec_edge.runtime.providers import openvino_npu
from spec_edge.runtime.providers.opening import job, run_once
from spec_edge.runtime.providers.provider import ProviderFailed

EXACT = {"NPU_USE_NPUW": "YES", "NPUW_DEVICES": "CPU", "NPUW_F16IC": "NO", "INFERENCE_PRECISION_HINT": "f32"}


def test_an_artefact_of_the_child_opens_here_and_computes_the_same(tiny: Path, tmp_path: Path) -> None:
    bundle, on = open_bundle(tiny), openvino_npu.PROVIDER
    graph = bundle.graphs("target", "verify")[0]
    asked = job(bundle, graph, 1, EXACT)
    artefact = compiled(asked, on, on.find(EXACT), CompileSettings(folder=tmp_path / "cache"))
    assert artefact is not None
    feeds = {t.name: np.ones(t.shape, t.dtype) for t in graph.inputs}
    direct = run_once(on.open(asked), graph, feeds)
    kept = run_once(on.open(dataclasses.replace(asked, artefact=artefact)), graph, feeds)
    for name, values in direct.items():
        np.testing.assert_array_equal(values, kept[name])


def test_what_the_compiler_refuses_is_one_line(tiny: Path, tmp_path: Path) -> None:
    """A symbolic graph, which the NPU plugin does not take."""
    bundle, on = open_bundle(tiny), openvino_npu.PROVIDER
    asked = job(bundle, next(g for g in bundle.graphs("target", "step") if g.lowering == "portable"), 1, EXACT)
    with pytest.raises(ProviderFailed) as failed:
        compiled(asked, on, on.find(EXACT), CompileSettings(folder=tmp_path / "cache"))
    assert "\n" not in failed.value.message and "was not compiled" in failed.value.message
