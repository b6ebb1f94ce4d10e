"""Every method and hybrid on SmolLM2 in fp32 at three widths: the text is plain decoding's. The whole of it, on many
questions, is .ci/slow/lossless.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from spec_edge.runtime import load
from spec_edge.runtime.api import LLM
from spec_edge.runtime.divergence import Recorded, divergence
from spec_edge.runtime.options import Options

pytestmark = pytest.mark.real
NEW_TOKENS, WIDTHS, FP32_MARGIN = 20, (4, 8, 16), 2e-4
METHODS = (
    "auto",
    "prompt-lookup",
    "suffix",
    "lookahead",
    "draft",
    "lookahead+prompt-lookup",
    "suffix+draft",
    "prompt-lookup+draft",
    "lookahead+draft",
)
PROMPTS = (
    "Repeat after me, three times: the quick brown fox jumps over the lazy dog.",
    "What is 17 times 23? Show the steps.",
)


def _text(llm: LLM, ids: list[int], options: Options) -> list[int]:
    engine = llm.engine(options)
    for _ in engine.generate(ids, reuse=False):
        pass
    return engine.ids[len(ids) :]


@pytest.fixture(scope="module")
def llm(fp32_bundle: Path, default_bundle: Path) -> LLM:
    found = load(fp32_bundle, draft=default_bundle)
    found.session = Recorded(found.session)  # type: ignore[assignment]
    return found


@pytest.mark.parametrize("prompt", PROMPTS)
def test_every_method_writes_the_plain_text(llm: LLM, prompt: str) -> None:
    ids = llm.text.encode_chat([{"role": "user", "content": prompt}])
    plain = _text(llm, ids, Options(method="plain", max_new_tokens=NEW_TOKENS))
    parted = []
    for method in METHODS:
        for width in WIDTHS:
            other = _text(llm, ids, Options(method=method, width=width, max_new_tokens=NEW_TOKENS))
            found = divergence(llm.session, ids, plain, other, (2, 4, 8), llm.session.shapes)  # type: ignore[attr-defined]
            if found is not None:
                assert found.replayed, f"{method} at width {width}: {found}"
                assert abs(found.margin) <= FP32_MARGIN, f"{method} at width {width}: {found}"
                parted.append(found)
    assert len(parted) <= 1, parted
