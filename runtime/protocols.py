"""The two seams of the loop: what runs the network, and what proposes tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from spec_edge.runtime.draft import UNREAD, Context, Draft, Output, Verdict


class Session(Protocol):
    """A network with its K/V cache. `length`: committed rows; `capacity`: most rows it can hold."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def capacity(self) -> int: ...

    @property
    def max_width(self) -> int:
        """Most rows of one verify run (pending token included)."""
        ...

    wants: frozenset[str]
    """Names among "hidden", "taps": what `Output` holds besides logits, set before a generation."""

    @property
    def length(self) -> int: ...

    def prefill(self, ids: Sequence[int]) -> Output:
        """Run and commit `ids`; logits [1, V] of the last one, features of all of them."""
        ...

    def verify(self, pending: int, draft: Draft) -> Output:
        """Run the pending token and the draft over the cache; logits [len(draft) + 1, V]. Commits nothing."""
        ...

    def commit(self, rows: Sequence[int]) -> None:
        """Keep these rows of the last verify run, in order; rows[0] is 0."""
        ...

    def truncate(self, length: int) -> None:
        """Forget every committed row from `length` on."""
        ...

    def close(self) -> None: ...


class Drafter(Protocol):
    """A drafting method. One instance serves one generation at a time; `start` begins one.

    wants  names among "hidden", "taps": what it needs from prefill and verify runs
    """

    @property
    def name(self) -> str: ...

    @property
    def wants(self) -> frozenset[str]: ...

    def start(self, prompt: Sequence[int], read: Output = UNREAD) -> None:
        """A new text. `read`: the prefill run, with the features that it `wants` of the prompt's last rows: all of
        them, or those past the prefix that the last text left behind and the one row before it."""
        ...

    def propose(self, context: Context, width: int) -> Draft:
        """At most width - 1 tokens."""
        ...

    def observe(self, verdict: Verdict, draft: Draft, output: Output) -> None:
        """Learn from a step, whoever proposed: the accepted tokens and the target's features."""
        ...
