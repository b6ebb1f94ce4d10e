"""Streaming text: whole characters only, nothing lost, stops cut where they would be cut afterwards."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spec_edge.models.contract import BadUsage
from spec_edge.runtime.detok import WINDOW, Detokenizer
from spec_edge.runtime.stops import TextStream, first_stop, held

TEXTS = [
    "héllo wörld ",
    "日本語のテキスト",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467\U0001f3fd ok",
    "e\u0301\u0301 ",
    "\ufffd is text too",
    "a\n\n  b\t",
    "नमस्ते",
    "x" * 40,
]


def by_byte(ids: list[int]) -> str:
    """The hardest tokenizer: id = byte; 256 and up are special tokens without text."""
    return bytes(i for i in ids if i < 256).decode("utf-8", errors="replace")


def strips_a_space(ids: list[int]) -> str:
    """A decoder that drops the first space of what it is given."""
    return by_byte(ids).removeprefix(" ")


def stream(ids: list[int], decode=by_byte) -> list[str]:
    detokenizer = Detokenizer(decode)
    return [*(detokenizer.push(i) for i in ids), detokenizer.flush()]


BYTES = st.one_of(
    st.lists(st.sampled_from(TEXTS), max_size=8).map(lambda parts: list("".join(parts).encode())),
    st.text(max_size=40).map(lambda text: list(text.encode())),
    st.lists(st.integers(0, 260), max_size=80),
    st.lists(st.sampled_from([0x80, 0xF0, 0x9F, 0x98, 0x41, 0x20, 256]), max_size=120),
)


@settings(max_examples=400, deadline=None)
@given(BYTES)
@example([0x80] * 100 + list("é".encode()))
@example([0x20] * 100)
@example([256] * 50 + list("日本".encode()) + [257] * 50)
@example(list(("é" * 50).encode()))
def test_pieces_join_to_the_whole(ids: list[int]) -> None:
    assert "".join(stream(ids)) == by_byte(ids)
    assert "".join(stream(ids, strips_a_space)) == strips_a_space(ids)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60))
def test_valid_text_never_shows_half_a_character(text: str) -> None:
    pieces = stream(list(text.encode()))
    assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in text
    assert all(text.startswith("".join(pieces[:n])) for n in range(len(pieces)))


def test_every_character_comes_as_soon_as_it_is_whole() -> None:
    assert stream(list("aé😀b".encode())) == ["a", "", "é", "", "", "", "😀", "b", ""]


def test_half_a_character_at_the_end_is_shown() -> None:
    assert stream([0x41, 0xF0, 0x9F]) == ["A", "", "", "\ufffd"]


@pytest.mark.parametrize("ids", [list(b"word " * 400), [0x80] * 2000, [256] * 2000, list("日本".encode()) * 300])
def test_cost_is_linear(ids: list[int]) -> None:
    """Also on text that is garbage, or nothing."""
    work = []

    def counted(window: list[int]) -> str:
        work.append(len(window))
        return by_byte(window)

    stream(ids, counted)
    assert sum(work) < 2 * WINDOW * len(ids)
    assert max(work) <= 2 * WINDOW


def test_garbage_is_not_held_for_ever() -> None:
    assert "".join(stream([0x80] * 100)[:-1]).count("\ufffd") > 80


def test_byte_fallback_marks_each_byte() -> None:
    """A decoder that turns an unfinished character into one mark per byte (sentencepiece's)."""

    def fallback(ids: list[int]) -> str:
        try:
            return bytes(ids).decode()
        except UnicodeDecodeError:
            return "\ufffd" * len(ids)

    ids = list("日本語".encode())
    assert "".join(stream(ids, fallback)) == "日本語"
    assert not any("\ufffd" in piece for piece in stream(ids, fallback))


STOPS = st.lists(st.text("abé\n", min_size=1, max_size=4), max_size=3)


@settings(max_examples=400, deadline=None)
@given(st.text("abé\n", max_size=30), STOPS)
def test_stop_equals_a_cut_afterwards(text: str, stops: list[str]) -> None:
    ids = list(text.encode())
    out = TextStream(by_byte, stops)
    shown = ""
    for token in ids:
        shown += out.push([token])
        assert held(shown, ()) == 0
        found = first_stop(text, stops)
        assert (text[: found[0]] if found else text).startswith(shown)
    shown += out.flush()
    if found := first_stop(text, stops):
        start, end = found
        assert out.stopped
        assert shown == text[:start]
        # The ids end at the token that completes the stop, no earlier and no later.
        assert by_byte(ids[: out.tokens]) == text[:end]
        assert first_stop(by_byte(ids[: out.tokens - 1]), stops) is None
    else:
        assert (out.stopped, out.tokens, shown) == (False, len(ids), text)


@settings(max_examples=200, deadline=None)
@given(st.text("abé\n", max_size=30), STOPS, st.lists(st.integers(0, 60), max_size=4))
def test_chunks_do_not_matter(text: str, stops: list[str], cuts: list[int]) -> None:
    ids = list(text.encode())
    one = TextStream(by_byte, stops)
    whole = one.push(ids) + one.flush()
    many = TextStream(by_byte, stops)
    borders = sorted({0, len(ids), *(min(c, len(ids)) for c in cuts)})
    parts = [many.push(ids[a:b]) for a, b in pairwise(borders)]
    assert "".join(parts) + many.flush() == whole
    assert (many.tokens, many.stopped) == (one.tokens, one.stopped)


def test_the_first_stop_to_be_complete_wins() -> None:
    assert first_stop("xabcb", ["abc", "b"]) == (2, 3)
    assert first_stop("xabc", ["bc", "abc"]) == (1, 4)
    assert first_stop("x", ["y"]) is None
    assert first_stop("xaab", ["aab", "ab"]) == (1, 4)


def test_the_beginning_of_a_stop_is_held_back() -> None:
    out = TextStream(lambda ids: "".join(map(chr, ids)), ["END"])
    assert [out.push([ord(c)]) for c in "aENxEN"] == ["a", "", "", "ENx", "", ""]
    assert out.flush() == "EN"


def test_nothing_after_a_stop() -> None:
    out = TextStream(by_byte, ["b"])
    assert (out.push(b"abc"), out.push(b"d"), out.flush()) == ("a", "", "")
    assert (out.tokens, out.stopped) == (2, True)


def test_a_stop_that_only_the_end_completes() -> None:
    out = TextStream(by_byte, ["\ufffd"])
    assert (out.push([0x41, 0xF0]), out.flush(), out.stopped) == ("A", "", True)


def test_an_empty_stop_is_refused() -> None:
    with pytest.raises(BadUsage, match="empty"):
        TextStream(by_byte, ["x", ""])
