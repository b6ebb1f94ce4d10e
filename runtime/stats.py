"""What a generation cost and what speculation gained.

Enters: one `Round` per verify step. Leaves: a frozen `Stats`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace


@dataclass(frozen=True)
class Round:
    """One verify step.

    drafted    candidate tokens verified; depth: of the deepest one
    accepted   of those, the ones in the output
    committed  tokens the step added to the output, end-of-sequence included
    sources    names of the drafters whose tokens were verified
    draft_s    in the drafter; verify_s: in the session's verify; total_s: the whole step
    """

    drafted: int
    depth: int
    accepted: int
    committed: int
    sources: tuple[str, ...]
    draft_s: float
    verify_s: float
    total_s: float


@dataclass(frozen=True)
class Stats:
    """Counters of one generation; times in seconds.

    new_tokens            tokens of the result (end-of-sequence not included)
    steps                 verify runs; prefill is none
    acceptance_length     tokens committed in verify steps / steps: bonus tokens and end-of-sequence count, tokens
                          past a limit or a stop do not, nor does prefill's token; 0 without steps
    bonus                 tokens the steps added that were not drafted: one a step, none where the text ended before
    accepted_by_position  [d]: in how many steps a drafted token at depth d + 1 was accepted
    drafted_by_position   [d]: in how many steps there was one
    steps_by_drafter      steps with tokens of this drafter; "plain": without a draft. A merged draft counts for several
    lossy                 the acceptance rule does not keep the target's law (`typical`)
    ttft_s                from the call to the first token
    decode_s              in verify steps; what the caller does between them is not counted
    tokens_per_s          tokens committed in verify steps / decode_s
    overhead_s            decode_s less draft_s and verify_s: acceptance, sampling, commit, bookkeeping
    """

    prompt_tokens: int
    new_tokens: int
    steps: int
    drafted: int
    accepted: int
    bonus: int
    acceptance_length: float
    accepted_by_position: tuple[int, ...]
    drafted_by_position: tuple[int, ...]
    steps_by_drafter: dict[str, int]
    lossy: bool
    ttft_s: float
    decode_s: float
    tokens_per_s: float
    draft_s: float
    verify_s: float
    overhead_s: float

    def as_dict(self) -> dict[str, int | float | list[int] | dict[str, int]]:
        """Plain values in the order above, for JSON."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}


def summarise(
    prompt_tokens: int, new_tokens: int, ttft_s: float, rounds: Sequence[Round], lossy: bool = False
) -> Stats:
    """Add up the rounds."""
    steps, committed = len(rounds), sum(r.committed for r in rounds)
    accepted = sum(r.accepted for r in rounds)
    decode, draft, verify = (sum(t) for t in _times(rounds))
    return Stats(
        prompt_tokens=prompt_tokens,
        new_tokens=new_tokens,
        steps=steps,
        drafted=sum(r.drafted for r in rounds),
        accepted=accepted,
        bonus=committed - accepted,
        acceptance_length=committed / steps if steps else 0.0,
        accepted_by_position=_by_position([r.accepted for r in rounds]),
        drafted_by_position=_by_position([r.depth for r in rounds]),
        steps_by_drafter=dict(Counter(name for r in rounds for name in r.sources)),
        lossy=lossy,
        ttft_s=ttft_s,
        decode_s=decode,
        tokens_per_s=committed / decode if decode > 0 else 0.0,
        draft_s=draft,
        verify_s=verify,
        overhead_s=decode - draft - verify,
    )


def _by_position(depths: Sequence[int]) -> tuple[int, ...]:
    return tuple(sum(depth > d for depth in depths) for d in range(max(depths, default=0)))


def _times(rounds: Sequence[Round]) -> tuple[list[float], list[float], list[float]]:
    return [r.total_s for r in rounds], [r.draft_s for r in rounds], [r.verify_s for r in rounds]


def dropped(rounds: Sequence[Round], tokens: int) -> list[Round]:
    """The same rounds without the last `tokens` committed tokens (those past a stop)."""
    out = list(rounds)
    for i in reversed(range(len(out))):
        cut = min(tokens, out[i].committed)
        left = out[i].committed - cut
        out[i] = replace(out[i], committed=left, accepted=min(out[i].accepted, left))
        tokens -= cut
    return out
