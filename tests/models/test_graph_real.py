"""Graphs of the real SmolLM2 equal the numpy reference, in float32 and with the file's own quantised values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spec_edge.models.forms import Form
from spec_edge.models.open import open_checkpoint
from spec_edge.models.reference import logits
from spec_edge.models.schemes.scheme import scheme

pytestmark = pytest.mark.real
TOLERANCE = 2e-4
IDS = [int(x) for x in np.random.default_rng(7).integers(100, 49000, 40)]
STEP = Form("step", "fused", None, None, 192)
VERIFY = Form("verify", "portable", 8, 64, 192)
KEEP = replace(scheme("keep"), accuracy_level=0)


def test_fp32_and_keep_equal_the_reference(lab: Any, smollm2_gguf: Path, tmp_path: Path) -> None:
    model = open_checkpoint(smollm2_gguf)
    tiny = lab.wrap(model.config, model.weights)
    want = logits(model.config, model.weights, IDS)
    for chosen, forms in ((scheme("fp32"), (STEP,)), (KEEP, (STEP, VERIFY))):
        for name, session in lab.export(tmp_path, tiny, chosen, forms).items():
            runner = lab.runners["fused" if name == STEP.name else "portable"](session, tiny, 64)
            width = len(IDS) if name == STEP.name else 8
            for i in range(0, len(IDS), width):
                assert np.abs(runner.run(IDS[i : i + width]) - want[i : i + width]).max() <= TOLERANCE
                runner.commit(range(width))
