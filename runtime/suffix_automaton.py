"""An online suffix automaton with counts: which tokens followed the last ones, at every length of context.

Enters: tokens, one at a time. Leaves: states. A state stands for the strings that end at the same places; its suffix
link leads to the longest of their suffixes that also ends elsewhere.
Source: Blumer et al. 1985. Work per token: O(1) amortised for the automaton, O(CONTEXT) for the counts; memory is
linear in the text (at most two states per token). Counts are exact for strings of up to CONTEXT tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

CONTEXT = 16
"""Longest context whose occurrences are counted; a longer match says hardly more about the next token."""

FOLLOWERS = 16
"""Followers of a context that are looked at, the latest ones: so that the work does not grow with the text."""

ROOT = 0
BREAK = -1
"""Put between texts: no token, and nothing is proposed across it."""


class SuffixAutomaton:
    """Lists indexed by state.

    length  of its longest string
    link    its suffix link; -1 for the root
    after   token -> state of the longer string; the follower seen last comes last
    count   occurrences
    here    state of the text's last min(CONTEXT + 1, n) tokens
    work    steps along links and transitions so far: what a test counts instead of seconds
    """

    def __init__(self) -> None:
        self.length = [0]
        self.link = [-1]
        self.after: list[dict[int, int]] = [{}]
        self.count = [0]
        self.here = ROOT
        self.tokens = 0
        self.work = 0
        self._last = ROOT
        self._depth = 0

    def add(self, token: int) -> None:
        """Append one token (or BREAK)."""
        new = self._state(self.length[self._last] + 1, {}, 0)
        at = self._last
        while at != -1 and token not in self.after[at]:
            self.after[at][token] = new
            at = self.link[at]
            self.work += 1
        self.link[new] = ROOT if at == -1 else self._below(at, token)
        self._last = new
        self.tokens += 1
        self._count(token)

    def _below(self, at: int, token: int) -> int:
        """The state of `at`'s longest string and `token`, split off its class if that holds longer ones."""
        target = self.after[at][token]
        if self.length[target] == self.length[at] + 1:
            return target
        # The copy inherits the count: up to now both had the same occurrences.
        copy = self._state(self.length[at] + 1, dict(self.after[target]), self.count[target])
        self.link[copy], self.link[target] = self.link[target], copy
        while at != -1 and self.after[at].get(token) == target:
            self.after[at][token] = copy
            at = self.link[at]
            self.work += 1
        return copy

    def _state(self, length: int, after: dict[int, int], count: int) -> int:
        self.length.append(length)
        self.link.append(-1)
        self.after.append(after)
        self.count.append(count)
        return len(self.length) - 1

    def _count(self, token: int) -> None:
        """One more occurrence of every suffix of up to CONTEXT + 1 tokens; `token` is the latest follower of each."""
        before = self._cut(self.here, self._depth)
        for state in self.suffixes(before):
            followers = self.after[state]
            followers[token] = followers.pop(token)
            self.work += 1
        # One token more than a context: a follower's count is that of the string it ends.
        self._depth = min(self._depth + 1, CONTEXT + 1)
        self.here = self._cut(self.after[before][token], self._depth)
        for state in self.suffixes(self.here):
            self.count[state] += 1

    def _cut(self, state: int, depth: int) -> int:
        """The state of the last `depth` tokens of a longer string of `state`."""
        while self.length[self.link[state]] >= depth and state != ROOT:
            state = self.link[state]
            self.work += 1
        return state

    def suffixes(self, state: int) -> Iterator[int]:
        """`state` and its suffix links, the empty string included."""
        while state != -1:
            yield state
            state = self.link[state]

    def context(self) -> tuple[int, int]:
        """(state, length) of the text's longest suffix, of up to CONTEXT tokens, that something has followed."""
        matched = min(self._depth, CONTEXT)
        state = self._cut(self.here, matched)
        while not self.after[state] and state != ROOT:
            state = self.link[state]
            matched = self.length[state]
        return state, matched

    def step(self, state: int, matched: int, token: int) -> tuple[int, int]:
        """(state, length) of the longest known suffix of a matched string and `token`."""
        while token not in self.after[state]:
            if state == ROOT:
                return ROOT, 0
            state = self.link[state]
            matched = self.length[state]
            self.work += 1
        state = self.after[state][token]
        matched = min(matched + 1, CONTEXT)
        return self._cut(state, matched), matched

    def followers(self, state: int) -> list[tuple[int, int]]:
        """(token, how often it followed) of the latest FOLLOWERS followers, the latest first."""
        latest = islice(reversed(self.after[state].items()), FOLLOWERS)
        return [(token, self.count[to]) for token, to in latest if token != BREAK]
