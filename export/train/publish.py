"""Heads on disk: a folder with config.json, model.safetensors and a model card leaves; earlier heads enter.

Enters: tensors under published names. Leaves: the same under own names, to go on from.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from spec_edge.export.drafter_files import open_files
from spec_edge.export.train.fit import State
from spec_edge.export.train.options import TrainOptions
from spec_edge.export.train.prompts import licences
from spec_edge.export.train.store import Place
from spec_edge.models.checkpoint import Checkpoint, ModelConfig
from spec_edge.models.contract import SpecError
from spec_edge.models.drafter import kind_of
from spec_edge.models.eagle_network import HEAD, PREFIX
from spec_edge.models.eagle_open import OpenEagle


@dataclass(frozen=True)
class Start:
    """Weights of an EAGLE drafter by own names. ids: its drafted ids; None: all."""

    weights: Mapping[str, Tensor]
    ids: Tensor | None

    def into(self, fresh: dict[str, Tensor], ids: Tensor) -> None:
        """Replace fresh weights; of the head the rows of ids that both draft. SpecError: other shapes."""
        for name, value in fresh.items():
            found = self.weights.get(name)
            if name == HEAD and found is not None and self.ids is not None:
                rows = {token: row for row, token in enumerate(self.ids.tolist())}
                pairs = [(i, rows[token]) for i, token in enumerate(ids.tolist()) if token in rows]
                mine, theirs = (torch.tensor(side) for side in zip(*pairs, strict=True))
                value[mine.to(value.device)] = found[theirs].to(value.device)
            elif found is None or found.shape != value.shape:
                shape = None if found is None else list(found.shape)
                raise SpecError(f"--from: '{name}' is {list(value.shape)} here and {shape} there; give the same sizes")
            else:
                value.copy_(found)


def starting_weights(path: Path, target: ModelConfig) -> Start:
    """Of an EAGLE drafter of this target. SpecError: it is none."""
    with ExitStack() as stack:
        files = open_files(path, stack)
        kind = kind_of(files)
        opened = kind.open(files, target) if kind else None
        if not isinstance(opened, OpenEagle):
            raise SpecError(f"--from {path} is no EAGLE drafter; only those can be gone on from")
        own = opened.net.weights
        found = {name.removeprefix(PREFIX): torch.from_numpy(own.dense(name)) for name in own.names()}
        ids = opened.net.ids
        return Start(found, None if ids is None else torch.from_numpy(ids).long())


def publish(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], text: str) -> None:
    """The files of a checkpoint."""
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    # save_file would make it the owner's alone
    (folder / "model.safetensors").write_bytes(save({name: t.cpu().contiguous() for name, t in tensors.items()}))
    (folder / "README.md").write_text(text, encoding="utf-8")


def _command(options: TrainOptions) -> str:
    """What trains the same heads, without the names of this machine's files."""
    start = {"--prompts": options.prompts and options.prompts.name, "--from": options.start and options.start.name}
    said = {
        "--passes": options.passes,
        "--draft-vocab": options.draft_vocab,
        "--precision": options.precision,
        "--seed": options.seed,
        **({"--heads": options.heads} if options.kind == "medusa" else {"--form": options.form}),
        **({"--minutes": options.minutes} if options.minutes is not None else {"--tokens": options.tokens}),
    }
    every = {name: value for name, value in (start | said).items() if value is not None}
    named = " ".join(f"{name} {value}" for name, value in every.items())
    return f"spec-export train {options.kind} {Path(options.model).name} -o {options.output.name} {named}"


def card(options: TrainOptions, checkpoint: Checkpoint, places: Sequence[Place], state: State) -> str:
    """The model card: what it was made from and how well it drafts."""
    answers, source = sum(p.answer for p in places), checkpoint.source
    asked = f"{'a file' if options.prompts else 'its own'} and filled templates"
    sources = licences(options.prompts) if options.prompts else {}
    lines = [
        f"# {options.name} heads for {checkpoint.name}",
        "",
        f"Trained by `spec-export train {options.kind}` on {answers} tokens that the target itself answered with,",
        f"to {len(places)} prompts ({asked}), seed {options.seed}.",
        f"Target: {source.name}, SHA-256 {source.sha256}, precision {options.precision}.",
        "",
        f"    {_command(options)}",
        "",
        *(["| prompts of | licence | number |", "|---|---|---|"] if sources else []),
        *(f"| {name} | {licence} | {count} |" for (name, licence), count in sources.items()),
        *([""] if sources else []),
        "Mean acceptance length (a chain, from where verify steps begin, on prompts that were not trained on), and",
        "the share of steps that accept at least 1, 2, ... tokens:",
        "",
        "| answer tokens trained on | acceptance length | by depth |",
        "|---|---|---|",
    ]
    for tokens, found in state.curve:
        lines.append(f"| {tokens} | {found.length:.3f} | {' '.join(f'{share:.3f}' for share in found.depth)} |")
    return "\n".join(lines) + "\n"
