"""Answers written on the kernels that the bundle runs on: its own text to the bit, whatever is written beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from spec_edge.export.train.generate import Generated, Job
from spec_edge.export.train.kernels import open_kernels
from spec_edge.export.train.together import generate_together
from spec_edge.models.contract import SpecError
from spec_edge.models.drafter import AsStored
from spec_edge.models.open import open_checkpoint
from spec_edge.models.reference import hidden_states
from spec_edge.models.schemes.scheme import scheme
from spec_edge.runtime import Options, load

pytestmark = pytest.mark.usefixtures("native_kernels")
TAPS = (0, 1, 2)
JOBS = [Job((5, 6, *range(7 + i, 9 + 3 * i)), 6 + 2 * i, 0.0) for i in range(9)]


@pytest.fixture(scope="module")
def model(bench: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With heads of 32 numbers, which the kernels take."""
    folder: Path = bench.target(tmp_path_factory.mktemp("together") / "target", seed=3)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    config |= {"num_attention_heads": 2, "num_key_value_heads": 1}
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    return folder


@pytest.fixture(scope="module")
def checkpoint(model: Path) -> Any:
    return open_checkpoint(model)


def written(checkpoint: Any, most: int, slots: int, jobs: list[Job] = JOBS) -> list[Generated]:
    with open_kernels(checkpoint, "int8", TAPS, slots) as target:
        made: list[Generated] = generate_together(target, jobs, (), most, 3, lambda _: None)
    return made


@pytest.mark.parametrize(("most", "slots"), [(4, 4096), (9, 4096), (9, 420), (3, 300)])
def test_a_text_is_the_same_in_every_company(checkpoint: Any, most: int, slots: int) -> None:
    """Refilled, and with a cache so small that rows have to move: ids and features to the last bit."""
    alone = [written(checkpoint, 1, 4096, [job])[0] for job in JOBS[::4]]
    together = written(checkpoint, most, slots)
    assert [len(text.ids) for text in together] == [len(job.ids) + job.limit for job in JOBS]
    for one, other in zip(alone, together[::4], strict=True):
        assert one.ids == other.ids
        assert torch.equal(one.taps, other.taps) and torch.equal(one.hidden, other.hidden)


def test_it_is_what_the_bundle_writes(checkpoint: Any, model: Path, bench: Any, tmp_path: Path) -> None:
    bundle = bench.bundle(model, tmp_path / "bundle", precision="int8")
    with load(bundle, provider="native", strict=True, threads=1) as llm:
        for text in written(checkpoint, 9, 4096)[::3]:
            engine = llm.engine(Options(method="plain", max_new_tokens=len(text.ids) - text.prompt))
            assert [t for chunk in engine.generate(text.ids[: text.prompt]) for t in chunk] == list(
                text.ids[text.prompt :]
            )


def test_features_are_those_of_the_reference_but_for_rounded_activations(checkpoint: Any) -> None:
    stored = AsStored(checkpoint.weights, scheme("int8").pack)
    for text in written(checkpoint, 5, 4096)[::4]:
        seen: dict[str, Any] = {}
        wanted = hidden_states(checkpoint.config, stored, [np.array(text.ids[:-1])], seen.__setitem__)
        inputs = [seen[f"model.layers.{i}.input_layernorm"] for i in (0, 1)] + [seen["model.norm"]]
        for got, right in ((text.hidden, wanted), (text.taps, np.concatenate(inputs, 1))):
            error = got.float().numpy() - right
            assert np.sqrt(np.mean(error**2)) <= 0.03 * np.sqrt(np.mean(np.square(right)))


def test_drawn_texts_follow_from_the_seed(checkpoint: Any) -> None:
    jobs = [Job(job.ids, job.limit, 1.0) for job in JOBS]
    one, again = written(checkpoint, 4, 4096, jobs), written(checkpoint, 4, 4096, jobs)
    assert [t.ids for t in one] == [t.ids for t in again]
    assert [t.ids for t in one] != [t.ids for t in written(checkpoint, 4, 4096)]


def test_what_has_no_kernel_is_left_to_torch(checkpoint: Any) -> None:
    for precision, why in (("fp16", "has no kernels"), ("auto", "nothing to keep")):
        with pytest.raises(SpecError, match=why):
            open_kernels(checkpoint, precision, TAPS)
