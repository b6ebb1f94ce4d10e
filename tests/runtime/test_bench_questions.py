"""Question files: the shipped set, Spec-Bench's form, and one line for whatever is wrong."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from spec_edge.models.contract import BadUsage
from spec_edge.runtime.bench.questions import read, shipped


def written(tmp_path: Path, *rows: object) -> Path:
    path = tmp_path / "q.jsonl"
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


GOOD = {"question_id": 7, "task": "qa", "turns": ["Why?"]}


def test_the_shipped_set() -> None:
    questions = read(None)
    assert len(questions) == 30 and len({q.id for q in questions}) == 30
    tasks = Counter(q.task for q in questions)
    assert len(tasks) == 6 and set(tasks.values()) == {5}
    assert all(len(q.turns) == (2 if q.task == "chat" else 1) for q in questions)
    assert Counter(q.task for q in read(None, 24)) == Counter(dict.fromkeys(tasks, 4))  # any first N is mixed
    assert len(shipped("perplexity.txt").split()) > 300


def test_spec_bench_form(tmp_path: Path) -> None:
    path = written(tmp_path, {"question_id": 81, "category": "writing", "turns": ["One.", "Two."]}, "", GOOD)
    first, second = read(path)
    assert (first.id, first.task, first.turns) == ("81", "writing", ("One.", "Two."))
    assert second.task == "qa" and read(path, 1) == (first,)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ("{", "line 2 is not JSON"),
        ("[1]", "line 2 is not a JSON object"),
        ({"question_id": 1, "task": "qa"}, "line 2: 'turns' must be"),
        ({"question_id": 1, "task": "qa", "turns": []}, "line 2: 'turns' must be"),
        ({"question_id": 1, "task": "qa", "turns": [" "]}, "line 2: 'turns' must be"),
        ({"question_id": 1, "task": "qa", "turns": [3]}, "line 2: 'turns' must be"),
        ({"question_id": 1, "turns": ["a"]}, "line 2 has no 'task'"),
        ({"task": "qa", "turns": ["a"]}, "line 2 has no 'question_id'"),
        ({"question_id": 1, "task": "overall", "turns": ["a"]}, "choose another"),
        (GOOD, "question_id 7 is there twice"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, bad: object, said: str) -> None:
    with pytest.raises(BadUsage, match=said) as caught:
        read(written(tmp_path, GOOD, bad))
    assert "\n" not in caught.value.message


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(BadUsage, match="cannot read the questions"):
        read(tmp_path / "none.jsonl")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadUsage, match="not UTF-8"):
        read(tmp_path / "binary")
    with pytest.raises(BadUsage, match="holds no question"):
        read(written(tmp_path, "", ""))
    with pytest.raises(BadUsage, match="limit must be at least 1"):
        read(None, 0)
