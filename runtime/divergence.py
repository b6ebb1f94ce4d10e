"""Is a difference between two greedy texts a near-tie of the target, or a fault?

Enters: a session, a prompt and two continuations of it. Leaves: the first place where they part, with the target's own
margin there and how much that margin moves when the same tokens are run at other widths (kernels add in another
order). A near-tie is a margin that the width alone turns over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spec_edge.runtime.draft import EMPTY, Draft
from spec_edge.runtime.protocols import Session

NOISE_FACTOR = 2.0
"""A margin of up to twice the width noise is a near-tie: either of the two logits may be off by the noise."""

LEADING = 10


@dataclass(frozen=True)
class Divergence:
    """The first difference, at position `at` of the continuations.

    margin    logit of `expected` less logit of `got`, all rows of the continuation run at width 1
    noise     largest change of one of the ten leading logits over the widths tried, their common shift removed
    swaps     some width puts `got` first
    """

    at: int
    expected: int
    got: int
    margin: float
    noise: float
    swaps: bool

    @property
    def near_tie(self) -> bool:
        return self.swaps or abs(self.margin) <= NOISE_FACTOR * self.noise


def first_difference(plain: Sequence[int], other: Sequence[int]) -> int | None:
    """Index of the first difference; None where one is a prefix of the other."""
    return next((i for i, (a, b) in enumerate(zip(plain, other, strict=False)) if a != b), None)


def divergence(
    session: Session, prompt: Sequence[int], plain: Sequence[int], other: Sequence[int], widths: Sequence[int]
) -> Divergence | None:
    """Where `other` parts from `plain`, both greedy continuations of `prompt`; None where neither does.

    The common part is run again at width 1 and at each of `widths`. The session's cache is overwritten.
    """
    at = first_difference(plain, other)
    if at is None:
        return None
    expected, got = plain[at], other[at]
    logits = [_after(session, prompt, plain[:at], width).copy() for width in (1, *widths)]
    margins = [float(row[expected]) - float(row[got]) for row in logits]
    leading = np.union1d(np.argsort(-logits[0])[:LEADING], [expected, got])
    change = np.stack([row[leading] - logits[0][leading] for row in logits])
    noise = float(np.abs(change - change.mean(axis=1, keepdims=True)).max())
    return Divergence(at, expected, got, margins[0], noise, min(margins) <= 0)


def _after(session: Session, prompt: Sequence[int], tokens: Sequence[int], width: int) -> NDArray[np.float32]:
    """Logits [V] after prompt and tokens, the tokens committed `width` rows at a time."""
    session.truncate(0)
    logits: NDArray[np.float32] = session.prefill(prompt).logits[-1]
    for start in range(0, len(tokens), width):
        rows = tokens[start : start + width]
        output = session.verify(rows[0], Draft.chain(rows[1:]) if len(rows) > 1 else EMPTY)
        logits = output.logits[len(rows) - 1]
        session.commit(range(len(rows)))
    return logits
