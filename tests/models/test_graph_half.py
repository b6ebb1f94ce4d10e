"""The float16 form in real half precision, one rounding per operator: ONNX's own evaluator stands in for an NPU.

ONNX Runtime's CPU provider computes float16 graphs in float32, so it cannot show an overflow.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from spec_edge.models.decoder import build
from spec_edge.models.forms import Form
from spec_edge.models.reference import forward, hidden_states
from spec_edge.models.schemes.scheme import scheme
from spec_edge.models.store import WeightStore
from spec_edge.models.stored import shrink, store_model

MASSIVE = 20_000.0
IDS = [3, 1, 4, 1, 5, 9, 2, 6]


def _massive(lab: Any) -> Any:
    """SmolLM2's habit: one token's residual has one channel that is thousands of times larger than the rest."""
    tiny = lab.tiny("llama-gqa-tied")
    head = tiny.weights.tensors["model.embed_tokens.weight"]
    table = head * 30
    table[IDS[0], 7] = MASSIVE
    tensors = tiny.weights.tensors | {"model.embed_tokens.weight": table, "lm_head.weight": head}
    return lab.wrap(replace(tiny.config, tied=False), lab.weights(tensors))


def _half_logits(lab: Any, tiny: Any, folder: Path) -> np.ndarray:
    form = Form("verify", "portable", len(IDS), 64, lab.table, "float16")
    with WeightStore(folder / "weights.bin") as store:
        stored = store_model(
            tiny.config, tiny.rope, tiny.weights, scheme("fp16"), store, lab.table, ("float16",), _peaks(tiny)
        )
    model, signature = build(tiny.config, stored, form)
    path = folder / "graph.onnx"
    path.write_bytes(model.SerializeToString())
    angle = np.arange(len(IDS))[:, None] * np.asarray(tiny.rope.inv_freq)
    half = np.tril(np.ones((len(IDS), len(IDS)), bool))
    feeds = {t.name: np.zeros(t.shape, t.dtype) for t in signature.inputs}
    feeds["input_ids"][0] = IDS
    feeds["cos"][0, 0], feeds["sin"][0, 0] = (np.concatenate([f(angle)] * 2, -1) for f in (np.cos, np.sin))
    feeds["bias_past"][:] = -1e4
    feeds["bias_new"][0, 0] = np.where(half, 0, -1e4)
    with np.errstate(over="ignore", invalid="ignore"):
        return ReferenceEvaluator(str(path)).run(["logits"], feeds)[0][0].astype(np.float32)


def _peaks(tiny: Any) -> dict[str, float]:
    peaks: dict[str, float] = {}
    hidden_states(tiny.config, tiny.weights, [IDS], lambda name, x: peaks.update({name: float(np.abs(x).max())}))
    return peaks


def test_half_precision_survives_a_massive_residual(lab: Any, tmp_path: Path) -> None:
    tiny = _massive(lab)
    expected = next(iter(forward(tiny.config, tiny.weights, [IDS])))
    logits = _half_logits(lab, tiny, tmp_path)
    assert np.isfinite(logits).all()
    for row, want in zip(logits, expected, strict=True):
        assert np.abs(row - want).max() < 0.03 * np.abs(want).max()


def test_a_row_of_zeros_is_no_division_by_zero(lab: Any, tmp_path: Path) -> None:
    tiny = lab.tiny("llama-mha-untied")
    tiny.weights.tensors["model.embed_tokens.weight"][IDS[1]] = 0
    assert np.isfinite(_half_logits(lab, tiny, tmp_path)).all()


@pytest.mark.parametrize(("peak", "expected"), [(0.0, 1.0), (128.0, 1.0), (129.0, 2.0), (24_245.0, 256.0)])
def test_shrink(peak: float, expected: float) -> None:
    assert shrink(peak) == expected
