"""Lookahead decoding: the target itself guesses further ahead, in a Jacobi window beside the text.

Enters: every token so far and the logits of the last step. Leaves: a tree of guesses from an n-gram pool as candidates,
and the window as rows that are computed and never accepted.
Source: Fu et al. 2024 (arXiv 2402.02057); a full match keeps its bonus token here, as every draft's does.

The window has N - 1 levels of W columns. Cell (0, 0) is the pending token, level 0 is a chain, cell (l, j) follows
(l - 1, j): so mask and positions come from `parents` like any tree's. The last level's best tokens become the next
level, also when sampling: the window is then a function of the tokens so far, and guesses taken from it were chosen
without looking at the target's next draw. That is all the point-mass rule needs to be exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from spec_edge.models.contract import BadUsage
from spec_edge.runtime.draft import ROOT, UNREAD, Context, Draft, Output, Verdict
from spec_edge.runtime.drafters.options import DrafterOptions
from spec_edge.runtime.ngram_pool import Guess, NgramPool
from spec_edge.runtime.trie import merge

READS = ("lookahead", "lookahead_prompt", "pool_lookahead")
"""What this method reads that not every one does: see `drafters/options.py`."""

Levels = tuple[tuple[int, ...], ...]
"""Tokens of the window by level; level 0 without the pending token."""

SEED = 0
"""Of the prompt tokens that fill level 0 at first: any will do, the same ones every time."""


@dataclass(frozen=True)
class Shape:
    """columns: W. n: N. guesses: G, most branches of a step and most guesses kept per token."""

    columns: int
    n: int
    guesses: int

    @property
    def rows(self) -> int:
        """(N - 1)(W + G): verify rows of a step with no shared prefix, the pending token included."""
        return (self.n - 1) * (self.columns + self.guesses)


def fit(width: int) -> Shape:
    """The window for a verify width (at least 2): at most two thirds of the rows, as many guesses as find room.

    On training prompts: N of 4 from a width of 12 on; longer n-grams leave a window too narrow to find any.
    """
    n = 2 if width < 4 else 3 if width < 12 else 4
    return Shape(max(1, 2 * (width // (n - 1)) // 3), n, width)


def check_width(lookahead: tuple[int, int, int], width: int) -> None:
    """BadUsage if W,N,G do not fit a verify width."""
    if (need := Shape(*lookahead).rows) > width:
        raise BadUsage(
            f"lookahead {','.join(map(str, lookahead))} needs {need} rows, a step here has {width}; lower W, N or G"
        )


def first_levels(prompt: Sequence[int], shape: Shape) -> Levels:
    """Level 0 before the first step: W + N - 3 tokens, of which each warm-up step uses up one."""
    picks = np.random.default_rng(SEED).integers(0, len(prompt), shape.columns + shape.n - 3)
    return (tuple(prompt[i] for i in picks.tolist()),)


def window(levels: Levels) -> Draft:
    """The window's rows, level by level."""
    width = len(levels[0]) + 1
    tokens = [t for level in levels for t in level]
    parents = list(range(-1, width - 2))
    for level in range(1, len(levels)):
        # Row of cell (level - 1, j); level 0 begins at the pending token, -1.
        above = -1 + width * (level - 1)
        parents += range(above, above + width)
    return Draft(tuple(tokens), tuple(parents), (False,) * len(tokens))


def advance(levels: Levels, best: Sequence[int], shape: Shape) -> Levels:
    """The window one position on. `best`: the best token below each cell of the last level.

    Warming up, it gains a level and loses its first column; after that it drops level 0. It moves by one position
    however many tokens were accepted, as in the source: moving it further gained nothing on training prompts.
    """
    if len(levels) < shape.n - 1:
        return (*(level[1:] for level in levels), tuple(best[1:]))
    moved = (*levels[1:], tuple(best))
    return (moved[0][1:], *moved[1:])


def locate(shown: Draft, draft: Draft) -> list[int] | None:
    """Verify rows of `shown`'s non-candidates inside a draft that was merged or cut; None if one is missing.

    Rows are found by their path of tokens: equal paths have equal logits.
    """
    rows: dict[tuple[int, int], int] = {}
    first = {ROOT: ROOT}
    for i, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        if not draft.candidate[i] and parent in first:
            first[i] = rows.setdefault((first[parent], token), i)
    found: list[int] = []
    for token, parent in zip(shown.tokens, shown.parents, strict=True):
        at = rows.get((found[parent] if parent != ROOT else ROOT, token))
        if at is None:
            return None
        found.append(at)
    return [i + 1 for i in found]


class Lookahead:
    """Window and pool of one generation; their shape is fixed by the first step's width."""

    name = "lookahead"
    steady = True
    wants: frozenset[str] = frozenset()

    def __init__(self, options: DrafterOptions) -> None:
        self._options = options
        self.start((0,))

    def start(self, prompt: Sequence[int], read: Output = UNREAD) -> None:  # noqa: ARG002
        """A new text: the pool is empty, the window begins to warm up at the first step."""
        self._prompt = tuple(prompt)
        self._shape = Shape(1, 2, 1)
        self._pool = NgramPool(2, 1)
        self._levels: Levels = ()
        self._known = 0
        self._pending = prompt[-1]

    def propose(self, context: Context, width: int) -> Draft:
        if not self._levels:
            self._open(width)
        self._pending = context.ids[-1]
        self._take_in(context.ids)
        guesses = [Draft.chain(g) for g in self._guesses(self._pending)]
        return merge([*guesses, window(self._levels)], width)

    def observe(self, verdict: Verdict, draft: Draft, output: Output) -> None:
        """Move the window on, if its rows were run, and keep the n-grams that it completes."""
        pending, self._pending = self._pending, verdict.tokens[-1]
        rows = locate(window(self._levels), draft) if self._levels else None
        if rows is None:
            return
        columns = len(self._levels[0]) + 1
        last = ([0, *rows] if len(self._levels) == 1 else rows)[-columns:]
        best = [int(output.logits[row].argmax()) for row in last]
        if len(self._levels) == self._shape.n - 1:
            cells = ((pending, *self._levels[0]), *self._levels[1:], best)
            for ngram in zip(*cells, strict=True):
                self._pool.add(ngram)
        self._levels = advance(self._levels, best, self._shape)

    def _open(self, width: int) -> None:
        given = self._options.lookahead
        self._shape = Shape(*given) if given else fit(width)
        self._pool = NgramPool(self._shape.n, self._shape.guesses)
        self._levels = first_levels(self._prompt, self._shape)
        self._known = 0 if self._options.lookahead_prompt else len(self._prompt)

    def _take_in(self, ids: Sequence[int]) -> None:
        """The text's n-grams, each once."""
        self._pool.add_text(ids, self._known)
        self._known = max(self._known, len(ids) - self._shape.n + 1)

    def _guesses(self, token: int) -> list[Guess]:
        own = self._pool.find(token)
        if self._options.pool is not None and self._options.pool_in_lookahead:
            shared = self._options.pool.ngrams(self._shape.n, self._shape.guesses)
            own += [g for g in shared.find(token) if g not in own]
        return own[: self._shape.guesses]


def create(options: DrafterOptions) -> Lookahead:
    """The drafter of this file."""
    return Lookahead(options)
