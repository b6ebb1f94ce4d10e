"""draft_agreement.py TARGET PROMPTS.jsonl DRAFT... [--sources A,B] [--per-source N] [--tokens N]

How often each draft model names first the token that the target writes next: on plain greedy text of the target to
prompts sampled over sources of PROMPTS.jsonl (fields `source` and `prompt`; never the evaluation questions).
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import click
import numpy as np

from spec_edge.runtime import load
from spec_edge.runtime.draft import Draft
from spec_edge.runtime.protocols import Session

WIDTH, LONGEST_PROMPT = 60, 1500
Text = tuple[str, list[int], list[int]]
"""Source, ids of the prompt, new tokens."""


def texts(target: Path, prompts: Path, sources: list[str], per_source: int, tokens: int) -> list[Text]:
    """What the target writes."""
    rows = [json.loads(line) for line in prompts.read_text("utf-8").splitlines()]
    rng, out = random.Random(0), []
    with load(target) as llm:
        for source in sources or sorted({row["source"] for row in rows}):
            own = [row["prompt"][:LONGEST_PROMPT] for row in rows if row["source"] == source]
            for prompt in rng.sample(own, min(per_source, len(own))):
                ids = list(llm.text.encode_chat([{"role": "user", "content": prompt}]))
                out.append((source, ids, list(llm.generate(prompt, method="plain", max_new_tokens=tokens).tokens)))
    return out


def right(session: Session, ids: list[int], new: list[int]) -> int:
    """Of the new tokens but the first, those that this model would have named."""
    session.truncate(0)
    session.prefill(ids)
    found, at = 0, 0
    while at < len(new) - 1:
        part = new[at : min(at + WIDTH, len(new) - 1)]
        best = session.verify(part[0], Draft.chain(part[1:])).logits.argmax(1)
        found += int(np.sum(best == np.array(new[at + 1 : at + 1 + len(part)])))
        session.commit(range(len(part)))
        at += len(part)
    return found


@click.command()
@click.argument("target", type=click.Path(path_type=Path))
@click.argument("prompts", type=click.Path(path_type=Path))
@click.argument("drafts", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--sources", default="", help="By comma.  [default: all]")
@click.option("--per-source", default=8)
@click.option("--tokens", default=100)
def main(target: Path, prompts: Path, drafts: tuple[Path, ...], sources: str, per_source: int, tokens: int) -> None:
    """See the module's docstring."""
    written = texts(target, prompts, [s for s in sources.split(",") if s], per_source, tokens)
    for draft in drafts:
        with load(draft) as llm:
            for source in dict.fromkeys(text[0] for text in written):
                own = [text for text in written if text[0] == source]
                count = sum(len(new) - 1 for _, _, new in own)
                agreed = sum(right(llm.session, ids, new) for _, ids, new in own)
                click.echo(f"{draft.name}: {source}: {agreed / count:.4f} of {count} tokens")


if __name__ == "__main__":
    main()
