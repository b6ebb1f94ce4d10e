"""Where prompts come from: a file, the target itself, and templates of every kind.

Enters: a path or nothing, and the target's tokenizer. Leaves: an endless, seeded stream of jobs, in groups of similar
length that fill a batch each.
"""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from spec_edge.export.train.generate import Generated, Job
from spec_edge.export.train.kinds import Turns, conversations, passages
from spec_edge.models.checkpoint import Checkpoint
from spec_edge.models.contract import BadUsage, FileFact, SpecError, TextFacts
from spec_edge.runtime.text import Text

GROUP, WINDOW = 96, 480
"""Jobs generated together, and jobs that are sorted by length before they are cut into groups."""

LIMITS = (64, 96, 128, 192, 256, 384, 512)
"""Most tokens of an answer: one is drawn for each."""

HEAT = (0.0, 0.0, 0.0, 0.6, 0.8, 1.0)
"""Temperatures, one drawn for each answer: half are greedy."""

LONGEST = 2048
"""Most positions of a text."""

OWN = 192
"""Most tokens of a user turn that the target writes itself."""

ROLES = ("user", "assistant")


def read_prompts(path: Path) -> list[Turns]:
    """Of a .jsonl file each line's "prompt", "turns" or "messages", else each line of text. BadUsage: there is none."""
    try:
        lines = [line for line in path.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise BadUsage(f"--prompts {path} cannot be read: {error}") from None
    found: list[Turns] = [(line.strip(),) for line in lines]
    if path.suffix == ".jsonl":
        found = [_turns(line, f"{path}, line {n}") for n, line in enumerate(lines, 1)]
    if not found:
        raise BadUsage(f"--prompts {path} holds no prompts")
    return found


def _turns(line: str, where: str) -> Turns:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise BadUsage(f"{where} is no JSON: {error}") from None
    row = row if isinstance(row, dict) else {}
    if isinstance(row.get("messages"), list):
        turns = [message.get("content") for message in row["messages"] if isinstance(message, dict)]
        turns = turns if len(turns) % 2 else turns[:-1]
    else:
        turns = [row.get("prompt")] if "prompt" in row else (row.get("turns") or [])[:1]
    if not turns or not all(isinstance(turn, str) and turn.strip() for turn in turns):
        raise BadUsage(f'{where} has no "prompt" (a text), and no "messages"')
    return tuple(turns)


def licences(path: Path) -> dict[tuple[str, str], int]:
    """Prompts by ("source", "license") of a .jsonl file, where its lines say that; most first."""
    if path.suffix != ".jsonl":
        return {}
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]
    named = [row for row in rows if isinstance(row, dict) and "source" in row and "license" in row]
    return dict(Counter((str(row["source"]), str(row["license"])) for row in named).most_common())


def text_of(checkpoint: Checkpoint) -> Text:
    """The tokenizer and template as the runtime will have them."""
    text = checkpoint.text
    facts = TextFacts(
        FileFact("tokenizer.json", 0, ""), None, text.tokens, text.bos_id, text.add_bos, tuple(sorted(text.eos_ids))
    )
    return Text.of(facts, text.tokenizer_json, text.chat_template, checkpoint.config.context)


def encode(text: Text, turns: Turns) -> tuple[int, ...]:
    """By the model's own template; without one the turns one after another."""
    if text.template is None:
        return tuple(text.encode_prompt("\n\n".join(turns)))
    return tuple(text.encode_chat([{"role": ROLES[i % 2], "content": turn} for i, turn in enumerate(turns)]))


def jobs(text: Text, given: Sequence[Turns], context: int, seed: int) -> Iterator[list[Job]]:
    """Groups without end. given: prompts, which alternate with as many filled templates; each pass in a new order."""
    texts, longest = passages([turns[0] for turns in given]), min(context, LONGEST)
    for number in itertools.count():
        chance = random.Random(seed * 1_000_003 + number)
        drawn = chance.sample(list(given), min(len(given), WINDOW // 2))
        drawn += conversations(WINDOW - len(drawn), texts, chance.randrange(1 << 30))
        asked = [_job(encode(text, turns), longest, chance) for turns in drawn]
        window = sorted((job for job in asked if job is not None), key=lambda job: len(job.ids))
        groups = [window[i : i + GROUP] for i in range(0, len(window), GROUP)]
        if not groups:
            raise SpecError(f"no prompt is shorter than the model's context of {context} tokens")
        chance.shuffle(groups)
        yield from groups


def _job(ids: tuple[int, ...], longest: int, chance: random.Random) -> Job | None:
    """None: too long."""
    limit, heat = min(chance.choice(LIMITS), longest // 2), chance.choice(HEAT)
    return Job(ids, limit, heat) if 1 < len(ids) <= longest - limit else None


def own_turns(text: Text, count: int, make: Callable[[list[Job]], list[Generated]]) -> list[Turns]:
    """User turns that the target writes where the template begins one (Magpie, Xu et al. 2024, arXiv 2406.08464).

    make: answers to jobs. SpecError: the template begins with nothing that could be gone on from.
    """
    if text.template is None:
        raise SpecError("this model has no chat template to sample prompts from; give --prompts FILE")
    one, other = (text.encode_chat([{"role": "user", "content": content}]) for content in ("Why", "name 3"))
    begin = list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
    if len(begin) < 2:
        raise SpecError("this model's chat template begins with the user's text; give --prompts FILE")
    ids = tuple(token for token, _ in begin)
    made = (text.decode(one.ids[one.prompt :]).strip() for one in make([Job(ids, OWN, 1.0)] * count))
    return [(turn,) for turn in dict.fromkeys(made) if len(turn) > 3]
