"""A drafter whose network may fail, in a generation that goes on.

Enters: a drafter with a network. Leaves: the same proposals; from a failure on, none until the next text begins, and
one line that says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from spec_edge.runtime.costs import CostCurve
from spec_edge.runtime.draft import EMPTY, UNREAD, Context, Draft, Output, Verdict
from spec_edge.runtime.paced import paced, seconds
from spec_edge.runtime.protocols import Drafter
from spec_edge.runtime.providers.provider import ProviderFailed
from spec_edge.runtime.trie import Scores

R = TypeVar("R")
Propose = Callable[[Context, int], tuple[Draft, Scores]]


class Survivor:
    """`Drafter`, `Scored` (hybrid.py) and `Paced` over another one; propose: how that one proposes with scores."""

    def __init__(self, inner: Drafter, propose: Propose, say: Callable[[str], None]) -> None:
        self._inner, self._propose, self._say = inner, propose, say
        self._alive = True
        self._said = ""

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def wants(self) -> frozenset[str]:
        return self._inner.wants

    @property
    def seconds(self) -> float | None:
        """As the inner one says."""
        return seconds(self._inner)

    def promises(self, cost: CostCurve, most: int) -> float:
        """Nothing once it has failed; of what takes no time it is not asked."""
        inner = paced(self._inner) if self._alive else None
        return 1.0 if inner is None else inner.promises(cost, most)

    def spent(self, draft: Draft) -> float:
        """As the inner one says."""
        inner = paced(self._inner)
        return 0.0 if inner is None else inner.spent(draft)

    def start(self, prompt: Sequence[int], read: Output = UNREAD) -> None:
        """A new text: it may try again."""
        self._alive = True
        self._guarded(lambda: self._inner.start(prompt, read), None)

    def propose(self, context: Context, width: int) -> Draft:
        return self._guarded(lambda: self._inner.propose(context, width), EMPTY)

    def propose_scored(self, context: Context, width: int) -> tuple[Draft, Scores]:
        nothing: tuple[Draft, Scores] = EMPTY, []
        return self._guarded(lambda: self._propose(context, width), nothing)

    def observe(self, verdict: Verdict, draft: Draft, output: Output) -> None:
        self._guarded(lambda: self._inner.observe(verdict, draft, output), None)

    def _guarded(self, call: Callable[[], R], otherwise: R) -> R:
        if not self._alive:
            return otherwise
        try:
            return call()
        except ProviderFailed as error:
            self._alive = False
            if self._said != error.message:
                self._say(f"{self.name} drafts no more in this text ({error.message.rstrip('. ')})")
            self._said = error.message
            return otherwise
