"""acceptance.py BUNDLE QUESTIONS.jsonl [--methods a,b] [--widths 16,32] [--every N] [--tokens N] [--texts F] [--out F]

Mean acceptance length (greedy; new tokens per verify step, bonus token included) per task and method: all tokens over
all steps, and in the last two columns the mean of the questions' own means. The plain text of each question is made
once and kept in the --texts file. Methods that read only the text (prompt-lookup, suffix, their hybrids) are replayed
against it without the model; the others run the engine over one prefill per question. `lookahead@generation` is
lookahead whose pool begins empty instead of with the prompt, `prompt-lookup@2` needs two equal tokens. `oracle` is
the best proposal that the text so far can give: the longest run of coming tokens that followed an earlier occurrence
of the last token. Heads of the bundle are members too: `eagle`, `medusa`, `suffix+eagle` make trees for the width,
`eagle@4` chains of four tokens whatever their confidence.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import click
import numpy as np

from spec_edge.runtime import load
from spec_edge.runtime.api import LLM
from spec_edge.runtime.draft import Context, Draft
from spec_edge.runtime.drafters.options import DrafterOptions
from spec_edge.runtime.engine import Engine, Limits
from spec_edge.runtime.hybrid import create
from spec_edge.runtime.protocols import Drafter
from spec_edge.runtime.sampling import Sampler, Sampling

METHODS = (
    "prompt-lookup@2,prompt-lookup,suffix,suffix+prompt-lookup,oracle,lookahead@generation,lookahead,"
    "lookahead+prompt-lookup,lookahead+suffix"
)
HEADS = ("eagle", "medusa")
OFFLINE = {"plain", "prompt-lookup", "suffix"}
RNG = np.random.default_rng(0)
Text = dict[str, list[int]]
"""prompt: ids. new: ids of the plain answer, its end of sequence included."""

Counts = dict[tuple[str, int, str], list[tuple[int, int]]]
"""(method, width, task) -> (tokens, steps) of each question."""


def drafter(method: str, mode: str, llm: LLM | None = None) -> Drafter:
    """A method's drafter; what stands behind an `@` as in the module's docstring. llm: of the heads."""
    name, _, variant = method.partition("@")
    number, heads = (int(variant) if variant.isdecimal() else None), heads_of(method)
    options = DrafterOptions(lookahead_prompt=variant != "generation", hybrid=mode)
    if llm is None or not heads:
        return create(name, replace(options, min_ngram=number))
    facts = llm.bundle.manifest.text
    sampler, confidence = Sampler(Sampling(), facts.eos_ids, facts.tokens), 0.0 if number else None
    options = replace(options, sampler=sampler, networks=llm._networks.open(heads))
    return create(name, replace(options, draft_tokens=number, confidence=confidence))


def heads_of(method: str) -> list[str]:
    return [name for name in method.partition("@")[0].split("+") if name in HEADS]


def plain_text(llm: LLM, prompt: str, tokens: int) -> Text:
    """The target's own greedy answer."""
    ids = list(llm.text.encode_chat([{"role": "user", "content": prompt}]))
    engine = Engine(llm.session, create("plain", DrafterOptions()), Sampling(), limits(llm, tokens, None))
    for _ in engine.generate(ids):
        pass
    return {"prompt": ids, "new": engine.ids[len(ids) :]}


def limits(llm: LLM, tokens: int, width: int | None) -> Limits:
    facts = llm.bundle.manifest.text
    return Limits(tokens, facts.eos_ids, facts.tokens, width)


def accepted(draft: Draft, coming: Sequence[int]) -> int:
    """Depth of the draft's longest path that the text goes on with."""
    rows = {(p, t): i for i, (p, t) in enumerate(zip(draft.parents, draft.tokens, strict=True)) if draft.candidate[i]}
    at, depth = -1, 0
    while depth < len(coming) and (at, coming[depth]) in rows:
        at, depth = rows[at, coming[depth]], depth + 1
    return depth


def oracle(ids: Sequence[int], known: int, most: int) -> int:
    """The longest run of tokens from `known` on that followed an earlier occurrence of the last known token."""
    best = 0
    for start in range(1, known):
        if ids[start - 1] == ids[known - 1]:
            n = 0
            while n < most and known + n < len(ids) and ids[start + n] == ids[known + n]:
                n += 1
            best = max(best, n)
    return best


def walk(text: Text, count: Callable[[list[int], int], int]) -> tuple[int, int]:
    """(tokens, steps) of an answer when `count(ids, known)` drafted tokens are accepted in each step."""
    ids, known, steps = [*text["prompt"], *text["new"]], len(text["prompt"]) + 1, 0
    while known < len(ids):
        # A step's bonus token comes after what was accepted, so that one at most is left for it.
        known += min(count(ids, known), len(ids) - known - 1) + 1
        steps += 1
    return len(text["new"]) - 1, steps


def replayed(text: Text, method: str, width: int, mode: str) -> tuple[int, int]:
    """Without the model."""
    if method == "oracle":
        return walk(text, lambda ids, known: oracle(ids, known, width - 1))
    proposing = drafter(method, mode)
    proposing.start(text["prompt"])
    return walk(text, lambda ids, known: accepted(proposing.propose(Context(ids[:known], RNG), width), ids[known:]))


def run(llm: LLM, text: Text, method: str, width: int, tokens: int, mode: str) -> tuple[int, int]:
    """With it; the session has just read the same prompt, which heads need to see read."""
    engine = Engine(llm.session, drafter(method, mode, llm), Sampling(), limits(llm, tokens, width))
    known = not heads_of(method)
    engine.ids = list(text["prompt"]) if known else []
    llm.session.truncate(min(llm.session.length, len(text["prompt"])) if known else 0)
    for _ in engine.generate(text["prompt"], reuse=known):
        pass
    return len(engine.ids) - len(text["prompt"]) - 1, engine.stats.steps


def table(counts: Counts, tasks: Sequence[str]) -> str:
    """Markdown: a row per method and width, a column per task, over steps; last two means over questions."""

    def over_steps(method: str, width: int, names: Sequence[str]) -> str:
        pairs = [p for t in names for p in counts.get((method, width, t), ())]
        return f"{sum(n for n, _ in pairs) / sum(s for _, s in pairs):.2f}" if pairs else "-"

    def over_questions(method: str, width: int, names: Sequence[str]) -> str:
        lengths = [n / s for t in names for n, s in counts.get((method, width, t), ())]
        return f"{sum(lengths) / len(lengths):.2f}" if lengths else "-"

    reading = [t for t in ("summarization", "rag") if t in tasks]
    head = ["method", "width", "all", *tasks, "summarization + rag", "all, per question", "s + r, per question"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for method, width in dict.fromkeys((m, w) for m, w, _ in counts):
        cells = [over_steps(method, width, names) for names in (tasks, *([t] for t in tasks), reading)]
        cells += [over_questions(method, width, names) for names in (tasks, reading)]
        lines.append(f"| {method} | {width} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("questions", type=click.Path(path_type=Path))
@click.option("--methods", default=METHODS)
@click.option("--widths", default="16,32")
@click.option("--every", default=1, help="Only every Nth question.")
@click.option("--tokens", default=64)
@click.option("--threads", type=int, help="Fewer than the cores on a busy machine.")
@click.option("--mode", default="merge", help="How hybrids join: merge or cascade.")
@click.option("--texts", type=click.Path(path_type=Path), default=Path("texts.json"))
@click.option("--out", type=click.Path(path_type=Path))
def main(
    bundle: Path,
    questions: Path,
    methods: str,
    widths: str,
    every: int,
    tokens: int,
    threads: int | None,
    mode: str,
    texts: Path,
    out: Path | None,
) -> None:
    """See the module's docstring."""
    rows = [json.loads(line) for line in questions.read_text("utf-8").splitlines() if line.strip()][::every]
    kept: dict[str, Text] = json.loads(texts.read_text("utf-8")) if texts.exists() else {}
    counts: Counts = {}
    with load(bundle, threads=threads) as llm:
        for row in rows:
            prompt = row["turns"][0] if "turns" in row else row["prompt"]
            task = row.get("task") or row.get("source", "all")
            key = json.dumps([llm.bundle.digest, tokens, prompt])
            if key not in kept:
                kept[key] = plain_text(llm, prompt, tokens)
                texts.write_text(json.dumps(kept), encoding="utf-8")
            else:
                llm.session.truncate(0)
            for method in methods.split(","):
                offline = method == "oracle" or set(method.partition("@")[0].split("+")) <= OFFLINE
                for width in map(int, widths.split(",")):
                    got = (
                        replayed(kept[key], method, width, mode)
                        if offline
                        else run(llm, kept[key], method, width, tokens, mode)
                    )
                    if got[1]:
                        counts.setdefault((method, width, task), []).append(got)
            click.echo(f"{task}: {len(kept[key]['new'])} tokens", err=True)
            if out:
                out.write_text(table(counts, sorted({t for _, _, t in counts})) + "\n", encoding="utf-8")
    result = table(counts, sorted({t for _, _, t in counts}))
    click.echo(result)
    if out:
        out.write_text(result + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
