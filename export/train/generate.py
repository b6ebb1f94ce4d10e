"""Answers of the target to a few hundred prompts, in one batch that is refilled as texts end.

Enters: prompts as token ids, each with its limit and temperature. Leaves: for each its whole text with the target's
tapped layers and last hidden states. The same jobs, seed and number of slots give the same texts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from spec_edge.export.train.target import Target

TOP = 64
"""A sampled token is one of this many most probable ones."""

LOOP, PERIOD = 48, 16
"""A text that has repeated itself for LOOP tokens, with a period of at most PERIOD, has ended."""

REFILL = 8
"""Free slots that are filled at once."""


@dataclass(frozen=True)
class Job:
    """A prompt. limit: most tokens of the answer. temperature: 0 takes the most probable token."""

    ids: tuple[int, ...]
    limit: int
    temperature: float


@dataclass(frozen=True)
class Generated:
    """A text of n tokens, `prompt` of them given. greedy: every other one was the most probable.

    taps    float16 [n - 1, T * H]: what entered the tapped layers at every token but the last, which nothing has read
    hidden  float16 [n - 1, H]: behind the final norm
    """

    ids: tuple[int, ...]
    prompt: int
    greedy: bool
    taps: Tensor
    hidden: Tensor


@dataclass
class _Text:
    job: int
    ids: list[int]
    rows: list[Tensor] = field(default_factory=list)


class _Batch:
    """The texts that are being written, one to a slot; None: a free one."""

    def __init__(self, target: Target, jobs: Sequence[Job], slots: int, noise: torch.Generator) -> None:
        self.target, self.jobs, self.noise = target, jobs, noise
        self.length = max(len(job.ids) + job.limit for job in jobs)
        self.shared = shared([job.ids for job in jobs])
        self.texts: list[_Text | None] = [None] * min(slots, len(jobs))
        self.cache = target.cache(len(self.texts), self.length)
        self.beginning = target.cache(1, self.shared)
        self.first = self._begin()

    def _begin(self) -> Tensor:
        """The rows that all texts share, in full precision: a first token's values are far larger than all others."""
        ids = torch.tensor([self.jobs[0].ids[: self.shared]], device=self.target.device)
        quick, self.target.quick = self.target.quick, False
        rows = torch.arange(self.shared, device=ids.device)[None]
        read = self.target.read(ids, rows, self.beginning, None, self.shared)
        self.target.quick = quick
        self.cache.spread(self.beginning, self.shared)
        return _rows(read.taps, read.hidden)[0]

    def admit(self, queue: list[int]) -> None:
        """Fill free slots from the front of the queue; reads their prompts and takes each one's first token."""
        free = [slot for slot, text in enumerate(self.texts) if text is None][: len(queue)]
        if not free or len(free) < min(REFILL, len(self.texts), len(queue)):
            return
        new = [_Text(job, list(self.jobs[job].ids), [self.first]) for job in queue[: len(free)]]
        del queue[: len(free)]
        for slot, text in zip(free, new, strict=True):
            self.texts[slot] = text
        rest = [text.ids[self.shared :] for text in new]
        most = max(map(len, rest))
        ids = torch.tensor([r + [0] * (most - len(r)) for r in rest], device=self.target.device)
        slots = torch.tensor(free, device=ids.device)
        for k, v in self.cache.layers:
            k[slots], v[slots] = 0, 0
        for (k, v), (from_k, from_v) in zip(self.cache.layers, self.beginning.layers, strict=True):
            k[slots, :, : self.shared], v[slots, :, : self.shared] = from_k, from_v
        positions = (self.shared + torch.arange(most, device=ids.device)).expand(len(free), most)
        read = self.target.read(ids, positions, self.cache, slots, self.shared + most)
        rows = _rows(read.taps, read.hidden)
        for text, mine, r in zip(new, rows, rest, strict=True):
            text.rows.append(mine[: len(r)])
        last = torch.tensor([len(r) - 1 for r in rest], device=ids.device)
        self._extend(free, read.hidden[torch.arange(len(free), device=ids.device), last])

    def step(self) -> None:
        """One token more for every text."""
        live = [slot for slot, text in enumerate(self.texts) if text is not None]
        if len(live) <= len(self.texts) // 2:
            self.cache.keep(torch.tensor(live, device=self.target.device))
            self.texts = [self.texts[slot] for slot in live]
            live = list(range(len(live)))
        device = self.target.device
        ids = torch.tensor([[text.ids[-1] if text else 0] for text in self.texts], device=device)
        at = torch.tensor([[len(text.ids) - 1 if text else 0] for text in self.texts], device=device)
        read = self.target.read(ids, at, self.cache, None, int(at.max()) + 1)
        rows = _rows(read.taps, read.hidden)
        for slot in live:
            text = self.texts[slot]
            assert text is not None
            text.rows.append(rows[slot])
        self._extend(live, read.hidden[live, 0])

    def _extend(self, slots: Sequence[int], hidden: Tensor) -> None:
        logits = self.target.head(hidden, self.target.quick).float()
        texts = [text for slot in slots if (text := self.texts[slot]) is not None]
        heat = torch.tensor([self.jobs[text.job].temperature for text in texts], device=logits.device)
        for text, token in zip(texts, chosen(logits, heat, self.noise), strict=True):
            text.ids.append(token)

    def finished(self, ends: Collection[int]) -> list[_Text]:
        """Texts that have ended; their slots are free now."""
        done = []
        for slot, text in enumerate(self.texts):
            if text is not None and ended(text.ids, self.jobs[text.job], ends):
                done.append(text)
                self.texts[slot] = None
        return done


def generate(
    target: Target, jobs: Sequence[Job], ends: Collection[int], slots: int, seed: int, tick: Callable[[int], None]
) -> list[Generated]:
    """The jobs' texts, in their order. `ends`: ids that end a text. `tick`: tokens that an ended text has got."""
    with torch.inference_mode():
        batch = _Batch(target, jobs, slots, torch.Generator().manual_seed(seed))
        queue, made = list(range(len(jobs))), dict[int, Generated]()
        width = target.config.hidden_size
        while len(made) < len(jobs):
            if queue:
                batch.admit(queue)
            for text in batch.finished(ends):
                rows, prompt = torch.cat(text.rows), len(jobs[text.job].ids)
                greedy, taps, hidden = jobs[text.job].temperature == 0, rows[:, :-width], rows[:, -width:]
                made[text.job] = Generated(tuple(text.ids), prompt, greedy, taps.clone(), hidden.clone())
                tick(len(text.ids) - prompt)
            if any(batch.texts):
                batch.step()
        return [made[i] for i in range(len(jobs))]


def shared(texts: Sequence[Sequence[int]]) -> int:
    """Tokens that all texts begin with: at least the first one, and never a whole text."""
    shortest = min(map(len, texts)) - 1
    for at in range(shortest):
        if any(text[at] != texts[0][at] for text in texts):
            return max(1, at)
    return max(1, shortest)


def _rows(taps: Tensor, hidden: Tensor) -> Tensor:
    """[B, n, T * H + H] in half precision on the CPU."""
    return torch.cat([taps, hidden], -1).clamp(-65504, 65504).half().cpu()


def chosen(logits: Tensor, heat: Tensor, noise: torch.Generator) -> list[int]:
    """A token of each row: the best, or one drawn of the best TOP (Gumbel's way)."""
    best = logits.topk(min(TOP, logits.shape[-1]), -1)
    uniform = torch.rand(best.values.shape, generator=noise).to(logits.device).clamp_(1e-12, 1 - 1e-7)
    drawn = best.values - (-uniform.log()).log() * heat[:, None]
    picked: list[int] = best.indices.gather(1, drawn.argmax(1, keepdim=True))[:, 0].tolist()
    return picked


def ended(ids: Sequence[int], job: Job, ends: Collection[int]) -> bool:
    made = len(ids) - len(job.ids)
    if made >= job.limit or ids[-1] in ends:
        return True
    tail = ids[-LOOP:]
    return made >= LOOP and any(tail[:-p] == tail[p:] for p in range(1, PERIOD + 1))
