"""The `spec-edge` command. A skin: options in, one function, text out.

Enters: the command line. Leaves: exit code 0, 1 (a failure), 2 (the call is wrong) or 130 (interrupted).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

import click

from spec_edge.models.contract import SpecError

P = ParamSpec("P")
INTERRUPTED = 130


def one_line_errors(command: Callable[P, None]) -> Callable[P, None]:
    """What the system refuses becomes one line and exit code 1; Ctrl-C is exit code 130."""

    @wraps(command)
    def guarded(*args: P.args, **options: P.kwargs) -> None:
        utf8_output()
        try:
            command(*args, **options)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            sys.exit(INTERRUPTED)
        except BrokenPipeError:  # the reader has left: click ends quietly
            raise
        except (OSError, MemoryError) as error:
            if os.environ.get("SPEC_EDGE_DEBUG"):
                raise
            raise SpecError(f"{type(error).__name__}: {error}") from error

    return guarded


def utf8_output() -> None:
    """Model text holds any character: Windows pipes get UTF-8, and what a terminal cannot show becomes `?`."""
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(encoding="utf-8" if os.name == "nt" else None, errors="replace")


@click.group()
@click.version_option(package_name="spec-edge", prog_name="spec-edge")
def main() -> None:
    """Run a language model on this machine, faster by speculation, with the answer it would have given anyway."""


@main.command()
@click.argument("prompt")
@click.option(
    "-m", "--model", default="smollm2-135m", show_default=True, help="Bundle, GGUF, HF folder, hub id, alias."
)
@click.option("--method", default="auto", show_default=True, help="How tokens are drafted: auto, plain, prompt-lookup.")
@click.option("--max-new-tokens", type=int, default=512, show_default=True, help="Longest answer.")
@click.option("--width", type=int, help="Most rows of a verify run.  [default: the bundle's]")
@click.option("--draft-tokens", type=int, help="Most tokens drafted in a step.  [default: the method's]")
@click.option("--temperature", type=float, default=0.0, show_default=True, help="0 is greedy.")
@click.option("--top-k", type=int, default=0, show_default=True, help="Keep the K likeliest tokens; 0 keeps all.")
@click.option("--top-p", type=float, default=1.0, show_default=True, help="Keep the fewest tokens with this mass.")
@click.option("--min-p", type=float, default=0.0, show_default=True, help="Keep tokens this likely beside the best.")
@click.option("--repetition-penalty", type=float, default=1.0, show_default=True, help="Above 1, repeat less.")
@click.option("--seed", type=int, help="Of the random generator.  [default: a fresh one]")
@click.option("--stop", multiple=True, metavar="TEXT", help="End the answer before this text; may be repeated.")
@click.option("--provider", default="cpu", show_default=True, help="ONNX Runtime execution provider.")
@click.option("--threads", type=int, help="Threads of the network.  [default: one per physical core]")
@click.option("--no-chat", is_flag=True, help="Give PROMPT to the model as it is, without the chat template.")
@click.option("--stats", is_flag=True, help="Print what the run cost, on standard error.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
@one_line_errors
def run(
    prompt: str,
    model: str,
    method: str,
    max_new_tokens: int,
    width: int | None,
    draft_tokens: int | None,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    repetition_penalty: float,
    seed: int | None,
    stop: tuple[str, ...],
    provider: str,
    threads: int | None,
    no_chat: bool,
    stats: bool,
    as_json: bool,
) -> None:
    """Answer PROMPT (`-` reads standard input). The model is exported on first use."""
    from spec_edge.runtime.api import load
    from spec_edge.runtime.report import read_prompt, show

    text = read_prompt(prompt)
    with load(model, provider=provider, threads=threads) as llm:
        stream = llm.stream(
            text,
            max_new_tokens=max_new_tokens,
            method=method,
            width=width,
            draft_tokens=draft_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            seed=seed,
            stop=stop,
            chat=not no_chat,
        )
        show(llm, stream, as_json, stats)
