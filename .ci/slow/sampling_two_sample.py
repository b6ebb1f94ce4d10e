"""sampling_two_sample.py BUNDLE [--methods a,b] [--seeds N] [--temperature T] [--prompt TEXT] [--accept typical]
                       [--threads N] [--pad]

Is speculative sampling the same law as plain sampling on a real model? For each method a two-sample chi-square on the
joint of the first three tokens with top-k 4 (64 cells, those expected fewer than 10 times merged), N seeds per arm.
One rerun with new seeds where p < 1e-6. Exit code 1 if that fails too, as it must with the lossy `--accept typical`.

Every seed goes through the engine, the drafter, acceptance and the generator. The network does not: its logits are a
function of the runs and commits that led to them, so each such history is run once, on the real session (which is cut
back to the prompt with `truncate` and takes the history's own runs again), and its logits are kept.

In a quantised bundle a run of one row and one of several round differently (docs/lossless.md), so the target has one
law for each, and 24,000 seeds see that. `--pad` gives every run two rows at least; fp32 needs nothing.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from spec_edge.models.plugins import known
from spec_edge.runtime import load
from spec_edge.runtime.draft import Draft, Output
from spec_edge.runtime.drafters.options import DrafterOptions
from spec_edge.runtime.engine import Engine, Limits
from spec_edge.runtime.hybrid import create
from spec_edge.runtime.protocols import Drafter, Session
from spec_edge.runtime.sampling import Sampler, Sampling

DRAFTERS = "spec_edge.runtime.drafters"
TOKENS, TOP_K, ALPHA = 3, 4, 1e-6
AHEAD = 8
"""Limit of new tokens: more than are looked at, so that drafts of several tokens cross the joint."""
PROMPT = "one two three four. one two five six. one two three six. one two five four. one two"

Step = tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]


class Remembered:
    """A session that runs each history of verify runs and commits once. The prompt is always the same."""

    def __init__(self, session: Session, prompt: Sequence[int], pad: bool) -> None:
        self._session, self._prompt, self._pad = session, list(prompt), pad
        session.truncate(0)
        self._first = session.prefill(prompt).logits.copy()
        self._known: dict[tuple[object, ...], np.ndarray] = {}
        self._drafts: dict[Step, Draft] = {}
        self._history: tuple[tuple[Step, tuple[int, ...]], ...] = ()
        self._last: Step | None = None
        self.vocab_size, self.capacity, self.max_width = session.vocab_size, session.capacity, session.max_width
        self.length = 0

    @property
    def runs(self) -> int:
        """Histories so far."""
        return len(self._known)

    def prefill(self, ids: Sequence[int]) -> Output:
        assert list(ids) == self._prompt
        self.length, self._history = len(ids), ()
        return Output(self._first)

    def verify(self, pending: int, draft: Draft) -> Output:
        step = (pending, draft.tokens, draft.parents, tuple(map(int, draft.candidate)))
        self._drafts.setdefault(step, draft)
        self._last = step
        key = (self._history, step)
        if key not in self._known:
            self._session.truncate(len(self._prompt))
            for (before, *_), rows, earlier in [(s, r, self._drafts[s]) for s, r in self._history]:
                self._run(before, earlier)
                self._session.commit(rows)
            self._known[key] = self._run(pending, draft).copy()
        return Output(self._known[key])

    def _run(self, pending: int, draft: Draft) -> NDArray[np.float32]:
        widened = Draft.chain([0]) if self._pad and not len(draft) else draft
        return self._session.verify(pending, widened).logits[: len(draft) + 1]

    def commit(self, rows: Sequence[int]) -> None:
        assert self._last is not None
        self._history += ((self._last, tuple(rows)),)
        self.length += len(rows)

    def truncate(self, length: int) -> None:
        self.length = length

    def close(self) -> None:
        """The session is the caller's."""


def joint(
    session: Remembered, drafter: Drafter, prompt: Sequence[int], limits: Limits, options: Sampling, seeds: range
) -> tuple[Counter[tuple[int, ...]], float]:
    """How often each triple came first, and the mean acceptance length."""
    counts: Counter[tuple[int, ...]] = Counter()
    tau = 0.0
    for seed in seeds:
        engine = Engine(session, drafter, replace(options, seed=seed), limits)
        for _ in engine.generate(prompt):
            if len(engine.ids) >= len(prompt) + TOKENS:
                break
        counts[tuple(engine.ids[len(prompt) :][:TOKENS])] += 1
        tau += engine.stats.acceptance_length / len(seeds)
    return counts, tau


def chi_square(a: Counter[tuple[int, ...]], b: Counter[tuple[int, ...]]) -> tuple[float, int]:
    """(statistic, degrees of freedom) of two samples of the same size; rare cells form one."""
    pairs = [(a[cell], b[cell]) for cell in {*a, *b}]
    common = [p for p in pairs if sum(p) >= 20]
    rare = np.sum([p for p in pairs if sum(p) < 20], axis=0)
    if np.sum(rare) >= 20:
        common.append((int(rare[0]), int(rare[1])))
    return sum((x - y) ** 2 / (x + y) for x, y in common), len(common) - 1


def survival(x: float, dof: int) -> float:
    """P(chi-square > x), by the series of the regularised incomplete gamma function, or its continued fraction."""
    a, z = dof / 2, x / 2
    if z <= 0:
        return 1.0
    scale = math.exp(-z + a * math.log(z) - math.lgamma(a))
    if z < a + 1:
        term = total = 1 / a
        n = a
        while term > total * 1e-16:
            n += 1
            term *= z / n
            total += term
        return 1 - scale * total
    fraction = 0.0
    for k in range(500, 0, -1):
        fraction = k * (a - k) / (z - a + 2 * k + 1 + fraction)
    return scale / (z - a + 1 + fraction)


def power(distance: float, seeds: int, dof: int) -> float:
    """P(p < ALPHA) where the laws are this far apart in total variation, every cell off by the same share of itself."""
    low, high = 0.0, 1e4
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if survival(middle, dof) > ALPHA else (low, middle)
    seen = np.random.default_rng(0).noncentral_chisquare(dof, 2 * seeds * distance**2, 200_000)
    return float((seen > high).mean())


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--methods", help="[default: those of prompt-lookup, suffix, lookahead that there are]")
@click.option("--seeds", default=24_000, show_default=True, help="Seeds per arm.")
@click.option("--temperature", default=1.5, show_default=True)
@click.option("--prompt", default=PROMPT)
@click.option("--accept", default="exact", show_default=True)
@click.option("--threads", type=int)
@click.option("--pad", is_flag=True)
def main(
    bundle: Path,
    methods: str | None,
    seeds: int,
    temperature: float,
    prompt: str,
    accept: str,
    threads: int | None,
    pad: bool,
) -> None:
    """See the module's docstring."""
    there = [m for m in ("prompt-lookup", "suffix", "lookahead") if m in known(DRAFTERS, "create")]
    failed = False
    with load(bundle, threads=threads) as llm:
        ids, facts = llm.text.encode_prompt(prompt), llm.bundle.manifest.text
        limits = Limits(AHEAD, facts.eos_ids, facts.tokens)
        options = Sampling(temperature, TOP_K, accept=accept)

        def arm(method: str, first: int) -> Counter[tuple[int, ...]]:
            session = Remembered(llm.session, ids, pad)
            drafter = create(method, DrafterOptions(min_ngram=1, sampler=Sampler(options, facts.eos_ids, facts.tokens)))
            counts, tau = joint(session, drafter, ids, limits, options, range(first, first + seeds))
            click.echo(f"  {method}: {len(counts)} cells, acceptance length {tau:.2f}, {session.runs} model runs")
            return counts

        plain = arm("plain", 0)
        for turn, method in enumerate(methods.split(",") if methods else there, 1):
            for attempt in (0, 1):
                base = plain if attempt == 0 else arm("plain", 10**8)
                statistic, dof = chi_square(base, arm(method, (2 * turn + attempt) * 10**7))
                p = survival(statistic, dof)
                click.echo(
                    f"{method}: chi-square {statistic:.1f}, {dof} degrees of freedom, p {p:.3g}; {seeds} seeds per "
                    f"arm, power at total variation 0.02: {power(0.02, seeds, dof):.3f}, 0.05: "
                    f"{power(0.05, seeds, dof):.3f}"
                )
                if p >= ALPHA:
                    break
            failed |= p < ALPHA
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
