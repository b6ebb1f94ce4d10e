"""`spec-export inspect`: what a checkpoint is, which target it fits, what it lacks.

Enters: a path, and optionally the target's. Leaves: a record, and lines for people. Weights stay on disk: only headers
are read, and pickles by a child process as in an export.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from spec_edge.export.drafter_files import open_files, weights_file
from spec_edge.models.checkpoint import ModelConfig
from spec_edge.models.contract import SpecError
from spec_edge.models.drafter import Description, DrafterFiles, kind_of
from spec_edge.models.family import tensor_shapes
from spec_edge.models.open import open_config


@dataclass(frozen=True)
class Inspected:
    """What a checkpoint is.

    what         "target" (which can also draft, as a draft model) or the kind of a drafter
    option       how spec-export takes it; empty: it does not
    hidden_size, vocab_size  its own, or those of the target that it fits; None: it does not say
    base         the target that it names itself
    fits         None: no target was given; else what that target does not share (empty: it fits)
    missing      what it lacks and where that comes from
    problems     why it cannot be used
    """

    path: str
    what: str
    option: str
    dialect: str
    sizes: Mapping[str, int | float | str]
    hidden_size: int | None
    vocab_size: int | None
    base: str | None
    missing: tuple[str, ...]
    problems: tuple[str, ...]
    fits: str | None = None

    @property
    def refused(self) -> bool:
        """Whether it has a problem or does not fit. A model that was looked at as a draft model is one of its own."""
        return bool(self.problems) or (self.what != "target" and bool(self.fits))


def inspect(path: Path, target: Path | None = None) -> Inspected:
    """SpecError: nothing that spec-export reads is there."""
    config = None if target is None else open_config(target)[1]
    with ExitStack() as stack:
        files, unread = _drafter_files(path, stack)
        kind = None if files is None else kind_of(files)
        if files is None or kind is None:
            found = _target(path, files, config)
        else:
            fits = "not checked, as its weights are not read" if unread and config else _fits(files, config)
            option = f"spec-export MODEL --{kind.method} {quoted(path)}"
            found = _drafter(path, kind.name, option, kind.describe(files), fits)
    found = replace(found, problems=(*unread, *found.problems))
    return replace(found, option="") if found.refused else found


def quoted(path: Path) -> str:
    """As a shell of this system takes it."""
    return subprocess.list2cmdline([str(path)]) if os.name == "nt" else shlex.quote(str(path))


def _drafter_files(path: Path, stack: ExitStack) -> tuple[DrafterFiles | None, tuple[str, ...]]:
    """What can be read, and why weights that are there cannot be. None: of another sort, such as a GGUF file."""
    if path.suffix == ".gguf":
        return None, ()
    try:
        return open_files(path, stack, look=True), ()
    except SpecError as error:
        if not path.is_dir() or not (path / "config.json").is_file():
            raise
        unread = (error.message,) if weights_file(path) else ()
    return open_files(path, stack, weights=False, look=True), unread


def _drafter(path: Path, what: str, option: str, found: Description, fits: str | None) -> Inspected:
    return Inspected(
        str(path),
        what,
        option,
        found.dialect,
        found.sizes,
        found.hidden_size,
        found.vocab_size,
        found.target,
        found.missing,
        found.problems,
        fits,
    )


def _fits(files: DrafterFiles, target: ModelConfig | None) -> str | None:
    """Empty where it fits, else the line that an export would give."""
    if target is None:
        return None
    kind = kind_of(files)
    try:
        if kind is not None:
            kind.open(files, target)
    except SpecError as error:
        return error.message
    return ""


def _target(path: Path, files: DrafterFiles | None, target: ModelConfig | None) -> Inspected:
    """A model of its own."""
    try:
        name, config = open_config(path)
    except SpecError as error:
        raise SpecError(f"{path} is no model and no drafter that is known: {error.message}") from None
    missing = []
    if files is not None and not files.tensors:
        missing.append("the weights: a plan (--dry-run) needs none, an export does")
    if path.is_dir() and not (path / "tokenizer.json").is_file():
        missing.append("tokenizer.json: an export needs it")
    sizes: dict[str, int | float | str] = {
        "layers": config.layers,
        "heads": config.heads,
        "K/V heads": config.kv_heads,
        "head dimension": config.head_dim,
        "MLP size": config.intermediate_size,
        "context": config.context,
        "parameters": sum(prod(shape) for shape in tensor_shapes(config).values()),
    }
    return Inspected(
        str(path),
        "target",
        f"spec-export {quoted(path)}, or as a draft model: spec-export MODEL --draft {quoted(path)}",
        f"{config.family}, {'GGUF' if path.suffix == '.gguf' else 'Hugging Face'}: {name}",
        sizes,
        config.hidden_size,
        config.vocab_size,
        None,
        tuple(missing),
        (),
        None if target is None else _drafts_for(config, target),
    )


def _drafts_for(config: ModelConfig, target: ModelConfig) -> str:
    """As a draft model: the ids must mean the same, which the tokenizers tell at export."""
    if config.vocab_size == target.vocab_size:
        return ""
    return (
        f"its vocabulary has {config.vocab_size} rows, the target's {target.vocab_size}: it drafts for it only if the "
        "ids that both have mean the same, which export checks"
    )


def inspect_lines(found: Inspected) -> list[str]:
    """The record for people."""
    lines = [f"{found.path}: {found.what}", f"  {found.dialect}"]
    lines += [f"  {name}: {value}" for name, value in found.sizes.items()]
    own = "" if found.what == "target" else " of the target that it fits"
    for name, value in (("hidden size", found.hidden_size), ("vocabulary", found.vocab_size)):
        if name not in found.sizes or own:
            lines.append(f"  {name}{own}: {'not stated' if value is None else value}")
    if found.base:
        lines.append(f"  made for: {found.base}")
    if found.fits is not None:
        lines.append(f"  the target: {found.fits or 'it fits'}")
    lines += [f"  missing: {text}" for text in found.missing]
    lines += [f"  problem: {text}" for text in found.problems]
    return [*lines, f"  use: {found.option}"] if found.option else lines
