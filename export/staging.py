"""Publishing a bundle whole or not at all.

Enters: the folders that the user asked for. Leaves: a temporary one beside each, renamed into place at the end and
removed on any way out but success (an error, Ctrl-C, a termination request).
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from spec_edge.models.contract import MANIFEST, BadUsage, SpecError
from spec_edge.runtime.termination import termination_as_interrupt

_STALE_S = 6 * 3600
"""A leftover this old belongs to an export that was killed, not to one that runs."""


@contextmanager
def staged(output: Path, replace: bool) -> Iterator[Path]:
    """A fresh folder to write into; it becomes `output` when the block ends without an exception."""
    with staged_together((output,), replace) as (work,):
        yield work


@contextmanager
def staged_together(outputs: Sequence[Path], replace: bool) -> Iterator[tuple[Path, ...]]:
    """A fresh folder for each output; all of them appear, or none does."""
    # resolve() would follow a symlink that is to be replaced
    finals = [Path(os.path.abspath(output)) for output in outputs]  # noqa: PTH100
    for final in finals:
        _check_place(final)
        _check(final, replace)
    works = tuple(final.with_name(f".{final.name}.partial-{os.getpid()}") for final in finals)
    try:
        for final, work in zip(finals, works, strict=True):
            with writing(final):
                _make(final, work)
        with termination_as_interrupt(), writing(finals[-1]):
            yield works
            _publish(list(zip(works, finals, strict=True)), replace)
    finally:
        for work in works:
            shutil.rmtree(work, ignore_errors=True)


def _make(output: Path, work: Path) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    _sweep(output)
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()


@contextmanager
def writing(output: Path) -> Iterator[None]:
    """Turns what the system says about a write into one line that names the folder."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        fix = "free some space" if full else "choose another folder with -o"
        raise SpecError(f"cannot write {output}: {error.strerror or error}; {fix}") from error


def _check_place(output: Path) -> None:
    """BadUsage for what an empty or mistaken -o names: no folder that can appear, or be replaced, as a whole."""
    here = Path.cwd()
    if output in (here, *here.parents):
        raise BadUsage(f"-o names {output}, which is or holds the folder you are in; name a new folder with -o")
    if output.name.startswith("-"):
        raise BadUsage(f"-o names '{output.name}', which looks like an option; name a folder with -o")


def _check(output: Path, replace: bool) -> None:
    if not output.exists():
        return
    if not output.is_dir():
        raise BadUsage(f"{output} is a file; name a folder with -o")
    if not any(output.iterdir()):
        return
    if not (output / MANIFEST).is_file():
        raise SpecError(f"{output} holds other files; name a new folder with -o")
    if not replace:
        raise SpecError(f"{output} already holds a bundle; add --force to replace it")


def _publish(moves: Sequence[tuple[Path, Path]], replace: bool) -> None:
    """Rename each into place. Old bundles step aside first; all of it is undone if one rename fails.

    What has come to lie there since the start, another export's bundle say, is looked at like what lay there before.
    """
    done: list[tuple[Path, Path]] = []
    asides = [output.with_name(f".{output.name}.replaced-{os.getpid()}") for _, output in moves]
    try:
        for (work, output), aside in zip(moves, asides, strict=True):
            _check(output, replace)
            if output.exists():
                _rename(output, aside, done)
            _rename(work, output, done)
    except BaseException:
        for source, target in reversed(done):
            target.replace(source)
        raise
    for aside in asides:
        shutil.rmtree(aside, ignore_errors=True)


def _rename(source: Path, target: Path, done: list[tuple[Path, Path]]) -> None:
    source.replace(target)
    done.append((source, target))


def _sweep(output: Path) -> None:
    """Remove what killed exports of the same bundle left behind."""
    pattern = re.compile(re.escape(f".{output.name}.") + r"(partial|replaced)-\d+$")
    for path in output.parent.iterdir():
        with suppress(OSError):
            if pattern.match(path.name) and time.time() - path.stat().st_mtime > _STALE_S:
                shutil.rmtree(path, ignore_errors=True)
