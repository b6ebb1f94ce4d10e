"""Answers of the target on spec-edge's own kernels: texts that end make room for the next, all over one cache.

Enters: prompts as token ids, each with its limit and temperature. Leaves: what `generate` of generate.py leaves. A run
writes its rows behind all others; a text knows the slots of its own rows. When the cache is full, the rows of texts
that are still being written move to its beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from spec_edge.export.train.generate import Generated, Job, chosen, ended, shared
from spec_edge.export.train.kernels import F16, F32, MOST_ROWS, SHUT, KernelTarget


@dataclass
class _Text:
    """slots: of its rows behind the shared ones."""

    job: int
    ids: list[int]
    slots: list[int] = field(default_factory=list)
    rows: list[F16] = field(default_factory=list)


class _Batch:
    """texts[i] is row i of a step. end: the first free slot."""

    def __init__(self, target: KernelTarget, jobs: Sequence[Job], most: int, noise: torch.Generator) -> None:
        self.target, self.jobs, self.noise = target, jobs, noise
        self.most, self.texts = min(most, MOST_ROWS), list[_Text]()
        self.shared = shared([job.ids for job in jobs])
        self.end, self.first = 0, list[F16]()
        beginning = _Text(0, list(jobs[0].ids[: self.shared]))
        self._read(beginning, 0)
        self.first = beginning.rows

    def admit(self, queue: list[int]) -> None:
        """New texts from the front of the queue, as long as there is room for all of every text; takes each one's
        first token."""
        while queue and len(self.texts) < self.most and self._fits(queue[0]):
            text = _Text(queue[0], list(self.jobs[queue.pop(0)].ids), rows=list(self.first))
            logits = self._read(text, self.shared)
            self._extend([text], logits)
            self.texts.append(text)

    def step(self) -> None:
        """One token more for every text."""
        n = len(self.texts)
        self._make_room(n)
        bias = self.target.bias
        for row, text in enumerate(self.texts):
            text.slots.append(self.end + row)
            bias[row, : self.end + n] = SHUT
            bias[row, : self.shared] = 0
            bias[row, text.slots] = 0
        positions = np.array([len(text.ids) - 1 for text in self.texts], np.int64)
        read = self.target.run([text.ids[-1] for text in self.texts], positions, self.end, range(n))
        self.end += n
        for text, features in zip(self.texts, read.features, strict=True):
            text.rows.append(features[None])
        self._extend(self.texts, read.logits)

    def finished(self, ends: Collection[int]) -> list[_Text]:
        """Texts that have ended; they leave the batch."""
        done = [text for text in self.texts if ended(text.ids, self.jobs[text.job], ends)]
        self.texts = [text for text in self.texts if all(text is not other for other in done)]
        return done

    def _read(self, text: _Text, known: int) -> F32:
        """The rows of a text from its token `known` on; logits of the last one. A view."""
        rest, logits = text.ids[known:], np.empty((0, 0), np.float32)
        for at in range(0, len(rest), MOST_ROWS):
            part = rest[at : at + MOST_ROWS]
            self._make_room(len(part), text)
            bias = self.target.bias[: len(part)]
            bias[:, : self.end + len(part)] = SHUT
            bias[:, : min(known, self.shared)] = 0
            bias[:, text.slots] = 0
            for row in range(len(part)):
                bias[row, self.end : self.end + row + 1] = 0
            positions = np.arange(known + at, known + at + len(part), dtype=np.int64)
            read = self.target.run(part, positions, self.end, [len(part) - 1])
            text.slots += range(self.end, self.end + len(part))
            text.rows.append(read.features)
            self.end, logits = self.end + len(part), read.logits
        return logits

    def _fits(self, job: int) -> bool:
        """Whether all that every text may still become fits, with a run to spare."""
        whole = [len(self.jobs[i].ids) + self.jobs[i].limit for i in (job, *(text.job for text in self.texts))]
        return self.shared + sum(whole) + MOST_ROWS <= self.target.slots or not self.texts

    def _make_room(self, rows: int, beside: _Text | None = None) -> None:
        """For a run of so many rows. beside: a text that is not in the batch yet."""
        if self.end + rows <= self.target.slots:
            return
        held = [*self.texts, *([beside] if beside else [])]
        kept = [*range(self.shared), *(slot for text in held for slot in text.slots)]
        self.target.move(np.array(kept, np.int64))
        at = self.shared
        for text in held:
            text.slots = list(range(at, at + len(text.slots)))
            at += len(text.slots)
        self.end = at

    def _extend(self, texts: Sequence[_Text], logits: F32) -> None:
        heat = torch.tensor([self.jobs[text.job].temperature for text in texts])
        for text, token in zip(texts, chosen(torch.from_numpy(logits), heat, self.noise), strict=True):
            text.ids.append(token)


def generate_together(
    target: KernelTarget, jobs: Sequence[Job], ends: Collection[int], most: int, seed: int, tick: Callable[[int], None]
) -> list[Generated]:
    """As `generate`; most: texts at a time."""
    batch = _Batch(target, jobs, most, torch.Generator().manual_seed(seed))
    queue, made = list(range(len(jobs))), dict[int, Generated]()
    while len(made) < len(jobs):
        batch.admit(queue)
        for text in batch.finished(ends):
            made[text.job] = _generated(text, jobs[text.job], target.width)
            tick(len(text.ids) - len(jobs[text.job].ids))
        if batch.texts:
            batch.step()
    return [made[i] for i in range(len(jobs))]


def _generated(text: _Text, job: Job, width: int) -> Generated:
    rows = torch.from_numpy(np.concatenate(text.rows))
    taps, hidden = rows[:, :-width].clone(), rows[:, -width:].clone()
    return Generated(tuple(text.ids), len(job.ids), job.temperature == 0, taps, hidden)
