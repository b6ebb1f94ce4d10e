"""What a drafting method may be told. Every method takes the same record and reads what concerns it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from spec_edge.models.contract import BadUsage
from spec_edge.runtime.costs import CostCurve
from spec_edge.runtime.draft_model import DraftModel
from spec_edge.runtime.networks import Network
from spec_edge.runtime.pool import Pool
from spec_edge.runtime.sampling import Sampler, Sampling

MODES = ("merge", "cascade")
"""How `a+b` joins its members.

READS, in the file of a method, names what it reads that not every method does: fields of `Options`, which are refused
where no method of the call reads them, what takes time to get ready: "cost" (the cost curve of this machine), "draft"
(the second network) and "network" (the method's own weights in the bundle), and "paths" (a tree given by paths)."""


@dataclass(frozen=True)
class DrafterOptions:
    """Options of `create` in each `runtime/drafters/<name>.py`.

    draft_tokens      most tokens drafted in a step; None: the method's own choice
    max_ngram         longest suffix of the text that prompt lookup searches for
    min_ngram         shortest one; None: the method's own choice
    cost              t(width) on this machine; None: not measured
    lookahead         (W, N, G): window columns, n-gram length, guesses; None: what fits the width best
    lookahead_prompt  lookahead's pool begins with the prompt's n-grams
    pool              accepted text of earlier generations; None: none is kept
    pool_in_lookahead lookahead draws from `pool` too (suffix always does)
    hybrid            how `a+b` joins its members: "merge" (one tree) or "cascade" (the first that proposes)
    off               members of `a+b` that do not propose in this generation; they still learn
    sampler           what the target's laws go through, and so the laws of a drafter that has any
    draft             a second network, for the methods that need one
    draft_seconds     of a run of it with one row; None: not measured
    network_seconds   the same of the networks whose runs were timed, by their method
    tree              of a second network: None drafts a chain, () a tree expanded best-first, (4, 2) one with four
                      children of the text and two of each of those
    paths             a tree by its paths, each one the rank at each level, in order of worth; None: `tree` decides
    networks          what runtime/sessions/<method>.py opened, for the methods whose weights lie in the bundle
    confidence        a second network stops drafting where its best token is less likely; None: the method's choice
    """

    draft_tokens: int | None = None
    max_ngram: int = 4
    min_ngram: int | None = None
    cost: CostCurve | None = None
    lookahead: tuple[int, int, int] | None = None
    lookahead_prompt: bool = True
    pool: Pool | None = None
    pool_in_lookahead: bool = False
    hybrid: str = "merge"
    off: tuple[str, ...] = ()
    sampler: Sampler = field(default_factory=lambda: Sampler(Sampling()))
    draft: DraftModel | None = None
    draft_seconds: float | None = None
    network_seconds: Mapping[str, float] = field(default_factory=dict)
    tree: tuple[int, ...] | None = None
    paths: tuple[tuple[int, ...], ...] | None = None
    networks: Mapping[str, Network] = field(default_factory=dict)
    confidence: float | None = None

    def __post_init__(self) -> None:
        if self.draft_tokens is not None and self.draft_tokens < 1:
            raise BadUsage(f"draft-tokens must be at least 1, not {self.draft_tokens}; --method plain drafts nothing")
        shortest = 1 if self.min_ngram is None else self.min_ngram
        if not 1 <= shortest <= self.max_ngram:
            raise BadUsage(f"n-grams must be 1 <= shortest <= longest, not {shortest} and {self.max_ngram}")
        if self.lookahead is not None:
            columns, n, guesses = self.lookahead
            if columns < 1 or n < 2 or guesses < 1:
                given = f"{columns},{n},{guesses}"
                raise BadUsage(f"lookahead W,N,G must be at least 1,2,1, not {given}; 4,4,1 fits a width of 16")
        if self.hybrid not in MODES:
            raise BadUsage(f"a hybrid is one of {', '.join(MODES)}, not '{self.hybrid}'")
        if any(not 1 <= n <= 64 for n in self.tree or ()):
            raise BadUsage(f"a tree has between 1 and 64 children at each level, not {self.tree}")
        if self.confidence is not None and not 0 <= self.confidence <= 1:
            raise BadUsage(f"draft-confidence must be between 0 and 1, not {self.confidence}")
