"""Texts on disk, in numbered files that are whole or absent.

Enters: texts with the target's tapped layers and hidden states. Leaves: the same, of one file at a time. A folder
belongs to one target and one set of taps; files of another are refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from spec_edge.export.train.generate import Generated
from spec_edge.models.contract import SpecError

FORMAT = "1"
NOTE = "texts.json"


@dataclass(frozen=True)
class Place:
    """Where a text lies: file, number in it, its first token there; length and prompt in tokens."""

    number: int
    text: int
    first: int
    length: int
    prompt: int
    greedy: bool

    @property
    def answer(self) -> int:
        return self.length - self.prompt


@dataclass(frozen=True)
class Shards:
    """A folder of files `NNNNN.safetensors`.

    fingerprint  of the target, its precision and taps: what made the texts
    """

    folder: Path
    fingerprint: str
    opened: dict[int, Any] = field(default_factory=dict)
    """Files that have been read, mapped until the process ends."""

    def path(self, number: int) -> Path:
        return self.folder / f"{number:05}.safetensors"

    def has(self, number: int) -> bool:
        return self.path(number).is_file()

    def prepare(self) -> None:
        """Make the folder, or check that it is this target's. SpecError otherwise, or where it cannot be written."""
        note = self.folder / NOTE
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if not note.exists():
                _replace(note, json.dumps({"format": FORMAT, "fingerprint": self.fingerprint}).encode())
            found = json.loads(note.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise SpecError(f"the texts cannot be kept in {self.folder}: {error}") from None
        if found != {"format": FORMAT, "fingerprint": self.fingerprint}:
            raise SpecError(f"{self.folder} holds texts of another target, precision or taps; give another --cache")

    def write(self, number: int, texts: Sequence[Generated]) -> None:
        """SpecError where there is no room."""
        tensors = {
            "ids": torch.tensor([i for text in texts for i in text.ids], dtype=torch.int32),
            "lengths": torch.tensor([len(text.ids) for text in texts], dtype=torch.int32),
            "prompts": torch.tensor([text.prompt for text in texts], dtype=torch.int32),
            "greedy": torch.tensor([text.greedy for text in texts]),
            "taps": torch.cat([text.taps for text in texts]),
            "hidden": torch.cat([text.hidden for text in texts]),
        }
        work = self.path(number).with_suffix(".partial")
        try:
            save_file(tensors, work, {"fingerprint": self.fingerprint})
            work.replace(self.path(number))
        except (OSError, SafetensorError) as error:
            raise SpecError(f"{self.path(number)} cannot be written: {error}") from None

    def numbers(self) -> list[int]:
        """Files that there are."""
        return sorted(int(path.stem) for path in self.folder.glob("[0-9]*.safetensors") if path.stem.isdecimal())

    def index(self, numbers: Sequence[int]) -> list[Place]:
        """Where the texts of these files lie. SpecError: one is broken."""
        found = []
        for number in numbers:
            with self._open(number) as file:
                names = ("lengths", "prompts", "greedy")
                lengths, prompts, greedy = (file.get_tensor(name).tolist() for name in names)
            at = 0
            for i, (length, prompt, best) in enumerate(zip(lengths, prompts, greedy, strict=True)):
                found.append(Place(number, i, at, length, prompt, best))
                at += length
        return found

    def ids(self, place: Place) -> list[int]:
        """A text's tokens alone."""
        with self._open(place.number) as file:
            found: list[int] = file.get_slice("ids")[place.first : place.first + place.length].tolist()
        return found

    def read(self, place: Place) -> Generated:
        """A text. SpecError: its file is broken."""
        with self._open(place.number) as file:
            ids = file.get_slice("ids")[place.first : place.first + place.length]
            rows = slice(place.first - place.text, place.first - place.text + place.length - 1)
            taps, hidden = file.get_slice("taps")[rows], file.get_slice("hidden")[rows]
        return Generated(tuple(ids.tolist()), place.prompt, place.greedy, taps, hidden)

    @contextmanager
    def _open(self, number: int) -> Iterator[Any]:
        try:
            if number not in self.opened:
                self.opened[number] = safe_open(self.path(number), "pt")
            yield self.opened[number]
        except (OSError, SafetensorError) as error:
            raise SpecError(f"{self.path(number)} is broken ({error}); delete it, it is made again") from None


def _replace(path: Path, content: bytes) -> None:
    work = path.with_name(f".{path.name}.{os.getpid()}")
    work.write_bytes(content)
    work.replace(path)
