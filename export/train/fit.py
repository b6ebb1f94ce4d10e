"""The training loop: batches of texts enter, weights leave; every checkpoint can be gone on from with the same result.

The order of the texts, the chains that are unrolled and the learning rate follow from the seed and the number of the
step alone, so that a run that was killed ends as one that was not.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from spec_edge.export.train.measure import Acceptance, acceptance, steps
from spec_edge.export.train.packed import Packed, pack
from spec_edge.export.train.store import Place, Shards
from spec_edge.models.contract import SpecError

CLIP, WARM, FLOOR = 1.0, 0.03, 0.02
"""Largest norm of the gradients; share of the run in which the rate rises; least rate, as a share of the largest."""

BETAS = (0.9, 0.95)
CHECKPOINT, STATE = "checkpoint.safetensors", "state.json"


class Head(Protocol):
    """What is trained. weights: its tensors; depth: tokens that it drafts when it is measured."""

    @property
    def weights(self) -> Mapping[str, Tensor]: ...
    @property
    def depth(self) -> int: ...
    def loss(self, texts: Packed, noise: torch.Generator) -> Tensor: ...
    def accepted(self, texts: Packed) -> Tensor: ...


@dataclass(frozen=True)
class Settings:
    """tokens: of answers, over all passes. minutes: end the run instead, if not None. batch: answer tokens a step."""

    tokens: int
    minutes: float | None
    batch: int
    rate: float
    seed: int
    measure_every: int = 100


@dataclass
class State:
    """Where a run is.

    files  of texts that it trains on: what was written later is another run's
    curve  (answer tokens trained on, acceptance by depth) of each measurement
    """

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    loss: float = 0.0
    files: int = 0
    curve: list[tuple[int, Acceptance]] = field(default_factory=list)


Report = Callable[[State, float], None]
"""Called after each step, with the share of the run that is done."""


def batches(places: Sequence[Place], size: int, seed: int) -> Iterator[list[Place]]:
    """Texts for each step without end: pass after pass, each in an order of its own, about `size` answer tokens."""
    passes = 0
    while True:
        order = list(places)
        random.Random(seed * 1_000_003 + passes).shuffle(order)
        batch: list[Place] = []
        for place in order:
            batch.append(place)
            if sum(p.answer for p in batch) >= size:
                yield batch
                batch = []
        if batch:
            yield batch
        passes += 1


def fit(
    head: Head, shards: Shards, places: Sequence[Place], held: Sequence[Place], settings: Settings, folder: Path,
    state: State, device: torch.device, report: Report,
) -> State:  # fmt: skip
    """Train `head.weights` in place from `state` on; checkpoints into `folder` at each measurement.

    places, held: texts to train on and to measure on.
    """
    trained = [tensor.requires_grad_() for tensor in head.weights.values()]
    optimizer = torch.optim.AdamW(trained, lr=settings.rate, betas=BETAS, weight_decay=0.0)
    if state.step:
        _restore(head, optimizer, folder)
    began = time.monotonic() - state.seconds
    for number, batch in enumerate(batches(places, settings.batch, settings.seed)):
        if number < state.step:
            continue
        done = _share(state, settings)
        if done >= 1:
            break
        noise = torch.Generator().manual_seed(settings.seed * 1_000_003 + number)
        for group in optimizer.param_groups:
            group["lr"] = settings.rate * schedule(done)
        loss = head.loss(pack([shards.read(place) for place in batch], device), noise)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, CLIP)
        optimizer.step()
        value = float(loss.detach())
        state.step, state.tokens = number + 1, state.tokens + sum(place.answer for place in batch)
        state.loss, state.seconds = value if number == 0 else 0.98 * state.loss + 0.02 * value, time.monotonic() - began
        if state.step % settings.measure_every == 0:
            state.curve.append((state.tokens, measured(head, shards, held, device)))
            _keep(head, optimizer, state, folder)
        report(state, _share(state, settings))
    if not state.curve or state.curve[-1][0] != state.tokens:
        state.curve.append((state.tokens, measured(head, shards, held, device)))
    _keep(head, optimizer, state, folder)
    return state


def _share(state: State, settings: Settings) -> float:
    if settings.minutes is not None:
        return min(1.0, state.seconds / 60 / settings.minutes)
    return min(1.0, state.tokens / settings.tokens)


def schedule(done: float) -> float:
    """Learning rate as a share of the largest: up in a line, then down a half cosine."""
    if done < WARM:
        return max(done / WARM, 0.02)
    return FLOOR + (1 - FLOOR) * 0.5 * (1 + math.cos(math.pi * (done - WARM) / (1 - WARM)))


def measured(head: Head, shards: Shards, held: Sequence[Place], device: torch.device) -> Acceptance:
    """Over texts that are not trained on."""
    counts: list[int] = []
    with torch.inference_mode():
        for start in range(0, len(held), 8):
            texts = pack([shards.read(place) for place in held[start : start + 8]], device)
            counts += steps(texts, head.accepted(texts))
    return acceptance(counts, head.depth)


def _keep(head: Head, optimizer: torch.optim.Optimizer, state: State, folder: Path) -> None:
    """Weights, the optimizer's moments and the state, in one file that is whole or the one before."""
    tensors = {name: tensor.detach() for name, tensor in head.weights.items()}
    for name, tensor in head.weights.items():
        for part, value in optimizer.state.get(tensor, {}).items():
            tensors[f"{part}:{name}"] = value
    work = folder / f".{CHECKPOINT}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_file({name: t.contiguous() for name, t in tensors.items()}, work, {STATE: json.dumps(asdict(state))})
        work.replace(folder / CHECKPOINT)
    except OSError as error:
        raise SpecError(f"the checkpoint cannot be written to {folder}: {error}") from None


def _restore(head: Head, optimizer: torch.optim.Optimizer, folder: Path) -> None:
    found = load_file(folder / CHECKPOINT)
    with torch.no_grad():
        for name, tensor in head.weights.items():
            tensor.copy_(found[name])
            parts = ("step", "exp_avg", "exp_avg_sq")
            optimizer.state[tensor] = {part: found[f"{part}:{name}"].to(_place(part, tensor)) for part in parts}


def _place(part: str, tensor: Tensor) -> torch.device:
    return torch.device("cpu") if part == "step" else tensor.device


def resumed(folder: Path) -> State:
    """The state of the last checkpoint; a fresh one where there is none. SpecError: it is broken."""
    path = folder / CHECKPOINT
    if not path.is_file():
        return State()
    from safetensors import safe_open

    try:
        with safe_open(path, "pt") as file:
            raw = json.loads(file.metadata()[STATE])
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise SpecError(f"{path} is broken ({error}); train without --resume") from None
    curve = [(tokens, Acceptance(a["steps"], a["length"], tuple(a["depth"]))) for tokens, a in raw.pop("curve")]
    return State(**raw, curve=curve)
