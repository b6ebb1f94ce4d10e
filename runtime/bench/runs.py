"""What is measured: records, and the one protocol that everything measured follows.

Enters: nothing. Leaves: `Item` (a prompt and how much to write), `Run` (one generation, as it arrived), `Record`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from spec_edge.models.contract import SpecError


class Failed(SpecError):
    """A contender cannot go on; the others do."""


@dataclass(frozen=True)
class Item:
    """One turn of a question, the same for every contender.

    ids     the prompt; a later turn holds plain decoding's answers to the earlier ones
    plain   plain decoding's answer, end of sequence included; its length is how many tokens everyone writes
    seed    of sampled text
    """

    question: str
    task: str
    turn: int
    ids: tuple[int, ...]
    plain: tuple[int, ...]
    seed: int = 0

    @property
    def new_tokens(self) -> int:
        return len(self.plain)


@dataclass(frozen=True)
class Inside:
    """What only our own engine tells: seconds in draft, verify and the rest; steps in which a token drafted at depth
    d + 1 was accepted, and in which there was one."""

    draft_s: float
    verify_s: float
    overhead_s: float
    accepted: tuple[int, ...]
    drafted: tuple[int, ...]


@dataclass(frozen=True)
class Run:
    """One generation.

    tokens    new ids
    arrivals  (seconds since the call, tokens that came then), in order; the first one ends prefill
    steps     verify runs after prefill, plain ones included; None where the program does not tell
    """

    tokens: tuple[int, ...]
    arrivals: tuple[tuple[float, int], ...]
    steps: int | None
    inside: Inside | None = None


@dataclass(frozen=True)
class Record:
    """A run in its place."""

    contender: str
    question: str
    task: str
    turn: int
    repeat: int
    run: Run


class Contender(Protocol):
    """A method of ours, or of a peer ("peer/method")."""

    @property
    def name(self) -> str: ...

    def generate(self, item: Item) -> Run:
        """One generation of `item.new_tokens` tokens from a cold cache. Failed: it cannot."""
        ...
