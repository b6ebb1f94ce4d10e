"""SmolLM2 as it is exported by default, on the native kernels: every method writes plain decoding's very text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from spec_edge.runtime import load, quality
from spec_edge.runtime.api import LLM
from spec_edge.runtime.bench import curve
from spec_edge.runtime.bundle import open_bundle
from spec_edge.runtime.options import Options
from spec_edge.runtime.providers.opening import opener
from spec_edge.runtime.providers.provider import provider
from spec_edge.runtime.sessions.choose import open_session

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("native_kernels")]
NEW_TOKENS, WIDTHS = 48, (3, 8, 16)
HEADS = ("eagle", "medusa", "suffix+eagle", "suffix+medusa")
METHODS = (*HEADS, "auto", "prompt-lookup", "suffix", "lookahead", "draft", "suffix+draft", "lookahead+prompt-lookup")
PROMPTS = (
    "Repeat after me, three times: the quick brown fox jumps over the lazy dog.",
    "What is 17 times 23? Show the steps.",
)


@pytest.fixture(scope="module")
def llm(fp32_bundle: Path, default_bundle: Path) -> LLM:
    return load(default_bundle, draft=fp32_bundle)


def _text(llm: LLM, ids: list[int], **options: object) -> list[int]:
    engine = llm.engine(Options(max_new_tokens=NEW_TOKENS, **options))  # type: ignore[arg-type]
    for _ in engine.generate(ids, reuse=False):
        pass
    return engine.ids[len(ids) :]


def test_it_is_what_the_default_bundle_runs_on(llm: LLM) -> None:
    assert llm.provider == "native" and not llm.notes
    llm.engine(Options(method="eagle"))
    llm.engine(Options(method="medusa"))
    found = {row.network: row.provider for row in llm.placement()}
    assert {found[name] for name in ("target", "eagle", "medusa")} == {"native"}


@pytest.mark.parametrize("prompt", PROMPTS)
def test_every_method_writes_the_plain_text_in_the_default_precision(llm: LLM, prompt: str) -> None:
    ids = llm.text.encode_chat([{"role": "user", "content": prompt}])
    plain = _text(llm, ids, method="plain")
    for method in METHODS:
        for width in WIDTHS:
            assert _text(llm, ids, method=method, width=width) == plain, f"{method} at width {width}"


def test_threads_change_nothing(default_bundle: Path, llm: LLM) -> None:
    ids = llm.text.encode_chat([{"role": "user", "content": PROMPTS[1]}])
    with load(default_bundle, threads=1) as alone:
        one = alone.session.prefill(ids).logits.copy()
    llm.session.truncate(0)
    np.testing.assert_array_equal(llm.session.prefill(ids).logits, one)
    llm.session.truncate(0)


def test_its_distance_from_fp32_is_the_bundles(default_bundle: Path) -> None:
    """As close as ONNX Runtime's kernels over the same weights, by whose figures the precision was chosen."""
    bundle, on = open_bundle(default_bundle), provider("native")
    reference = quality.read(bundle.path(bundle.manifest.reference).read_bytes())
    session = open_session(bundle, on, opener(bundle, on))
    found = quality.measure(reference, session)
    session.close()
    stated = bundle.manifest.quality
    assert found is not None
    assert found.kl <= 1.2 * stated.kl and found.top1 >= stated.top1 - 0.01


def test_the_benchmark_times_every_network_on_it(default_bundle: Path) -> None:
    bundle, on = open_bundle(default_bundle), provider("native")
    graphs = [g for g in bundle.manifest.graphs if g.lowering == "fused" and g.past is None]
    rows = [curve._row(bundle, graph, on, 2, len) for graph in graphs]
    assert {row["network"] for row in rows} == {"target", "eagle", "medusa"}
    assert all(min(row.get("ms", [0])) > 0 for row in rows), rows
