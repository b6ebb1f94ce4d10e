"""Plain decoding: no draft, one token a step."""

from __future__ import annotations

from collections.abc import Sequence

from spec_edge.runtime.draft import EMPTY, UNREAD, Context, Draft, Output, Verdict
from spec_edge.runtime.drafters.options import DrafterOptions

READS = ("draft_tokens",)
"""A limit that drafting nothing keeps: methods can be compared under the same options. See `drafters/options.py`."""

OWN_PACE = True
"""There is no draft whose length a policy could choose."""

DRAFTS = False
"""This method is refused beside others in a hybrid, to which it would add nothing."""


class Plain:
    """Proposes nothing."""

    name = "plain"
    wants: frozenset[str] = frozenset()

    def start(self, prompt: Sequence[int], read: Output = UNREAD) -> None:
        """Nothing to prepare."""

    def propose(self, context: Context, width: int) -> Draft:  # noqa: ARG002
        return EMPTY

    def observe(self, verdict: Verdict, draft: Draft, output: Output) -> None:
        """Nothing to learn."""


def create(options: DrafterOptions) -> Plain:  # noqa: ARG001
    """The drafter of this file."""
    return Plain()
