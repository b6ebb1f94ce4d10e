"""SmolLM2 in fp32 as its own draft model: every drafted token is accepted, greedy and drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from spec_edge.runtime import load

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("own_cache")]


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_self_draft_is_always_right(fp32_bundle: Path, temperature: float) -> None:
    with load(fp32_bundle, draft=fp32_bundle) as llm:
        no_end = dict.fromkeys(llm.bundle.manifest.text.eos_ids, -100.0)
        got = llm.generate(
            "List three fruits and describe each.",
            method="draft",
            max_new_tokens=1 + 8 * 5,
            draft_tokens=4,
            draft_confidence=0.0,
            temperature=temperature,
            seed=3,
            logit_bias=no_end,
        )
    # Drawn tokens are accepted with min(1, p/q): kernels of another width move p by parts in a million.
    assert got.stats.acceptance_length == 5 and got.stats.accepted_by_position == (8, 8, 8, 8)
