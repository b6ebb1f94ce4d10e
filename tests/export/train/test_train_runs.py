"""`spec-export train` from a model to heads that draft, killed and gone on from, and what it refuses."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from spec_edge.runtime import load

CHANCE = 1 + 1 / 192


def trained(bench: Any, kind: str, model: Path, output: Path, *options: object) -> dict[str, Any]:
    done = bench.export("train", kind, model, "-o", output, *options, "--json")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(("kind", "least"), [("eagle", 1.7), ("medusa", 1.3)])
def test_heads_that_were_trained_draft_far_above_chance(
    kind: str, least: float, bench: Any, learnable: Path, options: tuple[object, ...], tmp_path: Path
) -> None:
    made = trained(bench, kind, learnable, tmp_path / "heads", *options, "--passes", 5)
    tokens, last = made["state"]["curve"][-1]
    assert last["length"] > least > CHANCE and tokens > 4 * made["answer_tokens"]
    assert list(last["depth"]) == sorted(last["depth"], reverse=True)
    card = (tmp_path / "heads" / "README.md").read_text("utf-8")
    assert f"spec-export train {kind} target -o heads --prompts prompts.txt --passes 5" in card
    assert str(tmp_path) not in card and f"| {tokens} |" in card
    bundle = bench.bundle(learnable, tmp_path / "bundle", f"--{kind}", tmp_path / "heads")
    with load(bundle) as llm:
        options_ = {"max_new_tokens": 60, "chat": False}
        plain = llm.generate("aa is number 3", method="plain", **options_)
        drafted = llm.generate("aa is number 3", method=kind, draft_tokens=4, draft_confidence=0.0, **options_)
    assert drafted.tokens == plain.tokens
    assert drafted.stats.acceptance_length > 1.2


def test_the_first_form_of_eagle_trains_too(
    bench: Any, learnable: Path, options: tuple[object, ...], tmp_path: Path
) -> None:
    made = trained(bench, "eagle", learnable, tmp_path / "heads", *options, "--form", "eagle1", "--passes", 3)
    assert made["state"]["curve"][-1][1]["length"] > 1.1
    bench.bundle(learnable, tmp_path / "bundle", "--eagle", tmp_path / "heads")


def test_a_run_goes_on_with_the_texts_that_it_had(
    bench: Any, learnable: Path, options: tuple[object, ...], tmp_path: Path
) -> None:
    """Other heads share the answers and may have asked for more of them in between: other ids would then be the most
    frequent ones."""
    cache = tmp_path / "cache"
    own = (*options, "--cache", cache, "--passes", 2, "--draft-vocab", 40)
    trained(bench, "eagle", learnable, tmp_path / "whole", *own)
    more = (*own, "--tokens", 15_000, "--passes", 1)
    trained(bench, "medusa", learnable, tmp_path / "other", *more)
    trained(bench, "eagle", learnable, tmp_path / "again", *own, "--resume")
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "again"))
    assert len(list((cache / "texts").glob("0*.safetensors"))) > 1
    assert all(np.array_equal(first[name], second[name]) for name in first)


def test_a_killed_run_ends_as_one_that_was_not(
    bench: Any, learnable: Path, options: tuple[object, ...], tmp_path: Path
) -> None:
    """Killed at a moment that chance chooses; the weights are then equal to the last bit, and so is the curve."""
    options = (*options, "--passes", 12)
    whole = trained(bench, "medusa", learnable, tmp_path / "whole", *options)
    cache = Path(str(options[options.index("--cache") + 1]))
    shutil.rmtree(cache / "medusa")
    arguments = [str(a) for a in ("train", "medusa", learnable, "-o", tmp_path / "killed", *options)]
    child = subprocess.Popen([sys.executable, "-m", "spec_edge.export", *arguments], stderr=subprocess.DEVNULL)
    while child.poll() is None and not (cache / "medusa" / "checkpoint.safetensors").is_file():
        time.sleep(0.01)
    time.sleep(random.random() * 0.3)
    child.kill()
    child.wait()
    assert not (tmp_path / "killed").exists()
    resumed = trained(bench, "medusa", learnable, tmp_path / "killed", *options, "--resume")
    assert resumed["state"]["curve"][-1] == whole["state"]["curve"][-1]
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "killed"))
    assert one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def test_answers_are_the_seeds_and_are_made_once(
    bench: Any, learnable: Path, options: tuple[object, ...], tmp_path: Path
) -> None:
    """A file of answers that is lost comes back the same; another seed gives others, in another folder."""
    trained(bench, "medusa", learnable, tmp_path / "a", *options, "--passes", 1)
    file = Path(str(options[options.index("--cache") + 1])) / "texts" / "00000.safetensors"
    before, made = file.read_bytes(), file.stat().st_mtime_ns
    trained(bench, "medusa", learnable, tmp_path / "b", *options, "--passes", 1)
    assert file.stat().st_mtime_ns == made
    file.unlink()
    trained(bench, "medusa", learnable, tmp_path / "c", *options, "--passes", 1)
    assert file.read_bytes() == before
    refused = bench.refused("train", "medusa", learnable, "-o", tmp_path / "d", *options, "--seed", 1)
    assert "another target, precision" in refused


@pytest.mark.parametrize(
    ("arguments", "said", "code"),
    [
        (("--prompts", "nowhere.txt"), "there is no file --prompts", 2),
        (("--tokens", 5, "--minutes", 1), "give one of them", 2),
        (("--precision", "int3"), "unknown precision", 2),
        (("--device", "nonsense"), "--device nonsense is not there", 2),
        (("--from", "nowhere"), "no heads at --from", 2),
        ((), "no chat template", 1),
    ],
)
def test_what_cannot_work_is_one_line(
    arguments: tuple[object, ...], said: str, code: int, bench: Any, learnable: Path, tmp_path: Path
) -> None:
    assert said in bench.refused("train", "eagle", learnable, "-o", tmp_path / "heads", *arguments, code=code)


def test_without_torch_the_line_to_install_it_is_given(
    no_torch: None, bench: Any, learnable: Path, tmp_path: Path
) -> None:
    del no_torch
    assert "pip install 'spec-edge[export,train]'" in bench.refused(
        "train", "medusa", learnable, "-o", tmp_path / "heads"
    )


def test_files_that_are_no_model_or_hold_no_prompts(bench: Any, learnable: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "wrong.jsonl").write_text('{"text": 1}\n')
    (tmp_path / "model").write_text("x")
    where = ("-o", tmp_path / "heads")
    assert "holds no prompts" in bench.refused(
        "train", "eagle", learnable, *where, "--prompts", tmp_path / "empty.jsonl", code=2
    )
    assert 'has no "prompt"' in bench.refused(
        "train", "eagle", learnable, *where, "--prompts", tmp_path / "wrong.jsonl", code=2
    )
    assert bench.refused("train", "eagle", tmp_path / "model", *where)
    (tmp_path / "taken").write_text("x")
    assert bench.refused("train", "eagle", learnable, "-o", tmp_path / "taken" / "heads", "--tokens", 9)
