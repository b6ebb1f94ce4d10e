"""NamedPath: a command line's path, which may not be an empty text.

`Path("")` is the current folder: an unset shell variable would name it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from spec_edge.models.contract import BadUsage


class NamedPath(click.Path):
    """A `pathlib.Path`. BadUsage: an empty text."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and not value.strip():
            name = param.opts[-1] if isinstance(param, click.Option) else param.human_readable_name if param else "path"
            raise BadUsage(f"{name} needs the path of a folder or file, not an empty text")
        return super().convert(value, param, ctx)
