"""The `spec-edge` command. A skin: options in, one function, text out.

Enters: the command line. Leaves: exit code 0, 1 (a failure), 2 (the call is wrong) or 130 (interrupted).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import Field, fields
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

import click

from spec_edge.models.contract import SpecError
from spec_edge.runtime.named_path import NamedPath
from spec_edge.runtime.one_line import OneLineGroup
from spec_edge.runtime.options import SHOWN, Options, Shown
from spec_edge.runtime.termination import SaidInterrupt, interrupted

P = ParamSpec("P")
INTERRUPTED = 130


def one_line_errors(command: Callable[P, None]) -> Callable[P, None]:
    """What the system refuses becomes one line and exit code 1; Ctrl-C is exit code 130."""

    @wraps(command)
    def guarded(*args: P.args, **options: P.kwargs) -> None:
        utf8_output()
        try:
            command(*args, **options)
        except KeyboardInterrupt as error:
            if not isinstance(error, SaidInterrupt):
                click.echo("interrupted", err=True)
            sys.exit(INTERRUPTED)
        except ImportError as error:
            if not interrupted(error):
                raise
            click.echo("interrupted", err=True)
            sys.exit(INTERRUPTED)
        except BrokenPipeError:  # the reader has left: click ends quietly
            raise
        except (OSError, MemoryError) as error:
            if os.environ.get("SPEC_EDGE_DEBUG"):
                raise
            raise SpecError(f"{type(error).__name__}: {error}") from error

    return guarded


provider_option = click.option(
    "--provider",
    default="auto",
    show_default=True,
    help="What runs it. auto: what the bundle is for; fastest: of the CPU's backends, measured once.",
)


def utf8_output() -> None:
    """Model text holds any character: Windows pipes get UTF-8, and what a terminal cannot show becomes `?`."""
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(encoding="utf-8" if os.name == "nt" else None, errors="replace")


@click.group(cls=OneLineGroup)
@click.version_option(package_name="spec-edge", prog_name="spec-edge")
def main() -> None:
    """Run a language model on this machine, faster by speculation, with the answer it would have given anyway."""


def generation_options(command: Callable[..., None]) -> Callable[..., None]:
    """The fields of `Options` that are for one text, in their order, as options of a command."""
    for field in reversed([f for f in fields(Options) if f.metadata[SHOWN].listed]):
        command = _click_option(field)(command)
    return command


def _click_option(field: Field[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    shown: Shown = field.metadata[SHOWN]
    name = f"--{shown.flag or field.name.replace('_', '-')}"
    text = shown.help if shown.default is None else f"{shown.help}  [default: {shown.default}]"
    if shown.type is bool:
        return click.option(name, field.name, flag_value=not field.default, default=field.default, help=text)
    if shown.many:
        return click.option(name, field.name, type=shown.type, multiple=True, metavar=shown.metavar, help=text)
    known = field.default is not None
    return click.option(
        name, field.name, type=shown.type, default=field.default, show_default=known, metavar=shown.metavar, help=text
    )


@main.command()
@click.argument("prompt")
@click.option(
    "-m", "--model", default="smollm2-135m", show_default=True, help="Bundle, GGUF, HF folder, hub id, alias."
)
@provider_option
@click.option("--strict", is_flag=True, help="Fail where the first provider does, instead of going on with the next.")
@click.option("--threads", type=int, help="Threads of the network.  [default: one per physical core]")
@click.option("--draft", metavar="MODEL", help="A smaller model that drafts.  [default: the one exported with it]")
@click.option("--draft-provider", default="auto", show_default=True, help="What runs the draft model or the heads.")
@click.option("--draft-threads", type=int, help="Its threads.  [default: one per physical core]")
@generation_options
@click.option("--stats", is_flag=True, help="Print what the run cost, on standard error.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
@one_line_errors
def run(
    prompt: str,
    model: str,
    provider: str,
    strict: bool,
    threads: int | None,
    draft: str | None,
    draft_provider: str,
    draft_threads: int | None,
    stats: bool,
    as_json: bool,
    **values: Any,
) -> None:
    """Answer PROMPT (`-` reads standard input). The model is exported on first use."""
    import numpy  # noqa: F401 - first: ONNX Runtime, which loads it otherwise, prints Ctrl-C as a traceback

    from spec_edge.runtime.api import load
    from spec_edge.runtime.report import note, read_prompt, show
    from spec_edge.runtime.request import check, sampling

    options = Options(**values)
    check(options, draft is not None, draft_provider != "auto" or draft_threads is not None)
    if sampling(options, []).lossy:
        note("--accept typical is LOSSY: this text does not have the model's own law")
    text = read_prompt(prompt, options.chat)
    with load(
        model,
        provider=provider,
        strict=strict,
        threads=threads,
        draft=draft,
        draft_provider=draft_provider,
        draft_threads=draft_threads,
        on_note=note,
    ) as llm:
        show(llm, llm.start(text, options), as_json, stats)


@main.command()
@click.option(
    "-m", "--model", default="smollm2-135m", show_default=True, help="Bundle, GGUF, HF folder, hub id, alias."
)
@click.option("--questions", type=NamedPath(), help="Spec-Bench's jsonl form.  [default: the own set]")
@click.option(
    "--methods", default="all", show_default=True, help="all, or names such as plain,suffix,lookahead+suffix."
)
@click.option("--max-new-tokens", default=128, show_default=True, help="Longest answer.")
@click.option("--temperature", default=0.0, show_default=True, help="0 is greedy.")
@click.option("--repeat", default=3, show_default=True, help="Interleaved runs of every question.")
@click.option("--limit", type=int, help="Only the first N questions.")
@click.option("--peers", default="none", show_default=True, help="none, all, or names, a precision behind a colon.")
@click.option("--peer-python", multiple=True, metavar="NAME=PATH", help="Python of a peer; may be repeated.")
@click.option("--peers-at-once", type=int, metavar="N", help="Most peers in memory together.  [default: all]")
@click.option("--weights", type=NamedPath(), help="What the bundle was made from, for the peers.")
@provider_option
@click.option("--threads", type=int, help="Threads of everybody.  [default: one per physical core]")
@click.option("--draft", metavar="MODEL", help="A smaller model that drafts.  [default: the one exported with it]")
@click.option("--draft-weights", type=NamedPath(), help="What its bundle was made from.")
@click.option("--out", type=NamedPath(), help="Folder for report.json, report.md and plots.")
@click.option("--curve", is_flag=True, help="Only what a run costs by its width, for every graph and provider.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
@one_line_errors
def bench(curve: bool, as_json: bool, **values: Any) -> None:
    """Measure methods against plain decoding, interleaved, and other programs in the same run."""
    from spec_edge.runtime.bench import command
    from spec_edge.runtime.bench.settings import Settings

    settings = Settings(**values)
    (command.run_curve if curve else command.run)(settings, as_json)


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array instead of a table.")
@one_line_errors
def targets(as_json: bool) -> None:
    """What a bundle can be exported for: hardware, providers, graphs, and what is proved of each."""
    import json
    from dataclasses import asdict

    from spec_edge.runtime.targets_table import rows, table

    found = rows()
    click.echo(json.dumps([asdict(row) for row in found], ensure_ascii=False) if as_json else table(found))


@main.command()
@click.option("-m", "--model", "bundle", type=NamedPath(), metavar="BUNDLE", help="A bundle's chain too.")
@click.option("--recompile", is_flag=True, help="First forget compiled graphs, failed compilers, looks at devices.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
@one_line_errors
def doctor(bundle: Path | None, recompile: bool, as_json: bool) -> None:
    """What this machine has to run bundles on, and what is missing."""
    import json
    from dataclasses import asdict

    from spec_edge.runtime.doctor import examine, forget
    from spec_edge.runtime.doctor_text import text

    if recompile:
        graphs, looks = forget()
        click.echo(
            f"{graphs} compiled graphs and failures are forgotten; graphs are compiled when next opened. "
            f"{looks} looks at devices are forgotten",
            err=True,
        )
    report = examine(bundle)
    click.echo(json.dumps(asdict(report), ensure_ascii=False) if as_json else text(report))
