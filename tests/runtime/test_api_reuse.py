"""A later request keeps the rows of what it shares with the one before, and gives the same text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from spec_edge.runtime import LLM, load
from spec_edge.runtime.draft import Output
from spec_edge.runtime.drafters.plain import Plain
from spec_edge.runtime.engine import READ_AGAIN, Engine
from spec_edge.runtime.sessions.ort import OrtSession
from spec_edge.runtime.sessions.toy import ToySession

pytestmark = pytest.mark.usefixtures("own_cache")
FIRST = [{"role": "user", "content": "hello hello hello"}]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens each prefill was given."""
    counts: list[int] = []
    whole = OrtSession.prefill

    def counted(session: OrtSession, ids: Sequence[int]) -> Output:
        counts.append(len(ids))
        return whole(session, ids)

    monkeypatch.setattr(OrtSession, "prefill", counted)
    return counts


@pytest.fixture
def llm(tiny: Path, read: list[int]) -> Iterator[LLM]:
    del read
    with load(tiny, threads=1) as opened:
        yield opened


def later(answer: str) -> list[dict[str, str]]:
    return [*FIRST, {"role": "assistant", "content": answer}, {"role": "user", "content": "and then?"}]


def shared(first: Sequence[int], second: Sequence[int]) -> int:
    """Tokens that two prompts have in common."""
    return next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )


@pytest.mark.parametrize("method", ["plain", "prompt-lookup", "suffix+lookahead"])
def test_a_later_turn_reads_only_what_is_new(llm: LLM, tiny: Path, read: list[int], method: str) -> None:
    answer = llm.generate(FIRST, max_new_tokens=20, method=method)
    turn = later(answer.text)
    read.clear()
    got = llm.generate(turn, max_new_tokens=20, method=method)
    ids, before = llm.text.encode_chat(turn), [*llm.text.encode_chat(FIRST), *answer.tokens]
    assert read == [len(ids) - shared(before, ids)]
    assert read[0] < len(ids) - len(llm.text.encode_chat(FIRST)) // 2
    with load(tiny, threads=1) as fresh:
        assert fresh.generate(turn, max_new_tokens=20, method="plain").tokens == got.tokens


def test_the_same_request_reads_two_rows_and_writes_the_same(llm: LLM, read: list[int]) -> None:
    first = llm.generate(FIRST, max_new_tokens=16)
    read.clear()
    assert llm.generate(FIRST, max_new_tokens=16).tokens == first.tokens
    assert read == [READ_AGAIN]


@pytest.mark.parametrize("how", ["reuse", "seed", "session"])
def test_the_whole_prompt_is_read(llm: LLM, read: list[int], how: str) -> None:
    llm.generate(FIRST, max_new_tokens=4)
    read.clear()
    if how == "session":
        llm.session.truncate(0)
        llm.session.prefill([5, 6, 7])
        read.clear()
    options = {"reuse": {"reuse": False}, "seed": {"seed": 3, "temperature": 0.5}}.get(how, {})
    llm.generate(FIRST, max_new_tokens=4, **options)  # type: ignore[arg-type]
    assert read == [len(llm.text.encode_chat(FIRST))]


def test_a_text_that_was_left_halfway_leaves_its_rows(llm: LLM, tiny: Path) -> None:
    for pieces in (0, 1, 3):
        list(islice(llm.stream(FIRST, max_new_tokens=30, method="suffix"), pieces))
        got = llm.generate("hello hello", max_new_tokens=12)
        with load(tiny, threads=1) as fresh:
            assert fresh.generate("hello hello", max_new_tokens=12).tokens == got.tokens


class Reader(Plain):
    """Drafts nothing and reads features."""

    wants = frozenset({"hidden"})


def test_features_that_the_last_text_did_not_keep_are_read_again() -> None:
    session, prompt = ToySession(seed=4), list(range(9))
    first = Engine(session, Plain())
    next(first.generate(prompt))
    reader = Engine(session, Reader())
    reader.take_over(first)
    assert reader.ids == []
    next(reader.generate(prompt, reuse=True))
    again = Engine(session, Reader())
    again.take_over(reader)
    assert again.ids == reader.ids[: session.length] and np.all(again.ids[:9] == prompt)
    other = Engine(ToySession(seed=4), Plain())
    other.take_over(again)
    assert other.ids == []
