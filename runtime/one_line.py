"""Wrong calls of a command in one line, as everything else that goes wrong.

Enters: what click finds wrong with a command line. Leaves: its message and where the help is, without the usage text.
"""

from __future__ import annotations

import errno
from typing import Any

import click

NO_ARGUMENTS: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())
"""From click 8.2 on: a group that is called with nothing shows its help."""


class OneLineCommand(click.Command):
    """A command whose help into a full disk is one line; what its body raises is its own to say."""

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        """As click: a help text is printed in here."""
        try:
            return super().make_context(*args, **options)
        except OSError as error:
            raise _unwritten(error) from None


class OneLineGroup(OneLineCommand, click.Group):
    """A group whose commands' wrong calls are one line on standard error; exit code 2."""

    command_class = OneLineCommand

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        """As click."""
        try:
            return super().make_context(*args, **options)
        except click.UsageError as error:
            raise _short(error) from None

    def invoke(self, ctx: click.Context) -> Any:
        """As click: subcommands read their own part of the line here."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            raise _short(error) from None


def _unwritten(error: OSError) -> Exception:
    """What a help text that cannot be printed ends in; a reader that has gone is click's, a file whoever names it."""
    if error.errno == errno.EPIPE or error.filename is not None:
        return error
    return click.ClickException(f"standard output cannot be written ({error.strerror})")


def _short(error: click.UsageError) -> click.UsageError:
    """Click prints the usage of the context that an error holds."""
    if error.ctx is None or isinstance(error, NO_ARGUMENTS):
        return error
    message = f"{error.format_message().rstrip('.')}; see {error.ctx.command_path} --help"
    return click.UsageError(" ".join(message.split()))
