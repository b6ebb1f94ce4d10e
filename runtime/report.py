"""What a run prints: text as it comes, one JSON object, a table of costs.

Enters: a stream of text. Leaves: nothing but standard output and standard error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from itertools import zip_longest

import click
from rich.console import Console
from rich.table import Table

from spec_edge.models.contract import BadUsage, SpecError
from spec_edge.runtime.api import LLM
from spec_edge.runtime.placement import lines
from spec_edge.runtime.request import refuse_empty
from spec_edge.runtime.stream import Generation, Stream

STDIN_LIMIT = 64 << 20
"""Most bytes read from standard input."""


def read_prompt(prompt: str, chat: bool) -> str:
    """The prompt, or standard input for `-`, without the line end that closes it. BadUsage: it is empty.

    SpecError: nobody could read an answer.
    """
    if sys.stdout is None:
        raise SpecError("standard output is closed, so there is nowhere to write the answer")
    text = _standard_input() if prompt == "-" else prompt
    refuse_empty(text, chat)
    return text


def _standard_input() -> str:
    if sys.stdin is None:
        raise BadUsage("standard input is closed; give the prompt as an argument, or feed it in")
    data = sys.stdin.buffer.read(STDIN_LIMIT + 1)
    if len(data) > STDIN_LIMIT:
        raise BadUsage(f"standard input has more than {STDIN_LIMIT} bytes; give a shorter prompt")
    try:
        return data.decode("utf-8-sig").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise BadUsage("standard input is not UTF-8; convert it first") from None


def show(llm: LLM, stream: Stream, as_json: bool, stats: bool) -> None:
    """Print a generation to its end; on an interruption what there is, complete and readable."""
    try:
        _print_pieces(stream, quiet=as_json)
    finally:
        result = stream.result
        if stream.note:
            note(stream.note)
        if as_json:
            placement = [asdict(row) for row in llm.placement()]
            click.echo(json.dumps({**result.as_dict(), "placement": placement}, ensure_ascii=False))
        if stats:
            Console(stderr=True, highlight=False).print(table(llm, result))


def note(line: str) -> None:
    """One line on standard error, behind the text so far."""
    if sys.stdout is not None:
        sys.stdout.flush()
    click.echo(f"note: {line}", err=True)


def _print_pieces(stream: Iterable[str], quiet: bool) -> None:
    try:
        for piece in stream:
            if not quiet:
                click.echo(piece, nl=False)
    finally:
        if not quiet:
            click.echo()


def table(llm: LLM, result: Generation) -> Table:
    """The costs of a generation, and where its nodes ran."""
    s, manifest = result.stats, llm.bundle.manifest
    per = 100 / s.decode_s if s.decode_s else 0.0
    pairs = zip_longest(s.accepted_by_position, s.drafted_by_position, fillvalue=0)
    positions = ", ".join(f"{accepted}/{drafted}" for accepted, drafted in pairs) or "-"
    by_drafter = ", ".join(f"{name} {count}" for name, count in s.steps_by_drafter.items()) or "-"
    rows = {
        "model": f"{result.model}, {manifest.precision}",
        "nodes": "\n".join(lines(llm.placement())),
        "method": result.method + (", LOSSY acceptance" if s.lossy else ""),
        "prompt": f"{s.prompt_tokens} tokens, first token after {1000 * s.ttft_s:.0f} ms",
        "answer": f"{s.new_tokens} tokens, {result.finish_reason}",
        "speed": f"{s.tokens_per_s:.1f} tokens/s over {s.decode_s:.2f} s",
        "steps": f"{s.steps}, acceptance length {s.acceptance_length:.2f}",
        "drafters": by_drafter,
        "drafted": f"{s.drafted}, accepted {s.accepted}, bonus {s.bonus}",
        "by position": f"accepted/drafted steps {positions}",
        "time": f"verify {per * s.verify_s:.1f} %, draft {per * s.draft_s:.1f} %, overhead {per * s.overhead_s:.1f} %",
    }
    out = Table(show_header=False, box=None)
    for name, value in rows.items():
        out.add_row(name, value)
    return out
