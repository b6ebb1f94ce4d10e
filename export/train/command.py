"""The `spec-export train` command: options in, one function, one line out. Imports torch only once it runs."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import click

from spec_edge.export.train.options import train_options
from spec_edge.models.contract import SpecError
from spec_edge.runtime.named_path import NamedPath
from spec_edge.runtime.one_line import OneLineCommand

INTERRUPTED = 130


@click.command(cls=OneLineCommand)
@click.argument("kind", type=click.Choice(["medusa", "eagle"]))
@click.argument("model")
@click.option("-o", "--output", required=True, type=NamedPath(), help="Folder of the new heads.")
@click.option("--prompts", type=NamedPath(), help="JSON lines or text.  [default: the target's own]")
@click.option("--minutes", type=click.FloatRange(0, min_open=True), help="How long: half for answers, half to train.")
@click.option("--tokens", type=click.IntRange(1), help="Answer tokens to generate.  [default: 1000000]")
@click.option("--passes", type=click.IntRange(1), default=2, show_default=True, help="How often each is trained on.")
@click.option("--heads", type=click.IntRange(1, 10), default=4, show_default=True, help="Medusa: how many.")
@click.option("--draft-vocab", type=click.IntRange(16), default=4096, show_default=True, help="Ids that are drafted.")
@click.option("--mlp", "inner", type=click.IntRange(8), help="EAGLE: width of its MLP.  [default: the target's]")
@click.option("--form", type=click.Choice(["eagle3", "eagle1"]), default="eagle3", show_default=True)
@click.option("--precision", default="auto", show_default=True, help="The bundle's, whose tokens are learnt.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda ...")
@click.option("--seed", default=0, show_default=True)
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Largest learning rate.  [default: 0.001]")
@click.option("--batch", type=click.IntRange(1), help="Answer tokens of a step.  [default: 1024, Medusa 2048]")
@click.option("--cache", type=NamedPath(), help="Folder of answers, checkpoints.  [default: beside -o]")
@click.option("--from", "start", type=NamedPath(), help="EAGLE heads to go on from.")
@click.option("--resume", is_flag=True, help="Go on from the last checkpoint. Answers are always kept.")
@click.option("--force", "replace", is_flag=True, help="Replace what is at -o.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def train(
    kind: str,
    model: str,
    output: Path,
    prompts: Path | None,
    minutes: float | None,
    tokens: int | None,
    passes: int,
    heads: int,
    draft_vocab: int,
    inner: int | None,
    form: str,
    precision: str,
    device: str,
    seed: int,
    rate: float | None,
    batch: int | None,
    cache: Path | None,
    start: Path | None,
    resume: bool,
    replace: bool,
    as_json: bool,
) -> None:
    """Train heads for MODEL on its own answers: an EAGLE drafter, or Medusa heads."""
    from spec_edge.export.progress import stages

    options = train_options(
        kind, model, output, prompts, minutes, tokens, passes, heads, draft_vocab, inner, device, form, precision,
        seed, resume, cache, start, rate, batch, replace,
    )  # fmt: skip
    from spec_edge.export.train.run import train as run

    try:
        with stages() as progress:
            made = run(options, progress)
        text = f"{made.folder}: {made.kind}, acceptance length {made.state.curve[-1][1]}"
        click.echo(json.dumps(asdict(made)) if as_json else text)
    except KeyboardInterrupt:
        click.echo(f"interrupted; go on with the same command and --resume (kept in {options.cache})", err=True)
        sys.exit(INTERRUPTED)
    except OSError as error:
        raise SpecError(f"{type(error).__name__}: {error}") from error
