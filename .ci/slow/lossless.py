"""lossless.py BUNDLE QUESTIONS.jsonl [--methods a,b] [--limit N] [--tokens N] [--widths 4,8,16] [--pad] [--json FILE]

Greedy text of each method against plain decoding, first turn of each question; every difference is run again at other
widths and reported with its logit margin. Exit code 1 if any difference is not a near-tie.

ONNX Runtime's quantised kernels round a single row in another way than two or more. With --pad no run has a single row
(plain decoding drags a useless one along), so that every row meets the same kernel: then nothing may differ at all.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from spec_edge.runtime import load
from spec_edge.runtime.divergence import divergence
from spec_edge.runtime.draft import Draft, Output

RETRY_WIDTHS = (2, 3, 4, 8, 16)


class Padded:
    """A session whose verify runs are at least two rows wide."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def verify(self, pending: int, draft: Draft) -> Output:
        """As the inner session, with a row more where it would be alone."""
        output = self.inner.verify(pending, draft if len(draft) else Draft.chain([0]))
        return Output(output.logits[: len(draft) + 1])


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("questions", type=click.Path(path_type=Path))
@click.option("--methods", default="prompt-lookup")
@click.option("--widths", default="8")
@click.option("--limit", type=int)
@click.option("--tokens", default=64)
@click.option("--pad", is_flag=True)
@click.option("--json", "json_file", type=click.Path(path_type=Path))
def main(
    bundle: Path,
    questions: Path,
    methods: str,
    widths: str,
    limit: int | None,
    tokens: int,
    pad: bool,
    json_file: Path | None,
) -> None:
    """See the module's docstring."""
    lines = questions.read_text("utf-8").splitlines()
    prompts = [json.loads(line)["turns"][0] for line in lines if line.strip()][:limit]
    rows, faults = [], 0
    with load(bundle) as llm:
        if pad:
            llm.session = Padded(llm.session)
        for i, prompt in enumerate(prompts):
            ids = llm.text.encode_chat([{"role": "user", "content": prompt}])
            plain = llm.generate(prompt, method="plain", max_new_tokens=tokens)
            for method in methods.split(","):
                for width in map(int, widths.split(",")):
                    other = llm.generate(prompt, method=method, width=width, max_new_tokens=tokens)
                    found = divergence(llm.session, ids, plain.tokens, other.tokens, RETRY_WIDTHS)
                    row = {"question": i, "method": method, "width": width, "tokens": len(plain.tokens)}
                    row["acceptance_length"] = other.stats.acceptance_length
                    row["divergence"] = found and {**asdict(found), "near_tie": found.near_tie}
                    rows.append(row)
                    if found:
                        faults += not found.near_tie
                        click.echo(f"question {i} {method} w{width}: {row['divergence']}")
    for method in methods.split(","):
        own = [r for r in rows if r["method"] == method]
        tau = sum(r["acceptance_length"] for r in own) / len(own)
        parted = sum(r["divergence"] is not None for r in own)
        click.echo(
            f"{method}: {len(own)} runs, {sum(r['tokens'] for r in own)} tokens, mean acceptance length {tau:.2f}, "
            f"{parted} divergences"
        )
    click.echo(f"{faults} of them no near-tie")
    if json_file:
        json_file.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    sys.exit(int(faults > 0 or (pad and any(r["divergence"] for r in rows))))


if __name__ == "__main__":
    main()
