"""Prompts of every kind, filled from lists and from the passages of other prompts.

Enters: prompts that there are (their longer texts become passages), a number and a seed. Leaves: as many conversations,
the kinds in turn. Templates and lists are data/kinds.json, written for this project.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from importlib.resources import files
from typing import TypeAlias

Turns: TypeAlias = tuple[str, ...]
"""A conversation: user and assistant in turn, the user first and last."""

PASSAGE, SHORTEST, LONGEST = "passage", 300, 2400
PLACE = re.compile(r"\{(\w+)\}")


def passages(prompts: Sequence[str]) -> list[str]:
    """The longest paragraph of each prompt, where it is long enough; what follows a colon early in it."""
    found = []
    for prompt in prompts:
        text = max(re.split(r"\n\s*\n", prompt), key=len).strip()
        head, colon, rest = text.partition(": ")
        text = rest if colon and len(head) < 40 else text
        if len(text) >= SHORTEST:
            found.append(text[:LONGEST].strip())
    return list(dict.fromkeys(found))


def conversations(count: int, texts: Sequence[str], seed: int) -> list[Turns]:
    """`count` of them. texts: passages; kinds that need one are left out where there is none."""
    data = json.loads(files("spec_edge.export.train").joinpath("data").joinpath("kinds.json").read_text("utf-8"))
    lists: dict[str, list[str]] = data["lists"]
    chance = random.Random(seed)
    kinds = [[t for t in kind if texts or PASSAGE not in str(t)] for kind in data["kinds"].values()]
    kinds = [kind for kind in kinds if kind]

    def filled(template: str) -> str:
        return PLACE.sub(lambda m: chosen(m[1]), template)

    def chosen(name: str) -> str:
        return chance.choice(texts) if name == PASSAGE else filled(chance.choice(lists[name]))

    made: dict[Turns, None] = {}
    for i in range(count * 4):
        template = chance.choice(kinds[i % len(kinds)])
        made[tuple(filled(t) for t in ([template] if isinstance(template, str) else template))] = None
        if len(made) == count:
            break
    return list(made)
