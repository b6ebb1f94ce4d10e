"""Medusa from checkpoint to text on exported bundles: the target's own greedy text, whatever the heads say, and heads
that were fitted to a text accepted to the depth of the tree, which they are only if states, positions and masks agree.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tokenizers import Tokenizer

from spec_edge.models.open import open_checkpoint
from spec_edge.models.reference import hidden_states
from spec_edge.runtime import load
from spec_edge.runtime.bundle import open_bundle
from spec_edge.runtime.drafters import medusa
from spec_edge.runtime.drafters.options import DrafterOptions
from spec_edge.runtime.engine import Engine, Limits
from spec_edge.runtime.providers.opening import on_cpu
from spec_edge.runtime.sessions.medusa import MedusaSession
from spec_edge.runtime.sessions.static import StaticSession

PROMPT, NEW, DEPTH = "hello", 56, 3
PROMPTS = (PROMPT, "a", "x = y + 1; print(x)")


@pytest.fixture(scope="module")
def target(bench: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights large enough that its greedy text does not repeat itself."""
    return bench.target(tmp_path_factory.mktemp("target") / "big", seed=2, scale=4.0)


@pytest.fixture(scope="module")
def overfitted(target: Path) -> tuple[list[int], NDArray[np.float32]]:
    """The greedy text after the prompt, by the numpy forward, and its hidden states."""
    checkpoint = open_checkpoint(target)
    head = checkpoint.weights.dense("lm_head.weight")
    ids = Tokenizer.from_str(checkpoint.text.tokenizer_json.decode()).encode(PROMPT).ids
    for _ in range(NEW + DEPTH):
        states = hidden_states(checkpoint.config, checkpoint.weights, [ids])
        ids.append(int((head @ states[-1]).argmax()))
    assert len(set(ids)) > 40 and 256 not in ids
    return ids, states


def fitted(bench: Any, folder: Path, ids: list[int], states: NDArray[np.float32], rank: int = 0) -> Path:
    """Random residual blocks, and output matrices solved so that head i gives token t + 2 + i at each t, as its choice
    of this rank (0: the first)."""
    tensors = bench.medusa_tensors(DEPTH)
    prompt = len(ids) - NEW - DEPTH
    for i in range(DEPTH):
        at = np.arange(prompt - 1, len(ids) - 2 - i)
        x = states[at].astype(np.float64)
        y = x @ tensors[f"{i}.0.linear.weight"].T + tensors[f"{i}.0.linear.bias"]
        x = x + y / (1 + np.exp(-y))
        wanted = np.zeros((len(at), bench.vocab))
        for row, t in enumerate(at):
            wanted[row, ids[t + 2 + i]] = 6
            for n in range(rank):
                wanted[row, (ids[t + 2 + i] + 1 + n) % bench.vocab] = 12 - n
        tensors[f"{i}.1.weight"] = np.ascontiguousarray(np.linalg.lstsq(x, wanted, rcond=None)[0].T, np.float32)
    config = {"medusa_num_heads": DEPTH, "medusa_num_layers": 1}
    return bench.drafter(folder, tensors, config, "medusa_lm_head.safetensors")


@pytest.fixture(scope="module")
def bundles(
    bench: Any,
    target: Path,
    overfitted: tuple[list[int], NDArray[np.float32]],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Path]:
    """One bundle for each kind of heads."""
    folder = tmp_path_factory.mktemp("bundles")
    table = open_checkpoint(target).weights.dense("lm_head.weight")
    worst = bench.medusa_tensors(DEPTH)
    for i in range(DEPTH):  # adversarial: what the target finds least likely next, with great confidence
        worst[f"{i}.0.linear.weight"][:] = 0
        worst[f"{i}.0.linear.bias"][:] = 0
        worst[f"{i}.1.weight"] = -5 * table
    heads = {
        "random": bench.medusa(folder / "random-heads", DEPTH),
        "borrowing": bench.medusa(folder / "borrowing-heads", DEPTH, own=False),
        "adversarial": bench.drafter(folder / "worst", worst, {}, "medusa_lm_head.safetensors"),
        "fitted": fitted(bench, folder / "fitted-heads", *overfitted),
        "second": fitted(bench, folder / "second-heads", *overfitted, rank=1),
    }
    return {
        name: bench.bundle(target, folder / name, "--medusa", path, widths="8,16,32") for name, path in heads.items()
    }


@pytest.mark.parametrize("width", [8, 16, 32])
@pytest.mark.parametrize("heads", ["random", "borrowing", "adversarial", "fitted"])
def test_greedy_text_is_the_targets(bundles: dict[str, Path], heads: str, width: int) -> None:
    with load(bundles[heads], threads=1) as llm:
        for prompt in PROMPTS:
            plain = llm.generate(prompt, chat=False, max_new_tokens=60, method="plain")
            for tree in (None, "best", "mc_sim_7b_63", "3,2"):
                got = llm.generate(prompt, chat=False, max_new_tokens=60, method="medusa", width=width, tree=tree)
                assert got.tokens == plain.tokens and got.stats.drafted > 0


@pytest.mark.parametrize("width", [8, 16, 32])
def test_fitted_heads_are_accepted_to_the_depth_of_the_tree(
    bundles: dict[str, Path], overfitted: tuple[list[int], NDArray[np.float32]], width: int
) -> None:
    with load(bundles["fitted"], threads=1) as llm:
        got = llm.generate(PROMPT, chat=False, max_new_tokens=1 + 4 * 13, method="medusa", width=width, tree="1,1,1")
        assert list(got.tokens) == overfitted[0][-NEW - DEPTH :][: 1 + 4 * 13]
        assert got.stats.acceptance_length == DEPTH + 1 and got.stats.accepted_by_position == (13,) * DEPTH
        grown = llm.generate(PROMPT, chat=False, max_new_tokens=1 + 4 * 13, method="medusa", width=width)
        assert grown.stats.acceptance_length == DEPTH + 1
        missed = llm.generate("other", chat=False, max_new_tokens=53, method="medusa", width=width)
        assert missed.stats.acceptance_length < 2, "the heads know this text and no other"


def test_a_right_second_choice_is_found_by_a_tree(bundles: dict[str, Path]) -> None:
    with load(bundles["second"], threads=1) as llm:
        options: dict[str, Any] = {"chat": False, "max_new_tokens": 1 + 4 * 13, "method": "medusa", "width": 16}
        chain = llm.generate(PROMPT, tree="1,1,1", **options)
        tree = llm.generate(PROMPT, tree="2,2,2", **options)
        paths = llm.generate(PROMPT, tree=[(1,), (1, 1), (1, 1, 1)], **options)
    assert chain.stats.accepted <= 3
    assert tree.stats.acceptance_length == paths.stats.acceptance_length == DEPTH + 1
    assert tree.stats.drafted == 13 * 14 and paths.stats.drafted == 13 * 3


def test_the_next_prompt_of_a_conversation(bundles: dict[str, Path]) -> None:
    """Texts one after the other on one model, each with the features of its own prompt."""
    with load(bundles["fitted"], threads=1) as llm:
        for _ in range(2):
            got = llm.generate(PROMPT, chat=False, max_new_tokens=1 + 4 * 10, method="medusa", width=8, tree="1,1,1")
            assert got.stats.acceptance_length == DEPTH + 1
            llm.generate("something else", chat=False, max_new_tokens=9, method="suffix+medusa")


@pytest.mark.parametrize("width", [8, 16, 32])
def test_static_graphs_give_the_same(bundles: dict[str, Path], width: int) -> None:
    """Portable graphs of fixed shapes, as an NPU runs them: target and heads."""
    bundle = open_bundle(bundles["fitted"])
    session, heads = (
        StaticSession(bundle, on_cpu(bundle, 1)),
        MedusaSession(bundle, on_cpu(bundle, 1), lowering="portable"),
    )
    with load(bundle.folder, threads=1) as llm:
        ids = llm.text.encode_prompt(PROMPT)
        want = llm.generate(PROMPT, chat=False, max_new_tokens=1 + 4 * 12, method="plain").tokens
    drafter = medusa.Medusa(heads, DrafterOptions(tree=(1, 1, 1)))
    engine = Engine(session, drafter, limits=Limits(1 + 4 * 12, width=width))
    list(engine.generate(ids))
    assert engine.tokens == list(want) and engine.stats.acceptance_length == DEPTH + 1
    again = [token for chunk in engine.generate(ids, reuse=True) for token in chunk]
    assert again == list(want) and engine.stats.acceptance_length == DEPTH + 1
    session.close()
    heads.close()


@pytest.mark.parametrize("method", ["suffix+medusa", "prompt-lookup+medusa", "lookahead+medusa"])
@pytest.mark.parametrize("hybrid", ["merge", "cascade"])
def test_hybrids(bundles: dict[str, Path], method: str, hybrid: str) -> None:
    for heads in ("random", "fitted"):
        with load(bundles[heads], threads=1) as llm:
            plain = llm.generate(PROMPT, chat=False, max_new_tokens=50, method="plain")
            got = llm.generate(PROMPT, chat=False, max_new_tokens=50, method=method, hybrid=hybrid, width=16)
            assert got.tokens == plain.tokens
            if heads == "fitted":
                assert got.stats.steps_by_drafter["medusa"] > 5 and got.stats.acceptance_length > DEPTH
            off = llm.generate(PROMPT, chat=False, max_new_tokens=50, method=method, off=["medusa"])
            assert off.tokens == plain.tokens and "medusa" not in off.stats.steps_by_drafter


def test_sampled_text_ends_where_it_should(bundles: dict[str, Path]) -> None:
    """The law is tested on the toy; here: seeds repeat, and penalties and stops go through the same engine."""
    with load(bundles["fitted"], threads=1) as llm:
        options: dict[str, Any] = {
            "chat": False,
            "max_new_tokens": 40,
            "method": "medusa",
            "temperature": 0.7,
            "seed": 5,
        }
        one, two = (llm.generate(PROMPT, repetition_penalty=1.1, **options) for _ in range(2))
        assert one.tokens == two.tokens and one.stats.drafted > 0 and not one.stats.lossy
        lossy = llm.generate(PROMPT, accept="typical", **options)
        assert lossy.stats.lossy
