"""`spec-export train`: a model enters, trained heads leave.

open -> prompts -> the target's own answers with its states, kept on disk -> training -> config.json and weights
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

from spec_edge.export.progress import Stages
from spec_edge.export.staging import staged
from spec_edge.export.train import eagle, medusa
from spec_edge.export.train.fit import Head, Settings, State, fit, resumed
from spec_edge.export.train.generate import Generated, Job, generate
from spec_edge.export.train.heads import (
    EagleHead,
    MedusaHead,
    Published,
    accuracy,
    chosen_taps,
    drafted,
    published_eagle,
    published_medusa,
)
from spec_edge.export.train.kernels import KernelTarget, open_kernels
from spec_edge.export.train.kinds import Turns
from spec_edge.export.train.options import TrainOptions
from spec_edge.export.train.prompts import jobs, own_turns, read_prompts, text_of
from spec_edge.export.train.publish import card, publish, starting_weights
from spec_edge.export.train.store import Place, Shards
from spec_edge.export.train.target import Target
from spec_edge.export.train.together import generate_together
from spec_edge.models.checkpoint import Checkpoint, Weights
from spec_edge.models.contract import SpecError
from spec_edge.models.drafter import AsStored
from spec_edge.models.fetch import resolve
from spec_edge.models.open import open_checkpoint
from spec_edge.models.schemes.scheme import scheme
from spec_edge.runtime.text import Text

HELD = 24
"""Every so many texts one is kept for measuring; at most MOST_HELD, and greedy ones only."""

MOST_HELD = 96
SLOTS = {"kernels": 15, "cpu": 48, "cuda": 256}
"""Texts at a time. The kernels do as many rows a second from 8 on, and few texts are soon all at their end. No power of
two: rows of one text that lie 4096 bytes apart push each other out of the processor's caches."""

OWN_TURNS = 384
CALIBRATION = 6
HALF = 0.5
"""Share of the minutes that go into the texts."""


@dataclass(frozen=True)
class Prepared:
    """A target and its texts."""

    checkpoint: Checkpoint
    target: Target
    shards: Shards
    places: tuple[Place, ...]
    held: tuple[Place, ...]


@dataclass(frozen=True)
class Trained:
    """What was made: acceptance of the texts kept apart, by answer tokens trained on."""

    folder: str
    kind: str
    answer_tokens: int
    state: State


def train(options: TrainOptions, progress: Stages) -> Trained:
    """SpecError or BadUsage in one line where something is wrong; texts and checkpoints stay for --resume."""
    began = time.monotonic()
    torch.manual_seed(options.seed)
    with staged(options.output, options.replace) as work:
        folder = options.cache / options.name
        state = resumed(folder) if options.resume else State()
        ready = _prepare(options, progress, began, state)
        head = _head(options, ready)
        state = _fit(options, ready, head, folder, state, progress)
        publish(work, *_published(options, ready, head), card(options, ready.checkpoint, ready.places, state))
    return Trained(str(options.output), options.name, sum(p.answer for p in ready.places), state)


def _prepare(options: TrainOptions, progress: Stages, began: float, state: State) -> Prepared:
    """Sets how many files of texts the run trains on, if it begins here."""
    checkpoint = open_checkpoint(resolve(options.model))
    weights = _as_deployed(checkpoint, options.precision)
    taps = chosen_taps(checkpoint.config.layers)
    given = read_prompts(options.prompts) if options.prompts else []
    stamp = hashlib.sha256(json.dumps([given, options.seed]).encode()).hexdigest()[:16]
    progress.stage("reading the target")
    target = Target(checkpoint.config, weights, taps, options.device)
    shards = Shards(options.cache / "texts", f"{checkpoint.source.sha256} {options.precision} {taps} {stamp}")
    shards.prepare()
    if not state.step:  # else it goes on with the texts that it had
        _generate(options, checkpoint, target, given, shards, progress, began)
        state.files = len(shards.numbers())
    places = shards.index(shards.numbers()[: state.files or None])
    held = [p for p in places[:: HELD if len(places) > 2 * HELD else 4] if p.answer > 8]
    held = ([p for p in held if p.greedy] or held)[:MOST_HELD]
    apart = {(p.number, p.text) for p in held}
    rest = tuple(p for p in places if (p.number, p.text) not in apart and p.answer > 3)
    if not rest or not held:
        raise SpecError("the target's answers are too few or too short to train on; ask for more --tokens or --minutes")
    target.quick = False
    return Prepared(checkpoint, target, shards, rest, tuple(held))


def _kernels(
    options: TrainOptions, checkpoint: Checkpoint, taps: tuple[int, ...], progress: Stages
) -> KernelTarget | None:
    """What the bundle will run on, where it is here. None: torch writes the answers, which a line says on a CPU."""
    if options.device.type != "cpu":
        return None
    try:
        return open_kernels(checkpoint, options.precision, taps)
    except SpecError as error:
        why = error.message
    except (OSError, MemoryError) as error:
        why = f"{tempfile.gettempdir()}: {error or 'there is no memory'}"
    progress.say(f"torch writes the answers, more slowly: {why}")
    return None


def _as_deployed(checkpoint: Checkpoint, precision: str) -> Weights:
    """The values that a bundle of this precision holds; "auto": the file's own."""
    if precision == "auto":
        return checkpoint.weights
    rounding = scheme(precision)
    rounding.check(checkpoint.weights)
    return AsStored(checkpoint.weights, rounding.pack)


def _generate(
    options: TrainOptions, checkpoint: Checkpoint, target: Target, given: list[Turns], shards: Shards,
    progress: Stages, began: float,
) -> None:  # fmt: skip
    """Files of texts until there are enough tokens, or half of the time is over."""
    text, context = text_of(checkpoint), checkpoint.config.context
    made = sum(p.answer for p in shards.index(shards.numbers()))

    def enough() -> bool:
        if options.minutes is not None:
            return time.monotonic() - began > HALF * options.minutes * 60 and bool(shards.numbers())
        return made >= options.tokens

    if enough():
        return
    with _kernels(options, checkpoint, target.taps, progress) or nullcontext() as kernels:
        answer = _answerer(options, checkpoint, target, kernels)
        given = given or _own(text, shards, answer)
        tick = progress.stage("the target's answers", options.tokens if options.minutes is None else None)
        groups = jobs(text, given, context, options.seed)
        for number, group in enumerate(groups if kernels else _warmed(groups, target)):
            if enough():
                break
            if not shards.has(number):
                shards.write(number, answer(group, number, _counter(tick, made)))
                made += sum(p.answer for p in shards.index([number]))
                progress.say(f"{made} answer tokens")
                tick(made)


def _counter(tick: Callable[[int], None], total: int) -> Callable[[int], None]:
    """Called with each ended text's tokens; `tick` gets them all, `total` and those since."""

    def count(tokens: int) -> None:
        nonlocal total
        total += tokens
        tick(total)

    return count


Answer = Callable[[list[Job], int, Callable[[int], None]], list[Generated]]


def _answerer(options: TrainOptions, checkpoint: Checkpoint, target: Target, kernels: KernelTarget | None) -> Answer:
    """By the kernels that the bundle will run on, where they are here: the texts are then its own to the bit."""
    ends = sorted(checkpoint.text.eos_ids)
    if kernels is not None:

        def answer(group: list[Job], number: int, tick: Callable[[int], None]) -> list[Generated]:
            with _torch_alone():
                return generate_together(
                    kernels, group, ends, SLOTS["kernels"], options.seed * 1_000_003 + number, tick
                )

        return answer
    slots = SLOTS.get(options.device.type, SLOTS["cuda"])
    return lambda group, number, tick: generate(target, group, ends, slots, options.seed * 1_000_003 + number, tick)


@contextmanager
def _torch_alone() -> Iterator[None]:
    """Torch on one thread: its others would spin for a while after each call, on the cores that the kernels run on."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _warmed(groups: Iterator[list[Job]], target: Target) -> Iterator[list[Job]]:
    """The same groups; on a CPU the target's 8-bit matrices are made for their prompts first."""
    if target.device.type == "cpu":
        first = next(groups)
        yield_first = sorted((job.ids for job in first), key=len)[-CALIBRATION:]
        with torch.inference_mode():
            target.quicken([ids[:512] for ids in yield_first], 1)
        yield first
    yield from groups


def _own(text: Text, shards: Shards, answer: Answer) -> list[Turns]:
    """Prompts that the target writes, kept beside the texts."""
    path = shards.folder / "prompts.jsonl"
    if not path.is_file():
        turns = own_turns(text, OWN_TURNS, lambda group: answer(group, 999_983, lambda _: None))
        if not turns:
            raise SpecError("the target wrote no prompts of its own; give --prompts FILE")
        lines = "".join(json.dumps({"prompt": turn[0]}) + "\n" for turn in turns)
        work = path.with_suffix(".partial")
        work.write_text(lines, encoding="utf-8")
        work.replace(path)
    return read_prompts(path)


def _head(options: TrainOptions, ready: Prepared) -> EagleHead | MedusaHead:
    found = starting_weights(options.start, ready.checkpoint.config) if options.start else None
    vocabulary = ready.checkpoint.text.tokens
    ids = found.ids if found and found.ids is not None and options.draft_vocab == len(found.ids) else None
    if ids is None:
        ids = drafted(ready.shards, ready.places, options.draft_vocab, vocabulary)
    net = eagle.net_of(ready.target, options.form, ids.to(options.device))
    if options.kind == "medusa":
        return MedusaHead(net, medusa.fresh(net, options.heads), options.heads)
    inner = options.inner or ready.checkpoint.config.intermediate_size
    weights = eagle.fresh(net, inner, options.seed)
    if found:
        found.into(weights, ids)
    return EagleHead(net, weights)


def _fit(
    options: TrainOptions, ready: Prepared, head: Head, folder: Path, state: State, progress: Stages
) -> State:  # fmt: skip
    tokens = sum(p.answer for p in ready.places) * options.passes
    left = None if options.minutes is None else options.minutes * 60 * HALF / 60
    settings = Settings(tokens, left, options.batch, options.rate, options.seed)
    tick, said = progress.stage(f"training {options.name}", 1000), [len(state.curve)]

    def report(now: State, done: float) -> None:
        tick(round(done * 1000))
        if len(now.curve) > said[0]:
            said[0] = len(now.curve)
            left, length = now.seconds * (1 - done) / max(done, 1e-9) / 60, now.curve[-1][1]
            progress.say(f"{now.tokens} tokens, loss {now.loss:.3f}, acceptance by depth {length}, {left:.0f} min left")

    return fit(head, ready.shards, ready.places, ready.held, settings, folder, state, options.device, report)


def _published(options: TrainOptions, ready: Prepared, head: EagleHead | MedusaHead) -> Published:
    if isinstance(head, EagleHead):
        return published_eagle(head, ready.target.taps)
    return published_medusa(head, accuracy(head, ready.shards, ready.held, options.device))
