"""Accepted text of earlier generations, kept for one application when it asks for it.

Enters: token ids of finished answers. Leaves: a private file (mode 0600 where the system has modes) in the user's data
folder or where the caller says, and what drafters search: a suffix automaton and n-grams over all of it.
The file is replaced whole, so that readers and writers at the same time see one state or another, never half of one;
of two writers at the same instant the later may drop what the other added.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs

from spec_edge.models.contract import BadUsage, SpecError
from spec_edge.runtime.ngram_pool import NgramPool
from spec_edge.runtime.suffix_automaton import BREAK, SuffixAutomaton

TOKENS = 1 << 15
"""Most tokens kept; the oldest texts go first."""

DAYS = 30.0
"""Age at which a text is dropped."""

LIMIT = 1 << 25
"""Most bytes of a file that is read."""

ID_LIMIT = 1 << 31
MAGIC = b'{"spec-edge pool": 1,'
"""How a pool begins; a file that begins otherwise is somebody else's, and neither replaced nor erased."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True)
class Entry:
    """One accepted text. when: seconds since 1970."""

    when: float
    ids: tuple[int, ...]


def default_path(application: str, tokenizer: str) -> Path:
    """Where the pool of an application and a tokenizer (its SHA-256) is kept."""
    if not _NAME.fullmatch(application):
        raise BadUsage(f"an application's name for its pool is 1 to 64 of A-Z a-z 0-9 _ -, not {application!r}")
    folder = Path(platformdirs.user_data_dir("spec-edge", appauthor=False)) / "pools"
    return folder / f"{application}-{tokenizer[:16]}.json"


class Pool:
    """Texts in memory and their file. Nothing is written before `save`.

    tokenizer  SHA-256 of the tokenizer that the ids belong to
    note       one line about a file that is ignored and left as it is, or cannot be written, or None
    """

    def __init__(
        self,
        path: Path,
        tokenizer: str,
        tokens: int = TOKENS,
        days: float = DAYS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if tokens < 1 or not days > 0:
            raise BadUsage(f"a pool keeps at least 1 token for more than 0 days, not {tokens} for {days}")
        self.path, self.tokenizer = path, tokenizer
        self.note: str | None = None
        self._tokens, self._age, self._clock = tokens, days * 86400, clock
        self._entries = self._kept(self._read())
        self._fresh: list[Entry] = []
        self._automaton: SuffixAutomaton | None = None
        self._ngrams: dict[tuple[int, int], NgramPool] = {}
        self._extra = 0

    @property
    def texts(self) -> tuple[tuple[int, ...], ...]:
        """Oldest first."""
        return tuple(e.ids for e in self._entries)

    @property
    def automaton(self) -> SuffixAutomaton:
        """Over all texts, with breaks between them; made when first asked for, then extended."""
        if self._automaton is None:
            self._automaton = SuffixAutomaton()
            for entry in self._entries:
                _extend(self._automaton, entry.ids)
        return self._automaton

    def ngrams(self, n: int, guesses: int) -> NgramPool:
        """The same for lookahead."""
        key = (n, guesses)
        if key not in self._ngrams:
            self._ngrams[key] = NgramPool(n, guesses)
            for entry in self._entries:
                self._ngrams[key].add_text(entry.ids)
        return self._ngrams[key]

    def add(self, ids: Sequence[int]) -> None:
        """Take in an accepted text; its last tokens if it is longer than the whole pool may be."""
        if not ids:
            return
        entry = Entry(self._clock(), tuple(ids)[-self._tokens :])
        self._fresh = self._kept([*self._fresh, entry])
        self._entries = self._kept([*self._entries, entry])
        self._extra += len(entry.ids)
        if self._extra > self._tokens:
            self._forget_searches()
            return
        if self._automaton is not None:
            _extend(self._automaton, entry.ids)
        for ngrams in self._ngrams.values():
            ngrams.add_text(entry.ids)

    def save(self) -> bool:
        """Add what is new to the file. False where that cannot be done: it is no pool of ours, or not writable."""
        others = self._read()
        if self.note is not None:
            return False
        entries = self._kept(sorted([*others, *self._fresh], key=lambda e: e.when))
        rest = json.dumps({"tokenizer": self.tokenizer, "texts": [[e.when, e.ids] for e in entries]})
        if (why := _replace(self.path, MAGIC + b" " + rest[1:].encode())) is not None:
            self.note = f"the pool {self.path} cannot be written ({why}), so nothing is kept; give another path"
            return False
        self._fresh = []
        return True

    def erase(self) -> None:
        """Forget every text, here and in the file. BadUsage: the file is no pool. SpecError: it cannot be deleted."""
        self._entries, self._fresh = [], []
        self._forget_searches()
        try:
            with self.path.open("rb") as file:
                begins = file.read(len(MAGIC))
            if begins and begins != MAGIC:
                raise BadUsage(f"{self.path} is not a pool of spec-edge and is left as it is; give the pool's own path")
            self.path.unlink()
        except FileNotFoundError:
            pass
        except OSError as e:
            raise SpecError(f"the pool {self.path} cannot be erased ({e.strerror}); delete the file yourself") from None
        self.note = None

    def _forget_searches(self) -> None:
        self._automaton = None
        self._ngrams = {}
        self._extra = 0

    def _kept(self, entries: Sequence[Entry]) -> list[Entry]:
        """Those that are neither too old nor too much, oldest first."""
        kept: list[Entry] = []
        room = self._tokens
        oldest = self._clock() - self._age
        for entry in reversed(entries):
            if room > 0 and entry.when > oldest:
                kept.append(Entry(entry.when, entry.ids[-room:]))
                room -= len(entry.ids)
        return kept[::-1]

    def _read(self) -> list[Entry]:
        """The file's texts; none, and a note, if it is not this tokenizer's pool."""
        self.note = None
        try:
            if self.path.stat().st_size > LIMIT:
                raise ValueError("it is too large")
            return _parse(self.path.read_bytes(), self.tokenizer)
        except FileNotFoundError:
            return []
        except OSError as e:
            why = e.strerror or "it cannot be read"
        except (ValueError, TypeError, KeyError, RecursionError) as e:
            why = str(e) if type(e) is ValueError else "it is damaged"
        self.note = f"the pool {self.path} is not used ({why}); erase it or give another path"
        return []


def _extend(automaton: SuffixAutomaton, ids: Sequence[int]) -> None:
    for token in ids:
        automaton.add(token)
    automaton.add(BREAK)


def _parse(data: bytes, tokenizer: str) -> list[Entry]:
    if not data.startswith(MAGIC):
        raise ValueError("it is no pool of this version")
    stored: dict[str, Any] = json.loads(data)
    if stored["tokenizer"] != tokenizer:
        raise ValueError("it belongs to another tokenizer")
    return [_entry(when, ids) for when, ids in stored["texts"]]


def _entry(when: object, ids: object) -> Entry:
    if type(when) not in (int, float) or not 0 <= float(str(when)) < float("inf"):
        raise TypeError
    if not isinstance(ids, list) or not all(type(t) is int and 0 <= t < ID_LIMIT for t in ids):
        raise TypeError
    return Entry(float(str(when)), tuple(ids))


def _replace(path: Path, data: bytes) -> str | None:
    """Write the whole file, which only its owner may read, or nothing: then why."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # mkstemp's files are private from the start, on every system that can say so.
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as out:
                out.write(data)
            Path(temporary).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
            raise
    except OSError as error:
        return error.strerror or str(error)
    return None
