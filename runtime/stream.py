"""One generation as the caller sees it: pieces of text, and what they cost.

Enters: an engine and the prompt's ids. Leaves: text as it becomes final, and a `Generation`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from spec_edge.models.contract import SpecError
from spec_edge.runtime.engine import Engine
from spec_edge.runtime.stats import Stats
from spec_edge.runtime.stops import TextStream

INTERRUPTED = "interrupted"
"""finish_reason of a generation that the caller left before its end."""


@dataclass(frozen=True)
class Generation:
    """text: without end of sequence and stop string. tokens: new ids, end of sequence not included.

    finish_reason  stop | length | context, or interrupted
    provider       that the target ran on at the end
    notes          what was said by then about steps down a chain of providers
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: str
    method: str
    provider: str
    model: str
    stats: Stats
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**vars(self), "tokens": list(self.tokens), "stats": self.stats.as_dict(), "notes": list(self.notes)}


@dataclass(frozen=True)
class Owner:
    """What a stream knows of its model.

    provider, notes  as in `Generation`, now
    turn     held while a step is taken: whoever else wants the model waits for its end
    current  whether the stream is still the model's generation
    keep     takes the tokens of a text that has ended
    note     one line that the user should read, or None: asked at the end, when the text has been kept
    """

    provider: Callable[[], str]
    notes: Callable[[], tuple[str, ...]]
    model: str
    turn: AbstractContextManager[object]
    current: Callable[[Stream], bool]
    keep: Callable[[Sequence[int]], None]
    note: Callable[[], str | None]


class Stream:
    """An iterator over pieces of text. The prompt has been read when it exists.

    reuse  keep the rows that the engine knows of, where the prompt begins with their tokens
    """

    def __init__(self, owner: Owner, engine: Engine, ids: Sequence[int], text: TextStream, reuse: bool = False) -> None:
        self._owner, self._engine, self._stream = owner, engine, text
        self._chunks = engine.generate(ids, reuse)
        self._text: list[str] = []
        self._pieces = self._run()

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        return next(self._pieces)

    @property
    def note(self) -> str | None:
        """One line about something that was asked for and is not done, or None."""
        return self._owner.note()

    @property
    def result(self) -> Generation:
        """What there is so far; complete once the iterator has ended."""
        return Generation(
            text="".join(self._text),
            tokens=tuple(self._engine.tokens),
            finish_reason=self._engine.finish_reason or INTERRUPTED,
            method=self._engine.drafter.name,
            provider=self._owner.provider(),
            model=self._owner.model,
            stats=self._engine.stats,
            notes=self._owner.notes(),
        )

    def _run(self) -> Iterator[str]:
        for piece in self._raw():
            if piece:
                self._text.append(piece)
                yield piece
        with self._owner.turn:
            self._owner.keep(self._engine.tokens)

    def _raw(self) -> Iterator[str]:
        """A stop string ends it at once, also one that only the last character completes."""
        chunk: list[int] | None = []
        while chunk is not None and not self._stream.stopped:
            with self._owner.turn:
                if not self._owner.current(self):
                    raise SpecError("this generation is over: its model was closed or has begun another one")
                chunk = next(self._chunks, None)
                piece = self._stream.flush() if chunk is None else self._stream.push(chunk)
                if self._stream.stopped:
                    self._engine.stop(self._stream.tokens)
            yield piece
