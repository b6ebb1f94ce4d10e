"""User text never becomes a special token, even inside a template.

Enters: messages and the texts of special tokens. Leaves: messages in which every look-alike is one private character,
and a way back. A template then renders as it would have, its output is cut at the special tokens that are left (the
template's own), and the look-alikes return as plain text, to be encoded together with the text around them.
A look-alike may also begin in a message and end in the template's text, so the two ends of every text are hidden where
they could be a part of one. A template that takes a message apart and glues its own text to a piece is trusted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken

PRIVATE = (*range(0xF0000, 0xFFFFE), *range(0xE000, 0xF900))
SPACE = "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"
"""Unicode White_Space: what a token's lstrip and rstrip take."""

NOT_TEXT = frozenset({"role"})
"""Keys of a message whose values are not the user's (checked against a list)."""


@dataclass(frozen=True)
class Special:
    """A token that only a template may write."""

    id: int
    token: AddedToken

    @property
    def text(self) -> str:
        return str(self.token.content)


@dataclass(frozen=True)
class _Texts:
    """Texts of special tokens, and a pattern that prefers the longest."""

    all: tuple[str, ...]
    pattern: re.Pattern[str]

    @classmethod
    def of(cls, texts: Iterable[str]) -> _Texts:
        longest = tuple(sorted(texts, key=len, reverse=True))
        return cls(longest, re.compile("|".join(map(re.escape, longest)) or "(?!)"))


class Guard:
    """The special tokens of one tokenizer."""

    def __init__(self, specials: Iterable[Special]) -> None:
        self._specials = {s.text: s for s in specials if s.text}
        self._every = _Texts.of(self._specials)
        # Marks such as <think> are ordinary tokens that a model writes itself: its own turns may hold them.
        self._flagged = _Texts.of(t for t, s in self._specials.items() if s.token.special)

    def hide(self, messages: Sequence[Mapping[str, Any]], template: str) -> tuple[list[dict[str, Any]], Restore]:
        """Messages without look-alikes, and the way back."""
        restore = Restore(template + json.dumps(messages, ensure_ascii=False, default=str))
        out = []
        for message in messages:
            texts = self._flagged if message.get("role") == "assistant" else self._every
            out.append({k: v if k in NOT_TEXT else _hide(v, texts, restore) for k, v in message.items()})
        return out, restore

    def split(self, text: str) -> list[str | Special]:
        """`text` cut at the special tokens in it, which take the white space that they are told to take."""
        parts: list[str | Special] = []
        start, strip = 0, False
        for match in self._every.pattern.finditer(text):
            special = self._specials[match.group()]
            if special.token.single_word and _inside_word(text, match):
                continue
            plain = text[start : match.start()]
            plain = plain.lstrip(SPACE) if strip else plain
            parts += [plain.rstrip(SPACE) if special.token.lstrip else plain, special]
            start, strip = match.end(), special.token.rstrip
        rest = text[start:]
        return [part for part in (*parts, rest.lstrip(SPACE) if strip else rest) if part != ""]


class Restore:
    """Private characters for hidden texts, none of which is in `used`."""

    def __init__(self, used: str) -> None:
        taken = set(used)
        self._free = (chr(code) for code in PRIVATE if chr(code) not in taken)
        self._marks: dict[str, str] = {}

    def put(self, text: str) -> str:
        """The character that stands for `text`; nothing for nothing."""
        if text and text not in self._marks:
            self._marks[text] = next(self._free)
        return self._marks.get(text, "")

    def __call__(self, text: str) -> str:
        """Every hidden text again; last hidden first, since a later one may hold an earlier mark."""
        for hidden, mark in reversed(self._marks.items()):
            text = text.replace(mark, hidden)
            if (escaped := json.dumps(mark)[1:-1]) in text:
                text = text.replace(escaped, json.dumps(hidden)[1:-1])
        return text


def _hide(value: Any, texts: _Texts, restore: Restore) -> Any:
    if isinstance(value, str):
        return _hide_text(value, texts, restore)
    if isinstance(value, Mapping):
        return {_hide(k, texts, restore): _hide(v, texts, restore) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_hide(v, texts, restore) for v in value]
    return value


def _hide_text(text: str, texts: _Texts, restore: Restore) -> str:
    """Whole look-alikes anywhere, parts of one at either end, and a text that is the middle of one."""
    text = texts.pattern.sub(lambda match: restore.put(match.group()), text)
    core = text.strip()
    before, _, after = text.partition(core) if core else (text, "", "")
    head = max((_overlap(special, core) for special in texts.all), default=0)
    tail = max((_overlap(core, special) for special in texts.all), default=0)
    if core and (head + tail >= len(core) or any(core in special for special in texts.all)):
        return before + restore.put(core) + after
    end = len(core) - tail
    return before + restore.put(core[:head]) + core[head:end] + restore.put(core[end:]) + after


def _overlap(left: str, right: str) -> int:
    """Length of the longest end of `left` that begins `right`."""
    return next((n for n in range(min(len(left), len(right)), 0, -1) if left.endswith(right[:n])), 0)


def _inside_word(text: str, match: re.Match[str]) -> bool:
    return bool(re.search(r"\w$", text[: match.start()]) or re.match(r"\w", text[match.end() :]))
