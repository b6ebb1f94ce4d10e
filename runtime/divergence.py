"""Is a difference between two greedy texts the target's own arithmetic, or a fault?

Enters: a session, a prompt, two continuations of it, and the shapes of the runs that wrote the second one. Leaves: the
first place where they part, with the target's margin there, and whether the target alone writes the other token too
when its own text is fed to it in runs of those shapes (kernels add in another order where a run is wider).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spec_edge.models.contract import SpecError
from spec_edge.runtime.draft import EMPTY, Draft, Output
from spec_edge.runtime.protocols import Session

NOISE_FACTOR = 2.0
"""A margin of up to twice the width noise is a near-tie: either of the two logits may be off by the noise."""

LEADING = 10
FILLER = 0
"""Token of the rows that were not kept: which one it is must not matter."""


@dataclass(frozen=True)
class Shape:
    """A verify run without its tokens: the parents of its rows (see `Draft`), and which rows were kept."""

    parents: tuple[int, ...]
    kept: tuple[int, ...]


class Recorded:
    """A session that notes the shape of each verify run. `shapes` begins anew with each `prefill`."""

    def __init__(self, inner: Session) -> None:
        self.inner: Any = inner
        self.shapes: list[Shape] = []
        self._parents: tuple[int, ...] = ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    @property
    def wants(self) -> frozenset[str]:
        """As of the inner session."""
        wants: frozenset[str] = self.inner.wants
        return wants

    @wants.setter
    def wants(self, names: frozenset[str]) -> None:
        self.inner.wants = names

    def prefill(self, ids: Sequence[int]) -> Output:
        """As the inner session."""
        self.shapes = []
        output: Output = self.inner.prefill(ids)
        return output

    def verify(self, pending: int, draft: Draft) -> Output:
        """As the inner session."""
        self._parents = draft.parents
        output: Output = self.inner.verify(pending, draft)
        return output

    def commit(self, rows: Sequence[int]) -> None:
        """As the inner session."""
        self.shapes.append(Shape(self._parents, tuple(rows)))
        self.inner.commit(rows)


@dataclass(frozen=True)
class Divergence:
    """The first difference, at position `at` of the continuations.

    margin    logit of `expected` less logit of `got`, all rows of the continuation run at width 1
    noise     largest change of one of the ten leading logits over the widths and shapes tried, their common shift
              removed
    swaps     some width puts `got` first
    replayed  the target puts `got` first when it reads its own text in runs of the shapes that wrote it, with no
              drafted token in them; None where the shapes are not known
    """

    at: int
    expected: int
    got: int
    margin: float
    noise: float
    swaps: bool
    replayed: bool | None = None

    @property
    def near_tie(self) -> bool:
        """Whether the difference is the target's own. With known shapes: shown by running it."""
        if self.replayed is not None:
            return self.replayed
        return self.swaps or abs(self.margin) <= NOISE_FACTOR * self.noise


def first_difference(plain: Sequence[int], other: Sequence[int]) -> int | None:
    """Index of the first difference; None where one is a prefix of the other."""
    return next((i for i, (a, b) in enumerate(zip(plain, other, strict=False)) if a != b), None)


def divergence(
    session: Session,
    prompt: Sequence[int],
    plain: Sequence[int],
    other: Sequence[int],
    widths: Sequence[int],
    shapes: Sequence[Shape] | None = None,
) -> Divergence | None:
    """Where `other` parts from `plain`, both greedy continuations of `prompt`; None where neither does.

    The common part is run again at width 1, at each of `widths`, and in `shapes`, those of the runs that wrote
    `other`. The session's cache is overwritten.
    """
    at = first_difference(plain, other)
    if at is None:
        return None
    expected, got = plain[at], other[at]
    session.truncate(0)
    first = session.prefill(prompt).logits[-1].copy()
    logits = [_after(session, len(prompt), plain[:at], width) if at else first for width in (1, *widths)]
    margins = [float(row[expected]) - float(row[got]) for row in logits]
    replayed = None
    if shapes is not None and at > 0:
        logits.append(replay(session, prompt, plain[:at], shapes).copy())
        replayed = int(logits[-1].argmax()) == got
    leading = np.union1d(np.argsort(-logits[0])[:LEADING], [expected, got])
    change = np.stack([row[leading] - logits[0][leading] for row in logits])
    noise = float(np.abs(change - change.mean(axis=1, keepdims=True)).max())
    return Divergence(at, expected, got, margins[0], noise, min(margins) <= 0, replayed)


def replay(
    session: Session, prompt: Sequence[int], tokens: Sequence[int], shapes: Sequence[Shape]
) -> NDArray[np.float32]:
    """Logits [V] after prompt and `tokens` (at least one), which are fed in runs of these shapes.

    A kept row holds the text's token, every other row a filler. Overwrites the cache. SpecError: too few shapes.
    """
    session.truncate(0)
    session.prefill(prompt)
    start = 0
    for shape in shapes:
        kept = shape.kept[: len(tokens) - start]
        rows = [FILLER] * (len(shape.parents) + 1)
        for row, token in zip(kept, tokens[start:], strict=False):
            rows[row] = token
        draft = Draft(tuple(rows[1:]), shape.parents, (True,) * len(shape.parents))
        logits = session.verify(rows[0], draft).logits
        start += len(kept)
        if start == len(tokens):
            last: NDArray[np.float32] = logits[kept[-1]]
            return last
        session.commit(kept)
    raise SpecError(f"the runs recorded hold {start} of {len(tokens)} tokens; record the generation that is judged")


def _after(session: Session, prompt: int, tokens: Sequence[int], width: int) -> NDArray[np.float32]:
    """Logits [V] after the first `prompt` tokens of the cache and then `tokens` (at least one), `width` in a run."""
    session.truncate(prompt)
    for start in range(0, len(tokens), width):
        rows = tokens[start : start + width]
        output = session.verify(rows[0], Draft.chain(rows[1:]) if len(rows) > 1 else EMPTY)
        last: NDArray[np.float32] = output.logits[len(rows) - 1].copy()
        session.commit(range(len(rows)))
    return last


def margin_noise(session: Session, prompt: Sequence[int], tokens: Sequence[int]) -> NDArray[np.float64]:
    """float64 [len(tokens) - 1]: how much the gap of the two leading logits moves between runs of one row and of two.

    The text is fed token by token, once alone and once with a useless second row. Overwrites the cache.
    """
    alone, beside = (_fed(session, prompt, tokens[:-1], draft) for draft in (EMPTY, Draft.chain([FILLER])))
    leading = np.argsort(-alone, axis=1)[:, :2]
    gaps = [np.take_along_axis(rows, leading, axis=1) for rows in (alone, beside)]
    margins = [gap[:, 0].astype(np.float64) - gap[:, 1] for gap in gaps]
    moved: NDArray[np.float64] = np.abs(margins[0] - margins[1])
    return moved


def _fed(session: Session, prompt: Sequence[int], tokens: Sequence[int], beside: Draft) -> NDArray[np.float32]:
    """Logits [len(tokens), V] after each token, fed one at a time with `beside` drafted behind it."""
    session.truncate(0)
    session.prefill(prompt)
    rows = []
    for token in tokens:
        rows.append(session.verify(token, beside).logits[0].copy())
        session.commit([0])
    return np.stack(rows)
