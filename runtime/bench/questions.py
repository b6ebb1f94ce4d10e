"""Questions in Spec-Bench's form: one JSON object a line.

Enters: a file, or nothing for the set that ships with the package. Leaves: `Question`s; BadUsage names the line that is
wrong. Two-turn chats stay two-turn chats.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from spec_edge.models.contract import BadUsage

OWN_SET = "questions.jsonl"
OVERALL = "overall"
"""The group of all questions in a report."""

FORM = '{"question_id": 1, "task": "qa", "turns": ["..."]}'


@dataclass(frozen=True)
class Question:
    """turns: what the user says, one after another. task: the group whose figures it enters."""

    id: str
    task: str
    turns: tuple[str, ...]


def read(path: Path | None, limit: int | None = None) -> tuple[Question, ...]:
    """The first `limit` questions of a file. None: the package's own, which mixes its six tasks from the start."""
    if limit is not None and limit < 1:
        raise BadUsage(f"limit must be at least 1, not {limit}")
    found = tuple(_questions(_text(path), str(path or OWN_SET)))
    if not found:
        raise BadUsage(f"{path or OWN_SET} holds no question; each line is {FORM}")
    return found[:limit]


def shipped(name: str) -> str:
    """The text of a file of bench/data."""
    return (files("spec_edge.runtime.bench") / "data" / name).read_text(encoding="utf-8")


def _text(path: Path | None) -> str:
    if path is None:
        return shipped(OWN_SET)
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise BadUsage(f"{path} is not UTF-8; convert it first") from None
    except OSError as error:
        raise BadUsage(f"cannot read the questions in {path}: {error.strerror or error}") from None


def _questions(text: str, name: str) -> Iterator[Question]:
    seen: set[str] = set()
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        where = f"{name}, line {number}"
        question = _question(line, where)
        if question.id in seen:
            raise BadUsage(f"{where}: question_id {question.id} is there twice; give each its own")
        seen.add(question.id)
        yield question


def _question(line: str, where: str) -> Question:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        raise BadUsage(f"{where} is not JSON; each line is {FORM}") from None
    if not isinstance(row, Mapping):
        raise BadUsage(f"{where} is not a JSON object; each line is {FORM}")
    turns, task = row.get("turns"), row.get("task", row.get("category"))
    if not isinstance(turns, list) or not turns or not all(isinstance(t, str) and t.strip() for t in turns):
        raise BadUsage(f"{where}: 'turns' must be a list of texts, none of them empty")
    if not isinstance(task, str) or not task:
        raise BadUsage(f"{where} has no 'task' (or 'category'); each line is {FORM}")
    if task == OVERALL:
        raise BadUsage(f"{where}: the task '{OVERALL}' is the report's name for all of them; choose another")
    if not isinstance(row.get("question_id"), int | str) or row["question_id"] == "":
        raise BadUsage(f"{where} has no 'question_id'; each line is {FORM}")
    return Question(str(row["question_id"]), task, tuple(turns))
