"""Answers of the target on spec-edge's own kernels: texts that end make room for the next, all over one cache.

Enters: prompts as token ids, each with its limit and temperature. Leaves: what `generate` of generate.py leaves. A run
writes its rows behind all others; a text knows the slots of its own rows. When the cache is full, the rows of texts
that are still being written move to its beginning. Long answers begin first, so that few are alone at the end.
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
        self.end, self.first = self.shared, list[F16]()
        beginning = _Text(0, list(jobs[0].ids[: self.shared]))
        self._read(beginning, 0)
        target.all.take(target.one, 0, self.shared, 0)
        self.first = beginning.rows

    def admit(self, queue: list[int]) -> None:
        """New texts from the front of the queue, as long as there is room for all of every text; takes each one's
        first token."""
        while queue and len(self.texts) < self.most and self._fits(queue[0]):
            text = _Text(queue[0], list(self.jobs[queue.pop(0)].ids), rows=list(self.first))
            logits, rows = self._read(text, self.shared), len(text.ids) - self.shared
            self._make_room(rows)
            self.target.all.take(self.target.one, self.shared, len(text.ids), self.end)
            text.slots += range(self.end, self.end + rows)
            self.end += rows
            self._extend([text], logits)
            self.texts.append(text)

    def step(self) -> None:
        """One token more for every text."""
        n = len(self.texts)
        self._make_room(n)
        bias = self.target.all.bias
        for row, text in enumerate(self.texts):
            text.slots.append(self.end + row)
            bias[row, : self.end + n] = SHUT
            bias[row, : self.shared] = 0
            bias[row, text.slots] = 0
        positions = np.array([len(text.ids) - 1 for text in self.texts], np.int64)
        read = self.target.run(self.target.all, [text.ids[-1] for text in self.texts], positions, self.end, range(n))
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
        """The rows of a text from its token `known` on, in the cache of one text; logits of the last one. A view."""
        one, logits = self.target.one, np.empty((0, 0), np.float32)
        for at in range(known, len(text.ids), MOST_ROWS):
            part = text.ids[at : at + MOST_ROWS]
            one.bias[: len(part), : at + len(part)] = SHUT
            for row in range(len(part)):
                one.bias[row, : at + row + 1] = 0
            read = self.target.run(one, part, np.arange(at, at + len(part), dtype=np.int64), at, [len(part) - 1])
            text.rows.append(read.features)
            logits = read.logits
        return logits

    def _fits(self, job: int) -> bool:
        """Whether all that every text may still become fits, with a run to spare."""
        whole = [len(self.jobs[i].ids) + self.jobs[i].limit for i in (job, *(text.job for text in self.texts))]
        return self.shared + sum(whole) + MOST_ROWS <= self.target.all.slots or not self.texts

    def _make_room(self, rows: int) -> None:
        """For so many rows more."""
        if self.end + rows <= self.target.all.slots:
            return
        kept = [*range(self.shared), *(slot for text in self.texts for slot in text.slots)]
        self.target.all.keep(np.array(kept, np.int64))
        at = self.shared
        for text in self.texts:
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
    queue, made = sorted(range(len(jobs)), key=lambda i: -jobs[i].limit), dict[int, Generated]()
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
