"""A network that runs on the first of several providers that works, and moves to the next where one fails.

Enters: candidates in order, each able to open the network. Leaves: the results of calls on it, unbroken by a failure,
and one line for each step down the chain. What a network remembers is brought back by whoever calls (`restore`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from spec_edge.models.contract import SpecError
from spec_edge.runtime.providers.provider import ProviderFailed

OTHER = "with other weights: from here on the text is another model's"
MOST = 300
"""Characters of a reason."""

Say = Callable[[str], None]
"""Takes one line for the user."""

LOST = re.compile(r"device[ _]?(is |was )?(lost|removed|reset|hung)|887a000[567]|70000001", re.IGNORECASE)
"""A device that vanished and may come back: Level Zero's, Vulkan's and DXGI's words and codes for it."""


class Closable(Protocol):
    """A network that holds a device."""

    def close(self) -> None: ...


T = TypeVar("T", bound=Closable)
R = TypeVar("R")


class NoProviderLeft(ProviderFailed):
    """Every candidate failed; the message holds each one's reason."""


@dataclass(frozen=True)
class Candidate(Generic[T]):
    """A way to run a network.

    name     of the provider
    open     makes it ready; a SpecError says why it cannot
    graphs   what identifies its graphs, and `weights` its weights: a step to another one says what stays the same
    meant    whether the bundle was made for this provider
    """

    name: str
    open: Callable[[], T]
    graphs: str = ""
    weights: str = ""
    meant: bool = False


class Chain(Generic[T]):
    """now: the open network. name: of the provider that it runs on.

    A device that looks lost is opened again once in a text (see `rearm`); any other failure moves on for good.
    """

    def __init__(self, candidates: Sequence[Candidate[T]], say: Say, what: str = "") -> None:
        """what: the network's name in a line, "" for the target's. NoProviderLeft: none opens."""
        self._candidates, self._say = tuple(candidates), say
        self._what = f"{what}: " if what else ""
        self._at, self._again, self._closed = 0, True, False
        self._reasons: list[str] = []
        self._held: T | None = None
        self._held = self._open()
        if self._at:
            kept = self._kept(self._candidates[0])
            faster = "" if kept == OTHER or self.candidate.meant else "; a bundle made for it is faster"
            self._say(f"{self._what}running on {self.name}, {kept}{faster}")

    @property
    def now(self) -> T:
        if self._held is not None:
            return self._held
        if self._closed:
            raise SpecError(f"{self._what}this session is closed")
        if self.left:  # an interruption has ended the last step down
            self._held = self._open()
            return self._held
        none = "no provider is left: " if len(self._candidates) > 1 else ""
        raise NoProviderLeft(
            f"{self._what}{none}{'; '.join(self._reasons)}; 'spec-edge doctor' says what there is here"
        )

    @property
    def candidate(self) -> Candidate[T]:
        """The one that runs, or ran last."""
        return self._candidates[min(self._at, len(self._candidates) - 1)]

    @property
    def name(self) -> str:
        return self.candidate.name

    @property
    def left(self) -> tuple[Candidate[T], ...]:
        """From the one that runs on."""
        return self._candidates[self._at :]

    @property
    def last(self) -> bool:
        """Whether there is nothing behind this one."""
        return len(self.left) <= 1

    def rearm(self) -> None:
        """A new text: a lost device may be opened again once more."""
        self._again = True

    def run(self, at: int | None, call: Callable[[T], R], restore: Callable[[T], object]) -> R:
        """`call(now)`; after a failure `restore` and `call` on what is opened then. at: tokens so far, for the line."""
        held = self.now
        try:
            return call(held)
        except ProviderFailed as error:
            failure = error
        while True:  # every turn leaves a candidate, or the one that may be opened again, behind
            held = self._move(at, _reason(failure, self.name))
            try:
                _restored(held, restore)
                return call(held)
            except ProviderFailed as error:
                failure = error

    def close(self) -> None:
        """Free the device. Calls fail from then on."""
        held, self._held, self._closed = self._held, None, True
        if held is not None:
            held.close()

    def _move(self, at: int | None, reason: str) -> T:
        """The network opened again, or on the next provider."""
        failed = self.candidate
        what = f"{failed.name} failed{'' if at is None else f' at token {at}'} ({reason})"
        broken, self._held = self.now, None
        with suppress(Exception):  # how it ends is no news
            broken.close()
        self._reasons.append(what)
        again = self._again and LOST.search(reason) is not None
        self._again = self._again and not again
        self._at += not again
        found = self._held = self._open()
        then = "opened again" if self.candidate is failed else f"continuing on {self.name}, {self._kept(failed)}"
        self._say(f"{self._what}{what}; {then}")
        return found

    def _kept(self, before: Candidate[T]) -> str:
        if before.weights != self.candidate.weights:
            return OTHER
        return "same graph and weights" if before.graphs == self.candidate.graphs else "same weights, another graph"

    def _open(self) -> T:
        """The first from here on that opens."""
        while self._at < len(self._candidates):
            if (found := self._opened()) is not None:
                return found
            self._at += 1
        return self.now

    def _opened(self) -> T | None:
        try:
            return self.candidate.open()
        except SpecError as error:
            verb = "skipped" if len(self._candidates) > 1 else "cannot be used"
            self._reasons.append(f"{self.name} {verb}: {_reason(error, self.name)}")
            if not self.last:
                self._say(self._what + self._reasons[-1])
            return None


def _restored(held: T, restore: Callable[[T], object]) -> None:
    """What cannot take the rows so far (its cache is smaller) cannot go on with them."""
    try:
        restore(held)
    except ProviderFailed:
        raise
    except SpecError as error:
        raise ProviderFailed(error.message) from error


def _reason(error: SpecError, name: str) -> str:
    """One line, to stand within a longer one that begins with the provider's name."""
    return " ".join(error.message.split()).removeprefix(f"{name}: ")[:MOST].rstrip(". ")
