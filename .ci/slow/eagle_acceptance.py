"""eagle_acceptance.py BUNDLE QUESTIONS.jsonl [--expect TABLE.md] [--every N] [--tokens N] [--chain K] [--most CHARS]

Acceptance of an EAGLE drafter per task, counted as vLLM does, so that its figures for the same checkpoint can be held
beside ours: greedy, chains of K whatever their confidence, 1 + accepted / drafts over all steps of a task. A step that
reaches the end of the answer counts in full. --expect: a Markdown table `| task | acceptance length | ... |`; the exit
status is 1 where a task is more than 3 % off. --width W drafts EAGLE-2's trees for verify runs of W rows instead.
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from pathlib import Path

import click

from spec_edge.runtime import load
from spec_edge.runtime.api import LLM
from spec_edge.runtime.drafters.options import DrafterOptions
from spec_edge.runtime.engine import Engine, Limits
from spec_edge.runtime.hybrid import create
from spec_edge.runtime.sampling import Sampler, Sampling

NEAR = 0.03


def accepted(llm: LLM, prompt: str, tokens: int, chain: int, width: int | None) -> list[int]:
    """Drafted tokens accepted in each step of an answer; of a chain, or of trees where there is a width."""
    ids = llm.text.encode_chat([{"role": "user", "content": prompt}])
    facts = llm.bundle.manifest.text
    options = DrafterOptions(
        draft_tokens=None if width else chain,
        confidence=None if width else 0.0,
        sampler=Sampler(Sampling(), facts.eos_ids, facts.tokens),
        networks=llm._networks.open(["eagle"]),
    )
    engine = Engine(
        llm.session, create("eagle", options), Sampling(), Limits(None, facts.eos_ids, facts.tokens, width or chain + 1)
    )
    for _ in engine.generate(ids):
        if len(engine.tokens) >= tokens:
            break
    return [round_.accepted for round_ in engine._rounds]


def expected(path: Path) -> dict[str, float]:
    """Task -> acceptance length of a Markdown table."""
    rows = re.findall(r"^\|\s*(\w+)\s*\|\s*([\d.]+)\s*\|", path.read_text("utf-8"), re.MULTILINE)
    return {task: float(value) for task, value in rows}


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("questions", type=click.Path(path_type=Path))
@click.option("--expect", type=click.Path(path_type=Path))
@click.option("--every", default=1, help="Only every Nth question.")
@click.option("--tokens", default=64)
@click.option("--chain", default=4)
@click.option("--width", type=click.IntRange(8))
@click.option("--most", default=3500, help="Characters of the longest prompt.")
@click.option("--threads", type=int)
def main(
    bundle: Path,
    questions: Path,
    expect: Path | None,
    every: int,
    tokens: int,
    chain: int,
    width: int | None,
    most: int,
    threads: int | None,
) -> None:
    """See the module's docstring."""
    rows = [json.loads(line) for line in questions.read_text("utf-8").splitlines() if line.strip()]
    asked = [(row.get("task", "all"), row["turns"][0]) for row in rows]
    asked = [(task, prompt) for task, prompt in asked if len(prompt) < most][::every]
    steps: dict[str, list[int]] = defaultdict(list)
    with load(bundle, threads=threads) as llm:
        for n, (task, prompt) in enumerate(asked, 1):
            steps[task] += accepted(llm, prompt, tokens, chain, width)
            click.echo(f"{n} of {len(asked)}", err=True)
    wanted = expected(expect) if expect else {}
    steps["all"] = [n for task in list(steps) for n in steps[task]]
    heads = ("task", "steps", "acceptance length", "expected", "off", "accepted at each position")
    click.echo("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|")
    wrong = False
    for task, counts in steps.items():
        length = 1 + sum(counts) / len(counts)
        share = " ".join(
            f"{sum(n > i for n in counts) / len(counts):.3f}" for i in range(max(counts) if width else chain)
        )
        off = length / wanted[task] - 1 if task in wanted else 0.0
        wrong |= abs(off) > NEAR
        beside = f"{wanted[task]} | {off:+.1%}" if task in wanted else " | "
        click.echo(f"| {task} | {len(counts)} | {length:.3f} | {beside} | {share} |")
    sys.exit(int(wrong))


if __name__ == "__main__":
    main()
