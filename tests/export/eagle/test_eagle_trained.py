"""A really trained drafter on its real target, where a machine has it: SPEC_EDGE_TEST_EAGLE names its folder.

.ci/slow/eagle_acceptance.py compares it in full; this is the short form.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spec_edge.export.candidate import Plan, finish, start
from spec_edge.export.drafters import attach, check_drafters
from spec_edge.export.reference_law import ReferenceLaw
from spec_edge.models.contract import KindQuality, Quality
from spec_edge.models.open import open_checkpoint
from spec_edge.runtime import load
from spec_edge.runtime import manifest as schema
from spec_edge.runtime.bundle import open_bundle
from spec_edge.runtime.quality import Reference
from spec_edge.targets.target import target

QUESTION = "Tom has 12 apples and buys 5 bags with 7 apples each. How many apples does he have?"
TRAINED = os.environ.get("SPEC_EDGE_TEST_EAGLE")


@pytest.mark.real
@pytest.mark.skipif(
    TRAINED is None, reason="no trained drafter here: none ships, and SPEC_EDGE_TEST_EAGLE names no folder of one"
)
def test_a_trained_drafter_is_as_good_as_elsewhere(smollm2_gguf: Path, tmp_path: Path) -> None:
    """vLLM gives 1.83 on arithmetic word problems; a chain of 4 here is 1.85, and the text is the target's."""
    folder = tmp_path / "bundle"
    one: Any = np.zeros((1, 1), np.float32)
    law = ReferenceLaw(
        Reference(
            ("prose",), np.array([0, 1]), np.zeros(1, np.int32), one.astype(np.int32), one, np.zeros(1, np.float32)
        ),
        one,
        {},
    )
    with ExitStack() as stack:
        checkpoint = open_checkpoint(smollm2_gguf)
        found = attach({"eagle": Path(str(TRAINED))}, checkpoint.config, stack)
        plan = Plan(checkpoint, replace(target("cpu"), buckets=(512,)), 512, (1, 8), found)
        quality = Quality(0.0, 1.0, 1, "prose", (KindQuality("prose", 0.0, 1.0, 1),))
        candidate = finish(start(plan, "fp32", folder, {}), plan, law, quality, None)
        (folder / "bundle.json").write_bytes(schema.write(candidate.manifest))
        check_drafters(candidate.drafters, open_bundle(folder), checkpoint.weights)
    with load(folder) as llm:
        plain = llm.generate(QUESTION, method="plain", max_new_tokens=64)
        chain = llm.generate(QUESTION, method="eagle", max_new_tokens=64, draft_tokens=4, draft_confidence=0.0)
        tree = llm.generate(QUESTION, method="eagle", max_new_tokens=64, width=32)
    assert chain.tokens == tree.tokens == plain.tokens
    assert 1.7 < chain.stats.acceptance_length < 2.0 and 2.7 < tree.stats.acceptance_length < 3.4
    assert chain.stats.accepted_by_position[0] in (9, 10, 11)
