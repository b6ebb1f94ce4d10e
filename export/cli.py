"""The `spec-export` command. A skin: options in, one function, one summary out."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import wraps
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec

import click

from spec_edge.export.train.command import train
from spec_edge.models.contract import BadUsage, SpecError
from spec_edge.runtime.named_path import NamedPath
from spec_edge.runtime.one_line import OneLineGroup
from spec_edge.runtime.termination import interrupted

if TYPE_CHECKING:
    from spec_edge.export.options import BuildOptions

P = ParamSpec("P")
INTERRUPTED = 130


class DefaultBuild(OneLineGroup):
    """`spec-export MODEL ...` is `spec-export build MODEL ...`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = {name for option in self.get_params(ctx) for name in option.opts}
        if args and args[0] not in self.commands and args[0] not in own:
            args = ["build", *args]
        return super().parse_args(ctx, args)


def one_line_errors(command: Callable[P, None]) -> Callable[P, None]:
    """What the system refuses becomes one line and exit code 1; Ctrl-C is exit code 130."""

    @wraps(command)
    def guarded(*args: P.args, **options: P.kwargs) -> None:
        try:
            command(*args, **options)
        except KeyboardInterrupt:
            click.echo("interrupted; nothing was left behind", err=True)
            sys.exit(INTERRUPTED)
        except ImportError as error:
            if not interrupted(error):
                raise
            click.echo("interrupted; nothing was left behind", err=True)
            sys.exit(INTERRUPTED)
        except (OSError, MemoryError) as error:
            if os.environ.get("SPEC_EDGE_DEBUG"):
                raise
            raise SpecError(f"{type(error).__name__}: {error}") from error

    return guarded


def one_path(_: click.Context, option: click.Parameter, values: tuple[str, ...]) -> Path | None:
    """The path of an option that may be given once. BadUsage: twice, or an empty text, which would name this folder."""
    if len(values) > 1:
        raise BadUsage(f"--{option.name} is given {len(values)} times; a bundle holds one drafter of each method")
    if values and not values[0].strip():
        raise BadUsage(f"--{option.name} needs the path of a folder or file, not an empty text")
    return Path(values[0]) if values else None


@click.group(cls=DefaultBuild)
@click.version_option(version("spec-edge"), prog_name="spec-export")
def main() -> None:
    """Turn a model into a bundle of static-shape ONNX graphs. `build` is the default subcommand."""


@main.command()
@click.argument("model")
@click.option("-o", "--output", type=NamedPath(), help="Folder of the new bundle.  [required]")
@click.option("--precision", default="auto", show_default=True, help="auto, or a weight scheme: keep, int8, fp16 ...")
@click.option("--context", type=click.IntRange(64), help="Most tokens, all told.  [default: 2048, or the target's]")
@click.option("--widths", help="Verify widths of the static graphs, such as 1,2,4,8,16.  [default: the target's]")
@click.option("--parts", type=click.IntRange(1), help="Cut the static graphs into so many.  [default: the target's]")
@click.option("--target", "target_name", default="cpu", show_default=True, help="One of `spec-edge targets`.")
@click.option("--with-fallback", "fallback", metavar="TARGET", help="Also export for this one, in a bundle beside it.")
@click.option(
    "--draft", metavar="MODEL", help="A smaller model of the same family; it drafts, in a bundle beside this one."
)
@click.option("--medusa", callback=one_path, multiple=True, metavar="PATH", help="Medusa heads, a folder or a file.")
@click.option("--eagle", callback=one_path, multiple=True, metavar="PATH", help="An EAGLE-1, 2 or 3 drafter, likewise.")
@click.option("--no-heads", is_flag=True, help="Leave out the heads that come with the package for this model.")
@click.option("--force", is_flag=True, help="Replace a bundle that is already there.")
@click.option("--dry-run", is_flag=True, help="Print shapes, sizes and memory; needs no weights, writes nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
@one_line_errors
def build(
    model: str,
    output: Path | None,
    precision: str,
    context: int | None,
    widths: str | None,
    parts: int | None,
    target_name: str,
    fallback: str | None,
    draft: str | None,
    medusa: Path | None,
    eagle: Path | None,
    no_heads: bool,
    force: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Export MODEL: a GGUF file, a Hugging Face folder, a hub id (org/name) or an alias such as smollm2-135m."""
    from spec_edge.export.build import build_bundle
    from spec_edge.export.options import build_options
    from spec_edge.export.progress import stages
    from spec_edge.export.summary import print_summary

    drafters = {name: path for name, path in (("medusa", medusa), ("eagle", eagle)) if path is not None}
    if output is None and not dry_run:
        raise click.UsageError("Missing option '-o' / '--output'.")
    output = output or Path()
    options = build_options(
        model, output, precision, context, widths, target_name, force, draft, drafters, fallback, not no_heads, parts
    )
    if dry_run:
        _plan(options, as_json)
        return
    with stages() as progress:
        summary = build_bundle(options, progress)
    if as_json:
        click.echo(json.dumps(asdict(summary), ensure_ascii=False))
    else:
        print_summary(summary)


def _plan(options: BuildOptions, as_json: bool) -> None:
    from spec_edge.export.plan import check_plannable, plan_bundle, plan_lines

    check_plannable(options)
    plan = plan_bundle(options)
    click.echo(json.dumps(asdict(plan), ensure_ascii=False) if as_json else "\n".join(plan_lines(plan)))


@main.command()
@click.argument("path", type=NamedPath())
@click.option("--target", type=NamedPath(), help="A model: say whether the drafter fits it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
@one_line_errors
def inspect(path: Path, target: Path | None, as_json: bool) -> None:
    """Say what PATH is: a model, Medusa heads or an EAGLE drafter; its sizes, which target it fits, what it lacks.

    Exit code 1 where it has a problem or does not fit the --target. The values of its weights are not read.
    """
    from spec_edge.export.inspect import inspect as look
    from spec_edge.export.inspect import inspect_lines

    found = look(path, target)
    click.echo(json.dumps(asdict(found), ensure_ascii=False) if as_json else "\n".join(inspect_lines(found)))
    if found.refused:
        sys.exit(1)


@main.command("compile")
@click.argument("bundle", type=NamedPath())
@click.option("--target", "target_name", required=True, help="Hardware profile, such as meteor-lake.")
@click.option("--graphs", default="", help="Patterns of graph names, by comma, such as 'verify-*'.  [default: all]")
@click.option("--timeout", type=click.FloatRange(0, min_open=True), help="Seconds for a graph.  [default: 1800]")
@click.option("--out", type=NamedPath(), help="Folder for copies of what was compiled, and a report.")
@click.option("--here", is_flag=True, help="For this machine's own device, as `spec-edge` would.")
@click.option("--again", is_flag=True, help="Compile again what is in the cache or failed before.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
@one_line_errors
def compile_(
    bundle: Path,
    target_name: str,
    graphs: str,
    timeout: float | None,
    out: Path | None,
    here: bool,
    again: bool,
    as_json: bool,
) -> None:
    """Compile the fixed-width graphs of BUNDLE ahead of time, where the target's compiler is on this machine.

    Exit code 1 where a graph is not compiled. No device is used.
    """
    from spec_edge.export.compile import CompileOptions, compile_bundle, report_lines
    from spec_edge.export.progress import compiling_line

    patterns = tuple(name.strip() for name in graphs.split(",") if name.strip())
    with compiling_line() as progress:
        report = compile_bundle(CompileOptions(bundle, target_name, patterns, timeout, out, here, again), progress)
    click.echo(json.dumps(asdict(report), ensure_ascii=False) if as_json else "\n".join(report_lines(report)))
    if not report.complete:
        sys.exit(1)


main.add_command(train)
