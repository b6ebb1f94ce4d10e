"""Streaming detokenisation that never prints half a character.

Enters: token ids one by one and a `decode` over lists of ids. Leaves: pieces of text whose concatenation
is `decode` of all ids, at a cost linear in their number.
"""

from __future__ import annotations

from collections.abc import Callable

Decode = Callable[[list[int]], str]

UNFINISHED = "\ufffd"
WINDOW = 16
"""Ids decoded at once grow to this many, then the older half is let go."""
GARBAGE = 16
"""A longer run of U+FFFD is no character in the making (a byte-fallback decoder marks every byte of one)."""


class Detokenizer:
    """Decodes a short window of the last ids again with each new one, and gives what is new and final."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._window: list[int] = []
        self._text = ""
        self._given = 0

    def push(self, token: int) -> str:
        """Text that `token` makes final; may be empty."""
        self._window.append(token)
        self._text = self._decode(self._window)
        run = len(self._text) - len(self._text.rstrip(UNFINISHED))
        # Later bytes can only change the last character: a decoder marks what came before it for good.
        piece = self._give(len(self._text) - (run if run <= GARBAGE else 1))
        if len(self._window) >= WINDOW:
            self._slide()
        return piece

    def flush(self) -> str:
        """What is still held back, at the end of the text."""
        return self._give(len(self._text))

    def _give(self, end: int) -> str:
        piece = self._text[self._given : end]
        self._given = max(self._given, end)
        return piece

    def _slide(self) -> None:
        """Forget the older half, unless its loss would change more than the first few characters of the rest.

        Those first ones differ where the cut falls inside a character or a decoder strips a leading space; they
        were given out long ago. What is not given out is counted from the end.
        """
        rest = self._window[-WINDOW // 2 :]
        text = self._decode(rest)
        held = len(self._text) - self._given
        if self._text.endswith(text[4:]) and len(text) >= held + 4 * (held > 0):
            self._window, self._text, self._given = rest, text, len(text) - held
