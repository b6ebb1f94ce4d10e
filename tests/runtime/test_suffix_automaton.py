"""The automaton against counting by hand, and its work against the text's length."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_edge.runtime.suffix_automaton import BREAK, CONTEXT, FOLLOWERS, SuffixAutomaton


def automaton(ids: list[int]) -> SuffixAutomaton:
    out = SuffixAutomaton()
    for token in ids:
        out.add(token)
    return out


def occurrences(text: list[int], what: list[int]) -> list[int]:
    """Where `what` ends (index of the token after it)."""
    n = len(what)
    return [i + n for i in range(len(text) - n + 1) if text[i : i + n] == what]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 2), max_size=70))
def test_counts_and_followers_of_every_context(text: list[int]) -> None:
    found = automaton(text)
    for start in range(len(text)):
        for end in range(start + 1, min(len(text), start + CONTEXT) + 1):
            state, ends = 0, occurrences(text, text[start:end])
            for token in text[start:end]:
                state = found.after[state][token]
            assert found.count[state] == len(ends)
            after = Counter(text[e] for e in ends if e < len(text))
            assert dict(found.followers(state)) == dict(after)
            latest = list(dict.fromkeys(text[e] for e in reversed(ends) if e < len(text)))
            assert [t for t, _ in found.followers(state)] == latest


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 2), max_size=80))
def test_context_is_the_longest_suffix_that_was_followed(text: list[int]) -> None:
    found = automaton(text)
    state, matched = found.context()
    longest = max(n for n in range(min(CONTEXT, len(text)) + 1) if n == 0 or occurrences(text[:-1], text[-n:]))
    assert matched == longest
    walked = 0
    for token in text[len(text) - matched :]:
        walked = found.after[walked][token]
    assert state == walked


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 2), min_size=1, max_size=60), st.lists(st.integers(0, 3), max_size=40))
def test_step_follows_another_text(text: list[int], other: list[int]) -> None:
    found = automaton([*text, BREAK])
    state = matched = 0
    for i, token in enumerate(other, 1):
        state, matched = found.step(state, matched, token)
        fits = (n for n in range(min(i, CONTEXT) + 1) if n == 0 or occurrences(text, other[i - n : i]))
        assert matched == max(fits)
        walked = 0
        for t in other[i - matched : i]:
            walked = found.after[walked][t]
        assert state == walked


def test_work_is_linear_and_memory_bounded() -> None:
    """Random, periodic, constant and nested-repetition texts: a bounded number of steps per token at any length."""
    rng = np.random.default_rng(0)
    fibonacci = [0], [0, 1]
    while len(fibonacci[-1]) < 8000:
        fibonacci = fibonacci[-1], fibonacci[-1] + fibonacci[-2]
    texts = [rng.integers(0, 4, 8000).tolist(), [i % 50 for i in range(8000)], [0] * 8000, fibonacci[-1][:8000]]
    for text in texts:
        per_token = []
        for length in (1000, 8000):
            found = automaton(text[:length])
            assert len(found.length) <= 2 * length
            assert sum(map(len, found.after)) <= 3 * length
            per_token.append(found.work / length)
        assert max(per_token) < 2 * CONTEXT + 8
        assert per_token[1] < 1.3 * per_token[0] + 1


def test_followers_are_few_and_the_latest() -> None:
    text = list(itertools.chain.from_iterable((0, t) for t in range(1, 3 * FOLLOWERS)))
    found = automaton(text)
    followers = found.followers(found.after[0][0])
    assert [t for t, _ in followers] == list(range(3 * FOLLOWERS - 1, 2 * FOLLOWERS - 1, -1))
