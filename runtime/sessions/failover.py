"""A target that goes on with its text where a provider fails.

Enters: candidates, each able to open a `Session`, and the sizes that all of them hold. Leaves: a `Session` whose
results are an undisturbed one's: it keeps the committed ids, and where a call fails it reads them again on what is
opened next and repeats the call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from spec_edge.runtime.draft import Draft, Output
from spec_edge.runtime.protocols import Session
from spec_edge.runtime.providers.provider import ProviderFailed
from spec_edge.runtime.sessions.chain import Chain

R = TypeVar("R")


class FailoverSession:
    """The `Session` of protocols.py over a chain of them.

    capacity, max_width  the smallest of any candidate: a text that was begun fits all of them
    """

    def __init__(self, chain: Chain[Session], capacity: int, max_width: int) -> None:
        self.chain = chain
        self.capacity, self.max_width = capacity, max_width
        self.wants: frozenset[str] = frozenset()
        self._ids: list[int] = []
        self._last: tuple[int, Draft] | None = None

    @property
    def vocab_size(self) -> int:
        return self.chain.now.vocab_size

    @property
    def length(self) -> int:
        return len(self._ids)

    def prefill(self, ids: Sequence[int]) -> Output:
        self.chain.rearm()
        output = self._run(lambda session: self._checked(session.prefill(ids)))
        self._ids += ids
        self._last = None
        return output

    def verify(self, pending: int, draft: Draft) -> Output:
        output = self._run(lambda session: self._checked(session.verify(pending, draft)))
        self._last = pending, draft
        return output

    def commit(self, rows: Sequence[int]) -> None:
        """Keep rows of the last verify run, which is repeated where the failure took it."""
        self.chain.run(self.length, lambda session: session.commit(rows), self._replay)
        if self._last is not None:
            tokens = (self._last[0], *self._last[1].tokens)
            self._ids += [tokens[row] for row in rows]
        self._last = None

    def truncate(self, length: int) -> None:
        self._run(lambda session: session.truncate(length))
        del self._ids[length:]
        self._last = None

    def close(self) -> None:
        self.chain.close()

    def _run(self, call: Callable[[Session], R]) -> R:
        return self.chain.run(self.length, lambda session: call(self._synced(session)), self._restore)

    def _synced(self, session: Session) -> Session:
        """With the committed rows and no others, whatever an interruption or an error ended halfway."""
        if session.length > self.length:
            session.truncate(self.length)
        if session.length < self.length:
            session.truncate(0)
            self._restore(session)
        session.wants = self.wants
        return session

    def _restore(self, session: Session) -> None:
        session.wants = frozenset()
        if self._ids:
            session.prefill(self._ids)

    def _replay(self, session: Session) -> None:
        self._restore(session)
        if self._last is not None:
            session.verify(*self._last)

    def _checked(self, output: Output) -> Output:
        """ProviderFailed for garbage, while there is another provider to ask; the engine reports the last one's."""
        if self.chain.last:
            return output
        with np.errstate(invalid="ignore", over="ignore"):
            finite = np.isfinite(output.logits.sum())
        if not finite:
            raise ProviderFailed("it computes garbage: logits that are not finite")
        return output
