"""Small parts of training: counting acceptance, templates, prompts, the learning rate, batches."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spec_edge.export.train.fit import FLOOR, batches, schedule
from spec_edge.export.train.kinds import conversations, passages
from spec_edge.export.train.measure import acceptance, steps
from spec_edge.export.train.prompts import licences, read_prompts
from spec_edge.export.train.store import Place


@given(st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=30), min_size=1, max_size=4))
def test_steps_begin_behind_what_the_one_before_accepted(taken: list[list[int]]) -> None:
    """Against a decoder that walks each text by itself."""
    text = torch.tensor([i for i, row in enumerate(taken) for _ in row])
    packed: Any = SimpleNamespace(starts=torch.arange(len(text)) * 1, text=text)
    wanted = []
    for row in taken:
        at = 0
        while at < len(row):
            wanted.append(row[at])
            at += row[at] + 1
    assert steps(packed, torch.tensor([n for row in taken for n in row])) == wanted
    found = acceptance(wanted, 4)
    assert found.length == pytest.approx(1 + sum(wanted) / len(wanted)) and found.steps == len(wanted)


def test_templates_are_filled_in_full_and_by_their_seed() -> None:
    texts = passages(["Read this.\n\nArticle: " + "A long passage about rivers. " * 20, "short"])
    assert len(texts) == 1 and texts[0].startswith("A long passage")
    made = conversations(600, texts, 4)
    assert made == conversations(600, texts, 4) != conversations(600, texts, 5)
    assert len(set(made)) == 600 and not any("{" in turn for turns in made for turn in turns)
    assert any(len(turns) == 3 for turns in made) and all(len(turns) % 2 for turns in made)
    assert not any("long passage" in str(turns) for turns in conversations(200, [], 4))


def test_prompts_are_read_from_lines_of_several_kinds(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    rows: list[dict[str, Any]] = [{"prompt": "one"}, {"turns": ["two", "three"]}, {"messages": messages}]
    (tmp_path / "p.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    (tmp_path / "p.txt").write_text("one\n\n two \n")
    assert read_prompts(tmp_path / "p.jsonl") == [("one",), ("two",), ("a",)]
    assert read_prompts(tmp_path / "p.txt") == [("one",), ("two",)]


def test_licences_are_counted_where_lines_say_them(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "source": "s", "license": "MIT"}] * 2 + [
        {"prompt": "b", "source": "t", "license": "CC0"},
        {"prompt": "c"},
    ]
    (tmp_path / "p.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    (tmp_path / "p.txt").write_text("one")
    assert list(licences(tmp_path / "p.jsonl").items()) == [(("s", "MIT"), 2), (("t", "CC0"), 1)]
    assert licences(tmp_path / "p.txt") == {}


def test_the_rate_rises_and_falls() -> None:
    assert schedule(0) < schedule(0.02) < schedule(0.03) == 1 > schedule(0.5) > schedule(1) == pytest.approx(FLOOR)


def test_each_pass_holds_every_text_once_in_another_order() -> None:
    places = [Place(0, i, 0, 10 + i, 5, True) for i in range(20)]
    stream, passes = batches(places, 40, 7), [[], []]
    for texts in passes:
        while len(texts) < len(places):
            texts += [place.text for place in next(stream)]
    assert sorted(passes[0]) == sorted(passes[1]) == list(range(20)) and passes[0] != passes[1]
    again = batches(places, 40, 7)
    assert [place.text for place in next(again)] == passes[0][: len(next(batches(places, 40, 7)))]
