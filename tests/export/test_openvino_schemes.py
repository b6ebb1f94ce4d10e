"""Every weight scheme through OpenVINO: its ONNX reader takes the operators, and computes the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spec_edge.runtime.bundle import open_bundle
from spec_edge.runtime.draft import Draft
from spec_edge.runtime.protocols import Session
from spec_edge.runtime.providers.opening import on_cpu, opener
from spec_edge.runtime.providers.provider import provider
from spec_edge.runtime.quality import log_softmax
from spec_edge.runtime.sessions.ort import OrtSession
from spec_edge.runtime.sessions.portable import PortableSession
from spec_edge.runtime.sessions.static import StaticSession

EXACT = {"NPU_USE_NPUW": "YES", "NPUW_DEVICES": "CPU", "NPUW_F16IC": "NO", "INFERENCE_PRECISION_HINT": "f32"}
MOST_KL = {"fp32": 1e-6}
ROUNDED = 1e-3
"""ONNX Runtime rounds activations to 8 bits before quantised weights; OpenVINO, as it is set here, does not."""


def law(session: Session) -> np.ndarray:
    """Of the rows of some verify runs, float64."""
    ids = [int(i) for i in np.random.default_rng(0).integers(0, 250, 72)]
    session.prefill(ids[:40])
    found = []
    for at in range(40, 72, 8):
        found.append(session.verify(ids[at], Draft.chain(ids[at + 1 : at + 8])).logits.copy())
        session.commit(range(8))
    session.close()
    return log_softmax(np.concatenate(found)).astype(np.float64)


@pytest.mark.parametrize("precision", ["fp32", "int8", "int4", "int8-channel"])
def test_a_scheme_through_openvino(tiny_target: Path, tmp_path: Path, bench: Any, precision: str) -> None:
    bundle = open_bundle(bench.bundle(tiny_target, tmp_path / "b", "--context", 128, precision=precision))
    want = law(OrtSession(bundle, on_cpu(bundle, 1)))
    ways = {
        "openvino-cpu": PortableSession(bundle, opener(bundle, provider("openvino-cpu"), 1)),
        "openvino-npu": StaticSession(bundle, opener(bundle, provider("openvino-npu"), None, EXACT)),
    }
    for name, session in ways.items():
        divergence = (np.exp(want) * (want - law(session))).sum(1)
        assert divergence.mean() < MOST_KL.get(precision, ROUNDED), name
