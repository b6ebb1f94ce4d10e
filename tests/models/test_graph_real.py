"""Graphs of the real SmolLM2 equal the numpy reference, in float32 and with the file's own quantised values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spec_edge.export.reference_law import KINDS, check_ids
from spec_edge.models.forms import Form
from spec_edge.models.open import open_checkpoint
from spec_edge.models.reference import logits
from spec_edge.models.schemes.scheme import scheme

pytestmark = pytest.mark.real
TOLERANCE = 2e-4
STEP = Form("step", "fused", None, None, 192)
VERIFY = Form("verify", "portable", 8, 64, 192)
KEEP = replace(scheme("keep"), accuracy_level=0)


def test_fp32_and_keep_equal_the_reference(lab: Any, smollm2_gguf: Path, tmp_path: Path) -> None:
    model = open_checkpoint(smollm2_gguf)
    tiny = lab.wrap(model.config, model.weights)
    ids = check_ids(model, model.config.context)[0][:40]
    want = logits(model.config, model.weights, ids)
    for chosen, forms in ((scheme("fp32"), (STEP,)), (KEEP, (STEP, VERIFY))):
        for name, session in lab.export(tmp_path, tiny, chosen, forms).items():
            runner = lab.runners["fused" if name == STEP.name else "portable"](session, tiny, 64)
            width = len(ids) if name == STEP.name else 8
            for i in range(0, len(ids), width):
                assert np.abs(runner.run(ids[i : i + width]) - want[i : i + width]).max() <= TOLERANCE
                runner.commit(range(width))


LENGTH, SLOTS, TABLE = 300, 384, 448
FORMS = (
    Form("step", "fused", None, None, TABLE),
    Form("step", "portable", None, None, TABLE),
    Form("verify", "fused", 4, SLOTS, TABLE),
    Form("verify", "portable", 4, SLOTS, TABLE),
)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_fp32_equals_transformers_over_300_tokens(
    form: Form, lab: Any, smollm2_gguf: Path, smollm2_in_transformers: dict[str, Any], tmp_path: Path
) -> None:
    """As a prefill and step by step where the width is free; four rows at a time where it is fixed."""
    import torch

    model = open_checkpoint(smollm2_gguf)
    ids = [i for text in check_ids(model, model.config.context) for i in text[: LENGTH // len(KINDS)]]
    with torch.no_grad():
        want = smollm2_in_transformers["model"](torch.tensor([ids])).logits[0].numpy()
    tiny = lab.wrap(model.config, model.weights)
    session = lab.export(tmp_path, tiny, scheme("fp32"), (form,))[form.name]
    for width in (form.width,) if form.width else (LENGTH, 1):
        runner = lab.runners[form.lowering](session, tiny, SLOTS)
        for i in range(0, LENGTH, width):
            assert np.abs(runner.run(ids[i : i + width]) - want[i : i + width]).max() <= TOLERANCE
            runner.commit(range(width))
