"""lossless.py BUNDLE QUESTIONS.jsonl -o ROWS.jsonl [--methods a,b+c] [--widths 4,8,16] [--draft BUNDLE] [--limit N]

Greedy text of each method at each width against plain decoding, first turn of each question. A question is prefilled
once and its cache restored for every run. Every difference is judged by `runtime/divergence.py`: at the place where the
texts part the target reads its own text again, in runs of the shapes that wrote the second text and with none of its
drafted tokens. If it writes the other token then too, the difference is the target's own, made by kernels that add in
another order for one row than for several; the margin says how near the two tokens were. In fp32 a margin past
2e-4 is a fault whatever the replay says.

One line is appended to ROWS.jsonl per run, and runs that are there already are not repeated, so the script may be
stopped and started again. Questions are taken in a fixed random order, so that part of a run is a sample of all
tasks. It ends with a table (`--table` prints only that). Exit code 1 if there was a fault. With --pad no run has a
single row; then nothing may differ at all. With --noise the margins' movement between one row and two is measured on
the plain texts.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from spec_edge.models.contract import ModelFacts
from spec_edge.runtime import load
from spec_edge.runtime.api import LLM
from spec_edge.runtime.divergence import Recorded, Shape, divergence, margin_noise
from spec_edge.runtime.draft import UNREAD, Draft, Output
from spec_edge.runtime.options import Options
from spec_edge.runtime.protocols import Session
from spec_edge.runtime.sessions.features import features, widths

FP32_MARGIN = 2e-4
"""Twice the largest width noise seen in fp32."""

Row = dict[str, Any]


class Restored(Recorded):
    """A recorded session that reads a prompt once: a second prefill of the same ids gives the rows of the first."""

    def __init__(self, inner: Session, model: ModelFacts) -> None:
        super().__init__(inner)
        self._features = frozenset(widths(model))
        self._prompt: list[int] = []
        self._read = UNREAD

    def truncate(self, length: int) -> None:
        """As the inner session; the whole text goes only when the next one is read."""
        if length:
            self.inner.truncate(length)

    def prefill(self, ids: Sequence[int]) -> Output:
        """Logits and every feature of the prompt."""
        if list(ids) != self._prompt:
            wants, self.wants = self.wants, self._features
            self.inner.truncate(0)
            output = super().prefill(ids)
            self._read = Output(output.logits.copy(), **features(output))
            self._prompt, self.wants = list(ids), wants
        self.inner.truncate(len(ids))
        self.shapes = []
        return self._read


class Padded(Restored):
    """The same with verify runs that are at least two rows wide."""

    def verify(self, pending: int, draft: Draft) -> Output:
        """As the inner session, with a row more where it would be alone."""
        output = super().verify(pending, draft if len(draft) else Draft.chain([0]))
        return Output(output.logits[: len(draft) + 1], output.hidden, output.taps)


@dataclass(frozen=True)
class Text:
    """New ids (end of sequence included), the shapes of the runs that wrote them, acceptance length."""

    ids: list[int]
    shapes: list[Shape]
    acceptance_length: float


def write(llm: LLM, prompt: list[int], options: Options) -> Text:
    """One greedy text."""
    engine = llm.engine(options)
    for _ in engine.generate(prompt):
        pass
    return Text(engine.ids[len(prompt) :], list(llm.session.shapes), engine.stats.acceptance_length)


def judged(llm: LLM, prompt: list[int], plain: Text, other: Text) -> Row | None:
    """The first difference, or None."""
    found = divergence(llm.session, prompt, plain.ids, other.ids, (2, 4, 8, 16), other.shapes)
    if found is None:
        return None
    fault = not found.near_tie
    if llm.bundle.manifest.precision == "fp32":
        fault |= abs(found.margin) > FP32_MARGIN
    return {**asdict(found), "fault": fault}


def runs(
    llm: LLM,
    prompts: Sequence[str],
    methods: Sequence[str],
    widths: Sequence[int],
    tokens: int,
    done: set[Any],
    noise: bool,
) -> Iterator[Row]:
    for question in map(int, np.random.default_rng(0).permutation(len(prompts))):
        prompt = prompts[question]
        wanted = [(m, w) for m in methods for w in widths if (question, m, w) not in done]
        if not wanted:
            continue
        ids = llm.text.encode_chat([{"role": "user", "content": prompt}])
        plain = write(llm, ids, Options(method="plain", max_new_tokens=tokens))
        for method, width in wanted:
            text = write(llm, ids, Options(method=method, width=width, max_new_tokens=tokens))
            row = {"question": question, "method": method, "width": width, "tokens": len(plain.ids)}
            row |= {"acceptance_length": text.acceptance_length, "divergence": judged(llm, ids, plain, text)}
            yield row
        if noise:
            moved = margin_noise(llm.session, ids, plain.ids)
            yield {"question": question, "method": "noise", "width": 2, "moved": moved.tolist()}


def table(rows: Sequence[Row]) -> tuple[str, int]:
    """Markdown, and the number of faults."""
    lines = ["| method | width | questions | tokens | acceptance length | divergences | largest margin | faults |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    texts = [r for r in rows if "tokens" in r]
    faults = 0
    for method, width in dict.fromkeys((r["method"], r["width"]) for r in texts):
        own = [r for r in texts if (r["method"], r["width"]) == (method, width)]
        parted = [r["divergence"] for r in own if r["divergence"]]
        bad = sum(d["fault"] for d in parted)
        faults += bad
        tau = np.mean([r["acceptance_length"] for r in own])
        largest = f"{max(abs(d['margin']) for d in parted):.2g}" if parted else "-"
        sizes = f"{len(own)} | {sum(r['tokens'] for r in own)}"
        lines.append(f"| {method} | {width} | {sizes} | {tau:.2f} | {len(parted)} | {largest} | {bad} |")
    moved = np.concatenate([r["moved"] for r in rows if "moved" in r] or [[]])
    if moved.size:
        q = np.quantile(moved, (0.5, 0.9, 0.99))
        lines.append(
            f"\nMovement of the gap of the two leading logits between one row and two, {moved.size} tokens: "
            f"median {q[0]:.3g}, 90 % {q[1]:.3g}, 99 % {q[2]:.3g}, largest {moved.max():.3g}"
        )
    return "\n".join(lines), faults


def read(path: Path) -> list[Row]:
    """The rows written so far; a line cut short by a kill is dropped."""
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("questions", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True)
@click.option("--methods", default="prompt-lookup")
@click.option("--widths", default="4,8,16")
@click.option("--draft")
@click.option("--limit", type=int)
@click.option("--tokens", default=64)
@click.option("--threads", type=int)
@click.option("--pad", is_flag=True)
@click.option("--noise", is_flag=True)
@click.option("--table", "only_table", is_flag=True)
def main(
    bundle: Path,
    questions: Path,
    output: Path,
    methods: str,
    widths: str,
    draft: str | None,
    limit: int | None,
    tokens: int,
    threads: int | None,
    pad: bool,
    noise: bool,
    only_table: bool,
) -> None:
    """See the module's docstring."""
    lines = questions.read_text("utf-8").splitlines()
    prompts = [json.loads(line)["turns"][0] for line in lines if line.strip()][:limit]
    before = read(output)
    done = {(r["question"], r["method"], r["width"]) for r in before}
    if not only_table:
        with load(bundle, draft=draft, threads=threads) as llm, output.open("a", encoding="utf-8") as file:
            llm.session = (Padded if pad else Restored)(llm.session, llm.bundle.manifest.model)
            wide = [int(w) for w in widths.split(",")]
            for row in runs(llm, prompts, methods.split(","), wide, tokens, done, noise):
                file.write(json.dumps(row) + "\n")
                file.flush()
                if row.get("divergence"):
                    click.echo(json.dumps(row))
    text, faults = table(read(output))
    click.echo(text)
    if faults or (pad and any(r.get("divergence") for r in read(output))):
        sys.exit(1)


if __name__ == "__main__":
    main()
