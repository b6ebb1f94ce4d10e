"""SmolLM2 in fp32, the whole path from prompt to tokens: greedy text is what transformers gives, whoever drafts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spec_edge.runtime import load
from spec_edge.runtime.divergence import divergence

pytestmark = pytest.mark.real
NEW_TOKENS = 64
FP32_NOISE = 1e-4
"""Largest change of a logit with the width that was measured on SmolLM2 in fp32 (4,977 tokens: 9.2e-5)."""

PROMPTS = (
    "List three tips for a good night's sleep.",
    "Write a Python function that reverses a list.",
    "A train travels 60 km in 45 minutes. What is its average speed in km/h?",
    "Translate to French: The cat sleeps on the warm stone.",
    "Why do leaves change colour in autumn?",
    "Write a haiku about rain.",
    "Summarise in one sentence: The meeting was moved from Monday to Thursday because two of the speakers were ill.",
    "What is the difference between a list and a tuple in Python?",
    "Name five animals that live in the desert.",
    "Explain how a bicycle stays upright.",
    "Give me a recipe for pancakes.",
    "Convert this to JSON: name Ada, age 36, city London.",
    "Who wrote Romeo and Juliet, and when?",
    "Continue the story: The lighthouse had been dark for a year when",
    "What is 17 times 23? Show the steps.",
    "Write a polite email asking for a day off.",
    "Fix the grammar: she go to school every days.",
    "List the planets of the solar system in order.",
    "Repeat the word 'echo' five times, separated by commas.",
    "What does the HTTP status code 404 mean?",
)


def _transformers_greedy(model: Any, ids: list[int], eos: tuple[int, ...]) -> list[int]:
    import torch

    options = {"do_sample": False, "max_new_tokens": NEW_TOKENS, "eos_token_id": list(eos), "pad_token_id": eos[0]}
    with torch.no_grad():
        out = model.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.int64), **options)
    new: list[int] = out[0, len(ids) :].tolist()
    return [token for token in new if token not in eos]


def test_greedy_text_is_the_targets_own(fp32_bundle: Path, smollm2_in_transformers: dict[str, Any]) -> None:
    parted = []
    with load(fp32_bundle) as llm:
        for prompt in PROMPTS:
            ids = llm.text.encode_chat([{"role": "user", "content": prompt}])
            theirs = _transformers_greedy(smollm2_in_transformers["model"], ids, llm.bundle.manifest.text.eos_ids)
            for method in ("plain", "prompt-lookup"):
                ours = llm.generate(prompt, method=method, max_new_tokens=NEW_TOKENS)
                found = divergence(llm.session, ids, theirs, ours.tokens, (2, 4, 8))
                if found is None:
                    assert list(ours.tokens) == theirs
                else:
                    assert abs(found.margin) <= 2 * FP32_NOISE, f"{prompt!r}, {method}: {found}"
                    parted.append(found)
    assert len(parted) <= 1, parted
