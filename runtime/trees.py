"""Static trees: which ranks of which level are drafted.

Enters: the name of a published tree, or a file of paths; or the rate at which each rank of each level is right. Leaves:
paths in the order in which they pay, every path after its beginning, so that the first n of them are a tree too.
A path is one rank per level, counted from 0: (0, 2) is the best token, then the third best after it.
"""

from __future__ import annotations

import difflib
import functools
import heapq
import json
import re
from collections.abc import Sequence
from importlib.resources import files
from itertools import product
from pathlib import Path

from spec_edge.models.contract import BadUsage
from spec_edge.runtime.draft import ROOT

Ranks = tuple[int, ...]
LIMIT = 1 << 20
"""Most bytes of a file of paths."""
MOST = 1 << 10
"""Most paths of a tree."""
WIDEST = 64
"""Ranks of one level."""
SHOWN = 8
"""Ranks of a path that a message shows."""

_NUMBERS = re.compile(r"\d{1,3}(?:[\s,]+\d{1,3})*")


def paths_of(text: str) -> tuple[Ranks, ...]:
    """A published tree by name, or the paths in a file: one a line (`0 2 1`), or a JSON list of lists. BadUsage: it is
    neither, or no tree."""
    published = _published()
    if text in published:
        return published[text]
    file = Path(text).expanduser()
    if not file.is_file():
        near = difflib.get_close_matches(text, published, 1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        raise BadUsage(
            f"there is no tree or file '{text}'.{hint} Trees: {', '.join(published)}; or numbers such as 4,2,1"
        )
    try:
        with file.open("rb") as source:
            data = source.read(LIMIT + 1)
        return checked(_parsed(data.decode("utf-8-sig")), f"tree {text}")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no list of paths such as 0 2 1"
        raise BadUsage(f"the tree {text} cannot be read: {reason}") from None


@functools.cache
def _published() -> dict[str, tuple[Ranks, ...]]:
    lines = files("spec_edge.runtime").joinpath("trees.txt").read_text("utf-8").splitlines()
    rows = [line.split() for line in lines if not line.startswith("#")]
    return {name: tuple(tuple(map(int, path)) for path in paths) for name, *paths in rows}


def _parsed(text: str) -> list[Ranks]:
    """ValueError: anything else."""
    if len(text) > LIMIT:
        raise ValueError
    if not text.lstrip().startswith("["):
        lines = [line.strip() for line in text.splitlines()]
        kept = [line for line in lines if line and not line.startswith("#")]
        if not all(_NUMBERS.fullmatch(line) for line in kept):
            raise ValueError
        return [tuple(map(int, re.findall(r"\d+", line))) for line in kept]
    try:
        found = json.loads(text)
    except RecursionError:
        raise ValueError from None
    if not all(isinstance(path, list) and all(type(rank) is int for rank in path) for path in found):
        raise ValueError
    return [tuple(path) for path in found]


def checked(paths: Sequence[Ranks], what: str) -> tuple[Ranks, ...]:
    """The paths; BadUsage where they are no tree. Each one's beginning must be there; it is moved before it."""
    known = set(paths)
    if not 0 < len(paths) <= MOST or len(known) != len(paths):
        raise BadUsage(f"{what} must have between 1 and {MOST} different paths, not {len(paths)}")
    for path in paths:
        if not path or any(not 0 <= rank < WIDEST for rank in path):
            raise BadUsage(f"{what}: a path has ranks between 0 and {WIDEST - 1}, not {_shown(path)}")
        if len(path) > 1 and path[:-1] not in known:
            raise BadUsage(f"{what} has the path {_shown(path)} but not its beginning {_shown(path[:-1])}")
    place = {path: i for i, path in enumerate(paths)}
    return tuple(sorted(paths, key=lambda p: (max(place[p[: n + 1]] for n in range(len(p))), len(p))))


def _shown(path: Ranks) -> str:
    """A path for a message, short."""
    ranks = ", ".join(str(rank) if abs(rank) < LIMIT else "..." for rank in path[:SHOWN])
    return f"[{ranks}]" if len(path) <= SHOWN else f"[{ranks}, ...] of {len(path)} ranks"


def by_levels(branches: Sequence[int]) -> tuple[Ranks, ...]:
    """(4, 2): the four best tokens, and the two best after each; level by level."""
    out: list[Ranks] = []
    for depth in range(1, len(branches) + 1):
        out += product(*(range(n) for n in branches[:depth]))
        if len(out) > MOST:
            break
    return tuple(out[:MOST])


def grown(rates: Sequence[Sequence[float]], nodes: int) -> tuple[Ranks, ...]:
    """The `nodes` paths most likely to be right, best first. rates[level][rank]: falling along the ranks.

    A path counts as the product of its rates: heads are taken to be right or wrong on their own (Cai et al. 2024).
    """
    out: list[Ranks] = []
    heap: list[tuple[float, Ranks, float]] = [(-rates[0][0], (0,), 1.0)] if rates and len(rates[0]) else []
    while heap and len(out) < nodes:
        score, path, above = heapq.heappop(heap)
        out.append(path)
        level, rank = len(path) - 1, path[-1]
        if rank + 1 < len(rates[level]):
            heapq.heappush(heap, (-above * rates[level][rank + 1], (*path[:-1], rank + 1), above))
        if level + 1 < len(rates) and len(rates[level + 1]):
            heapq.heappush(heap, (score * rates[level + 1][0], (*path, 0), -score))
    return tuple(out)


def fitting(paths: Sequence[Ranks], levels: int, ranks: int, nodes: int) -> tuple[Ranks, ...]:
    """The first `nodes` paths that `levels` levels of `ranks` candidates have, shallow ones first."""
    kept = [path for path in paths if len(path) <= levels and max(path) < ranks][: max(nodes, 0)]
    return tuple(sorted(kept, key=lambda path: (len(path), path)))


def parents(paths: Sequence[Ranks]) -> tuple[int, ...]:
    """Row of each path's beginning in `paths`, -1 for a path of one rank."""
    place = {path: i for i, path in enumerate(paths)} | {(): ROOT}
    return tuple(place[path[:-1]] for path in paths)
