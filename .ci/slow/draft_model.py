"""draft_model.py TARGET DRAFT PROMPTS.jsonl [--tokens 128] [--drafted 4] [--tree best] [--json FILE]

A draft model's greedy text against plain decoding on each prompt: acceptance length, acceptance by position, and every
difference judged by the target's own margin. Drafts at their full length. Exit code 1 if any difference is no near-tie.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path

import click

from spec_edge.runtime import load
from spec_edge.runtime.divergence import divergence

RETRY_WIDTHS = (2, 3, 4, 5, 8)


@click.command()
@click.argument("target", type=click.Path(path_type=Path))
@click.argument("draft", type=click.Path(path_type=Path))
@click.argument("prompts", type=click.Path(path_type=Path))
@click.option("--tokens", default=128)
@click.option("--drafted", default=4)
@click.option("--tree")
@click.option("--json", "json_file", type=click.Path(path_type=Path))
def main(
    target: Path, draft: Path, prompts: Path, tokens: int, drafted: int, tree: str | None, json_file: Path | None
) -> None:
    """See the module's docstring."""
    rows_read = [json.loads(line) for line in prompts.read_text("utf-8").splitlines() if line.strip()]
    if strange := [i for i, row in enumerate(rows_read, 1) if not ("prompt" in row or row.get("turns"))]:
        raise click.UsageError(f"{prompts}: line {strange[0]} has neither 'prompt' nor 'turns'")
    texts = [row["prompt"] if "prompt" in row else row["turns"][0] for row in rows_read]
    rows, faults = [], 0
    with load(target, draft=draft) as llm:
        for i, prompt in enumerate(texts):
            plain = llm.generate(prompt, method="plain", max_new_tokens=tokens)
            other = llm.generate(
                prompt, method="draft", max_new_tokens=tokens, draft_tokens=drafted, draft_confidence=0.0, tree=tree
            )
            ids = llm.text.encode_chat([{"role": "user", "content": prompt}])
            found = divergence(llm.session, ids, plain.tokens, other.tokens, RETRY_WIDTHS)
            faults += found is not None and not found.near_tie
            rows.append({"prompt": i, "plain_s": plain.stats.decode_s, **other.stats.as_dict()})
            rows[-1]["divergence"] = found and {**asdict(found), "near_tie": found.near_tie}
            click.echo(
                f"{i}: {other.stats.new_tokens} tokens, acceptance length {other.stats.acceptance_length:.2f}, "
                f"same as plain: {found or 'yes'}"
            )
    steps = sum(row["steps"] for row in rows)
    length = sum(row["accepted"] + row["bonus"] for row in rows) / steps
    pairs = [
        zip_longest(*(row[name] for row in rows), fillvalue=0)
        for name in ("accepted_by_position", "drafted_by_position")
    ]
    rates = [sum(a) / sum(d) for a, d in zip(*pairs, strict=False)]
    click.echo(
        f"{len(rows)} prompts, {steps} steps: acceptance length {length:.3f}, "
        f"accepted by position {', '.join(f'{r:.3f}' for r in rates)}; {faults} differences are no near-tie"
    )
    if json_file:
        json_file.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    sys.exit(int(faults > 0))


if __name__ == "__main__":
    main()
