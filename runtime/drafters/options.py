"""What a drafting method may be told. Every method takes the same record and reads what concerns it."""

from __future__ import annotations

from dataclasses import dataclass

from spec_edge.models.contract import BadUsage
from spec_edge.runtime.costs import CostCurve


@dataclass(frozen=True)
class DrafterOptions:
    """Options of `create` in each `runtime/drafters/<name>.py`.

    draft_tokens  most tokens drafted in a step; None: the method's own choice
    max_ngram     longest suffix of the text that prompt lookup searches for
    min_ngram     shortest one; None: the method's own choice
    cost          t(width) on this machine; None: not measured
    """

    draft_tokens: int | None = None
    max_ngram: int = 4
    min_ngram: int | None = None
    cost: CostCurve | None = None

    def __post_init__(self) -> None:
        if self.draft_tokens is not None and self.draft_tokens < 1:
            raise BadUsage(f"draft-tokens must be at least 1, not {self.draft_tokens}; --method plain drafts nothing")
        shortest = 1 if self.min_ngram is None else self.min_ngram
        if not 1 <= shortest <= self.max_ngram:
            raise BadUsage(f"n-grams must be 1 <= shortest <= longest, not {shortest} and {self.max_ngram}")
