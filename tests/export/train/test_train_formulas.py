"""The target, the drafters' steps and the losses in torch, against numpy written from the formulas."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from spec_edge.export.drafter_files import open_files
from spec_edge.export.train import eagle, medusa
from spec_edge.export.train.generate import Generated, Job, generate
from spec_edge.export.train.heads import EagleHead, MedusaHead, published_eagle, published_medusa
from spec_edge.export.train.packed import pack
from spec_edge.export.train.publish import publish, starting_weights
from spec_edge.export.train.target import Target
from spec_edge.models import eagle_reference
from spec_edge.models.drafter import kind_of
from spec_edge.models.open import open_checkpoint
from spec_edge.models.reference import hidden_states

CPU = torch.device("cpu")
TAPS = (0, 1, 2)


@pytest.fixture(scope="module")
def target(learnable: Path) -> Any:
    checkpoint = open_checkpoint(learnable)
    return checkpoint, Target(checkpoint.config, checkpoint.weights, TAPS, CPU)


@pytest.fixture(scope="module")
def texts(target: Any) -> list[Generated]:
    """Two texts of different lengths, their states as they were when they were written."""
    jobs = [Job((5, 6, 7, 8), 12, 0.0), Job((5, 6, 9, 1, 4, 4), 9, 1.0)]
    made: list[Generated] = generate(target[1], jobs, (), 2, 3, lambda _: None)
    return made


@pytest.fixture(scope="module", params=["eagle3", "eagle1"])
def net(target: Any, request: pytest.FixtureRequest) -> Any:
    ids = torch.arange(257) if request.param == "eagle1" else torch.arange(0, 257, 2)
    return eagle.net_of(target[1], request.param, ids)


def test_states_are_those_of_the_reference(target: Any, texts: list[Generated]) -> None:
    """Written in a batch of ragged texts, refilled, with a shared beginning; read again by numpy."""
    checkpoint, _ = target
    for text in texts:
        seen: dict[str, Any] = {}
        ids = np.array(text.ids[:-1])
        wanted = hidden_states(checkpoint.config, checkpoint.weights, [ids], seen.__setitem__)
        np.testing.assert_allclose(text.hidden.numpy(), wanted, atol=4e-3)
        inputs = [seen[f"model.layers.{i}.input_layernorm"] for i in (0, 1)] + [seen["model.norm"]]
        np.testing.assert_allclose(text.taps.numpy(), np.concatenate(inputs, 1), atol=4e-3)
    greedy = texts[0]
    head = checkpoint.weights.dense("lm_head.weight")
    assert greedy.ids[4:] == tuple((greedy.hidden.float().numpy() @ head.T).argmax(1)[3:].tolist())


def test_more_jobs_than_slots_give_the_same_greedy_texts(target: Any) -> None:
    jobs = [Job((5, 6, i, 2 * i), 6 + i, 0.0) for i in range(9)]
    alone = [generate(target[1], [job], (), 1, 0, lambda _: None)[0] for job in jobs]
    together = generate(target[1], jobs, (), 2, 0, lambda _: None)
    assert [one.ids for one in together] == [one.ids for one in alone]


def _opened(published: Any, folder: Path, config: Any) -> Any:
    folder.mkdir()
    publish(folder, *published, "")
    with ExitStack() as stack:
        files = open_files(folder, stack)
        kind = kind_of(files)
        assert kind is not None
        return kind.open(files, config)


def test_steps_are_those_of_the_published_drafter(
    net: Any, target: Any, texts: list[Generated], tmp_path: Path
) -> None:
    """Published, read back by the reader of checkpoints, and run by its numpy forward: every chain, every step."""
    checkpoint, _ = target
    w = eagle.fresh(net, 128, 1)
    head = EagleHead(net, w)
    opened = _opened(published_eagle(head, TAPS), tmp_path / "heads", checkpoint.config).net
    half = {name: value.half().float() for name, value in w.items()}
    packed, chains = pack(texts, CPU), {}
    for step in eagle.unroll(net, half, packed, iter([None, None])):
        for i, row in enumerate(step.starts.tolist()):
            chains[row, step.number] = step.logits[i].numpy(), step.hidden[i].numpy()
        if step.number == 2:
            break
    first = 0
    for text in texts:
        reads = (text.taps if net.wide else text.hidden).float().numpy()
        features = eagle_reference.fused(opened, opened.weights, reads)
        for row in range(text.prompt - 1, len(text.ids) - 2):
            fed = list(features[: row + 1])
            for number in range(min(3, len(text.ids) - 2 - row)):
                ids = np.array(text.ids[1 : row + 2 + number])
                logits, hidden = eagle_reference.forward(
                    opened, opened.weights, checkpoint.weights, ids, np.array(fed, np.float32)
                )
                found, back = chains[first + row, number]
                wanted = logits[-1] if net.wide else logits[-1][net.ids.numpy()]
                np.testing.assert_allclose(found, wanted, atol=2e-3, rtol=2e-3)
                np.testing.assert_allclose(back, hidden[-1], atol=2e-3, rtol=2e-3)
                fed.append(hidden[-1])
        first += len(text.ids) - 1


def _softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_the_loss_of_one_step_is_the_cross_entropy_of_two_laws(net: Any, texts: list[Generated]) -> None:
    w, packed = eagle.fresh(net, 128, 1), pack(texts, CPU)
    step = next(eagle.unroll(net, w, packed, iter([])))
    drafted, terms, distances, first = set(net.ids.tolist()), [], [], 0
    place = {row: i for i, row in enumerate(step.starts.tolist())}
    for text in texts:
        for row in range(text.prompt - 1, len(text.ids) - 2):
            if text.ids[row + 2] in drafted:
                i = place[first + row]
                law = _softmax(text.hidden[row + 1].float().numpy() @ net.rows.numpy().T)
                terms.append(-(law * np.log(_softmax(step.logits[i].detach().numpy()))).sum())
                off = np.abs(step.hidden[i].detach().numpy() - text.hidden[row + 1].float().numpy())
                distances.append(np.where(off < 1, off**2 / 2, off - 0.5).mean())
        first += len(text.ids) - 1
    wanted = np.mean(terms) + (0 if net.wide else 10 * np.mean(distances))
    found = float(eagle.loss(net, w, packed, 1, torch.Generator()))
    assert found == pytest.approx(wanted, rel=1e-4)
    assert float(eagle.loss(net, w, packed, 3, torch.Generator().manual_seed(0))) > found


def test_medusa_losses_and_ranks(target: Any, texts: list[Generated], tmp_path: Path) -> None:
    net, packed = eagle.net_of(target[1], "medusa", torch.arange(1, 257, 2)), pack(texts, CPU)
    noise = torch.Generator().manual_seed(2)
    w = {name: torch.randn(t.shape, generator=noise) / 8 for name, t in medusa.fresh(net, 3).items()}
    rows, drafted, wanted = net.rows.numpy(), net.ids.tolist(), 0.0
    ranks: dict[tuple[int, int, int], int] = {}
    for head in range(3):
        weight, bias = (w[f"blocks.{head}.layers.0.{part}"].numpy() for part in ("weight", "bias"))
        terms = []
        for number, text in enumerate(texts):
            for row in range(text.prompt - 1, len(text.ids) - 2 - head):
                x = text.hidden[row].float().numpy()
                y = weight @ x + bias
                logits = rows @ (x + y / (1 + np.exp(-y)))
                token = text.ids[row + 2 + head]
                best = [drafted[i] for i in np.argsort(-logits)[: medusa.RANKS]]
                ranks[number, row, head] = best.index(token) if token in best else medusa.RANKS
                if token in drafted:
                    terms.append(-np.log(_softmax(logits)[drafted.index(token)]))
        wanted += 0.8**head * np.mean(terms)
    assert float(medusa.loss(net, w, packed, 3)) == pytest.approx(wanted, rel=1e-4)
    found = medusa.ranks(net, w, packed, 3)
    for i, (row, number) in enumerate(zip(packed.starts.tolist(), packed.text.tolist(), strict=True)):
        for head in range(3):
            assert found[i, head] == ranks.get((number, row - packed.first[number], head), medusa.RANKS)
    head = MedusaHead(net, w, 3)
    opened = _opened(published_medusa(head, [[0.5]] * 3), tmp_path / "m", target[0].config)
    assert opened.heads == 3


def test_heads_can_be_gone_on_from_with_other_ids(target: Any, tmp_path: Path) -> None:
    net = eagle.net_of(target[1], "eagle3", torch.arange(0, 100))
    w = eagle.fresh(net, 128, 1)
    w["lm_head.weight"] += 1
    head = EagleHead(net, w)
    publish(folder := _made(tmp_path / "heads"), *published_eagle(head, TAPS), "")
    start, other = starting_weights(folder, target[0].config), eagle.net_of(target[1], "eagle3", torch.arange(50, 150))
    fresh = eagle.fresh(other, 128, 9)
    start.into(fresh, other.ids)
    torch.testing.assert_close(fresh["lm_head.weight"][:50], w["lm_head.weight"][50:].half().float())
    torch.testing.assert_close(fresh["lm_head.weight"][50:], other.rows[50:])
    torch.testing.assert_close(fresh["fc.weight"], w["fc.weight"].half().float())


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
