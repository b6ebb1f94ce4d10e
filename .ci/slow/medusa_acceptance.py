"""medusa_acceptance.py BUNDLE QUESTIONS.jsonl [--tokens N] [--chain K] [--expect STEPS.json] [--steps STEPS.json]

Acceptance of Medusa heads per task, counted as vLLM does, so that its figures for the same weights can be held beside
ours: greedy, the best token of each head as a chain, 1 + accepted / drafts over all steps of a task. A step that
reaches the end of the answer counts in full. STEPS.json is a list of {"task", "tokens": ids of the answer with its
end-of-sequence, "drafts": steps, "pos": how many of them accepted a token at each position}, one per question: --steps
writes ours, --expect reads another engine's, which are put in a second line of each task. The exit status is 1 where a
task's acceptance length is more than 3 % off.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from spec_edge.runtime import load
from spec_edge.runtime.api import LLM
from spec_edge.runtime.drafters.options import DrafterOptions
from spec_edge.runtime.engine import Engine, Limits
from spec_edge.runtime.hybrid import create
from spec_edge.runtime.sampling import Sampler, Sampling

NEAR = 0.03
NAME = "medusa"


@dataclass(frozen=True)
class Answer:
    """What --steps says of one question."""

    task: str
    tokens: list[int]
    drafts: int
    pos: list[int]


def answered(llm: LLM, task: str, prompt: str, tokens: int, chain: int) -> Answer:
    """One question. tokens: where a step ends at or past it, the answer ends too."""
    ids = llm.text.encode_chat([{"role": "user", "content": prompt}])
    facts = llm.bundle.manifest.text
    options = DrafterOptions(
        draft_tokens=chain,
        tree=(1,) * chain,
        sampler=Sampler(Sampling(), facts.eos_ids, facts.tokens),
        networks=llm._networks.open([NAME]),
    )
    engine = Engine(
        llm.session, create(NAME, options), Sampling(), Limits(None, facts.eos_ids, facts.tokens, chain + 1)
    )
    for _ in engine.generate(ids):
        if len(engine.tokens) >= tokens:
            break
    taken = [round_.accepted for round_ in engine._rounds]
    return Answer(task, engine.ids[len(ids) :][:tokens], len(taken), [sum(n > i for n in taken) for i in range(chain)])


def read(path: Path) -> list[Answer]:
    """A --steps file, whoever wrote it; further keys are left out."""
    rows = json.loads(path.read_text("utf-8"))
    return [Answer(row["task"], row["tokens"], row["drafts"], row["pos"]) for row in rows]


def line(task: str, who: str, answers: list[Answer]) -> tuple[str, float]:
    """A row of the table, and the acceptance length."""
    of = [a for a in answers if task in (a.task, "all")]
    steps = sum(a.drafts for a in of)
    rates = [sum(column) / max(1, steps) for column in zip(*(a.pos for a in of), strict=True)]
    length = 1 + sum(rates)
    return f"| {task} | {who} | {steps} | {length:.3f} | {' '.join(f'{rate:.3f}' for rate in rates)} |", length


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("questions", type=click.Path(path_type=Path))
@click.option("--expect", type=click.Path(path_type=Path))
@click.option("--steps", "written", type=click.Path(path_type=Path))
@click.option("--tokens", default=48)
@click.option("--chain", default=3)
@click.option("--threads", type=int)
def main(
    bundle: Path, questions: Path, expect: Path | None, written: Path | None, tokens: int, chain: int, threads: int
) -> None:
    """See the module's docstring."""
    asked = [json.loads(text) for text in questions.read_text("utf-8").splitlines() if text.strip()]
    answers = []
    with load(bundle, threads=threads) as llm:
        for n, row in enumerate(asked, 1):
            answers.append(answered(llm, row.get("task", "all"), row["turns"][0], tokens, chain))
            click.echo(f"{n} of {len(asked)}", err=True)
    if written:
        written.write_text(json.dumps([asdict(a) for a in answers]), encoding="utf-8")
    other = read(expect) if expect else []
    click.echo("| task | engine | steps | acceptance length | accepted at each position |\n" + "|---" * 5 + "|")
    wrong = False
    for task in dict.fromkeys([*(a.task for a in answers), "all"]):
        ours, length = line(task, "here", answers)
        click.echo(ours)
        if other:
            theirs, wanted = line(task, "other", other)
            click.echo(theirs)
            wrong |= abs(length / wanted - 1) > NEAR
    if other:
        same = sum(a.tokens == b.tokens for a, b in zip(answers, other, strict=True))
        click.echo(f"{same} of {len(answers)} answers are equal")
    sys.exit(int(wrong))


if __name__ == "__main__":
    main()
