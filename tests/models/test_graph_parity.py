"""Every form of the network equals transformers in float32, on tiny random models of every supported shape."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from spec_edge.models.forms import Form
from spec_edge.models.schemes.scheme import scheme

TOLERANCE = 2e-4
SLOTS, TABLE, N = 64, 192, 40
STEPS = {name: Form("step", name, None, None, TABLE) for name in ("fused", "portable")}
STATIC = [Form("verify", name, s, SLOTS, TABLE) for name in ("portable", "fused") for s in (1, 2, 8)]
PREFILL = [Form("prefill", name, 16, SLOTS, TABLE) for name in ("portable", "fused")]
FORMS = [*STEPS.values(), *STATIC, *PREFILL]
NAMES = (
    "llama-gqa-tied",
    "llama-mha-untied",
    "llama-one-kv-head",
    "llama3-rope",
    "qwen2-bias-tied",
    "qwen2-bias-untied",
)
IDS = [int(x) for x in np.random.default_rng(5).integers(0, 256, N)]
Start = Callable[[Form], Any]


@pytest.fixture(scope="module", params=NAMES)
def bench(request: pytest.FixtureRequest, lab: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Start]:
    """(transformers' logits and hidden states of IDS, a fresh runner for a form)."""
    tiny = lab.tiny(request.param)
    sessions = lab.export(tmp_path_factory.mktemp(request.param), tiny, scheme("fp32"), FORMS)
    return lab.hf_logits(tiny, IDS), lambda f: lab.runners[f.lowering](sessions[f.name], tiny, SLOTS)


def error(a: NDArray[Any], b: NDArray[Any]) -> float:
    assert np.isfinite(a).all()
    return float(np.abs(a - b).max())


@pytest.mark.parametrize("form", STEPS.values(), ids=list(STEPS))
def test_any_width_whole_text_then_step_by_step(bench: tuple[Any, Start], form: Form) -> None:
    (logits, hidden), start = bench
    whole = start(form)
    assert error(whole.run(IDS), logits) <= TOLERANCE
    assert error(whole.out["hidden"][0], hidden) <= TOLERANCE

    split = start(form)
    assert error(split.run(IDS[:30], rows=[29]), logits[29:30]) <= TOLERANCE
    split.commit(range(30))
    for i in range(30, N):
        assert error(split.run(IDS[i : i + 1]), logits[i : i + 1]) <= TOLERANCE
        split.commit([0])


@pytest.mark.parametrize("form", STATIC, ids=lambda f: f.name)
def test_static_verify_widths(bench: tuple[Any, Start], form: Form) -> None:
    (logits, hidden), start = bench
    runner, s = start(form), form.width
    assert s is not None
    for i in range(0, N, s):
        assert error(runner.run(IDS[i : i + s]), logits[i : i + s]) <= TOLERANCE
        assert error(runner.out["hidden"][0], hidden[i : i + s]) <= TOLERANCE
        runner.commit(range(s))


def test_portable_prefill_is_padded_on_the_left(bench: tuple[Any, Start]) -> None:
    """40 ids in chunks of 16: the last one holds 8 pads, whatever they are."""
    (logits, _), start = bench
    runner = start(PREFILL[0])
    for first in (0, 16):
        last = runner.run(IDS[first : first + 16])
        assert last.shape == (1, 256)
        assert error(last[0], logits[first + 15]) <= TOLERANCE
        runner.commit(range(16))
    pads, real = 8, IDS[32:]
    seen = np.tril(np.ones((16, 16), bool))
    seen[pads:, :pads] = False
    depth = [-1 - runner.length] * pads + list(range(len(real)))
    results = [runner.run([pad] * pads + real, depth, seen).copy() for pad in (0, 255)]
    assert error(results[0][0], logits[-1]) <= TOLERANCE
    assert np.array_equal(*results)


def test_fused_prefill_in_full_chunks(bench: tuple[Any, Start]) -> None:
    (logits, _), start = bench
    runner = start(PREFILL[1])
    for first in (0, 16):
        assert error(runner.run(IDS[first : first + 16])[0], logits[first + 15]) <= TOLERANCE
        runner.commit(range(16))


@pytest.mark.parametrize("form", [*STEPS.values(), STATIC[2], STATIC[5]], ids=lambda f: f.name)
def test_tree_equals_each_branch_alone(bench: tuple[Any, Start], form: Form) -> None:
    """Rows 0 | 1 2 3 | 4 5 6 7: two branches under one root; then the second one is committed and goes on."""
    (_, _), start = bench
    parents = [-1, 0, 1, 2, 0, 4, 5, 6]
    depth, mask = [0], np.eye(8, dtype=bool)
    for row, parent in list(enumerate(parents))[1:]:
        depth.append(depth[parent] + 1)
        mask[row] |= mask[parent]
    tree, chain = start(form), start(STEPS[form.lowering])
    prompt, block, after = IDS[:10], IDS[10:18], IDS[20:28]
    for runner in (tree, chain):
        prefill(runner, start(STEPS[form.lowering]), prompt)
    logits = tree.run(block, depth, mask)
    for path in ([0, 1, 2, 3], [0, 4, 5, 6, 7]):
        assert error(chain.run([block[r] for r in path]), logits[path]) <= TOLERANCE
    chain.commit(range(5))
    tree.commit([0, 4, 5, 6, 7])
    assert error(tree.run(after), chain.run(after)) <= TOLERANCE


def prefill(runner: Any, any_width: Any, ids: list[int]) -> None:
    """Fill the cache of a fixed-width runner from an any-width one."""
    any_width.run(ids)
    any_width.commit(range(len(ids)))
    runner.cache = {name: buffer.copy() for name, buffer in any_width.cache.items()}
    runner.length = any_width.length


@pytest.mark.parametrize("form", [STATIC[2], STATIC[5]], ids=lambda f: f.name)
def test_rejected_and_pad_rows_change_no_bit_of_the_others(bench: tuple[Any, Start], form: Form) -> None:
    """Rows 0..3 are real; rows 4..7 hang beside them and change."""
    (_, _), start = bench
    mask = np.eye(8, dtype=bool)
    mask[:4, :4] = np.tril(np.ones((4, 4), bool))
    mask[4:, 0] = True
    depth = [0, 1, 2, 3, 1, 1, 1, 1]
    results = []
    for other in (0, 99, 255):
        runner = start(form)
        prefill(runner, start(STEPS[form.lowering]), IDS[:10])
        results.append(runner.run([*IDS[10:14], *[other] * 4], depth, mask)[:4].copy())
    assert np.array_equal(results[0], results[1])
    assert np.array_equal(results[0], results[2])


def test_half_precision_portable_forms(lab: Any, tmp_path: Path) -> None:
    """float16 activations and weights: within float16's noise of the float32 graph, pads and all."""
    tiny = lab.tiny("llama-gqa-tied")
    forms = [Form(r, "portable", s, SLOTS, TABLE, "float16") for r, s in (("verify", 8), ("prefill", 16))]
    sessions = lab.export(tmp_path, tiny, scheme("fp16"), [*forms, STEPS["fused"]])
    logits, _ = lab.hf_logits(tiny, IDS[:16])
    scale = np.abs(logits).max()
    runner = lab.runners["portable"](sessions[forms[0].name], tiny, SLOTS)
    for i in (0, 8):
        out = runner.run(IDS[i : i + 8])
        assert out.dtype == np.float16
        assert error(out.astype(np.float32), logits[i : i + 8]) <= 0.02 * scale
        runner.commit(range(8))
    whole = lab.runners["portable"](sessions[forms[1].name], tiny, SLOTS).run(IDS[:16])
    assert error(whole[0].astype(np.float32), logits[15]) <= 0.02 * scale
    step = lab.runners["fused"](sessions["step-fused"], tiny, SLOTS).run(IDS[:16])
    assert error(step, logits) <= 0.02 * scale
