"""Stop strings that span tokens.

Enters: token ids and the stop strings. Leaves: text up to the first stop, streamed without ever showing the
beginning of one, and the number of ids up to and including the one that completes it.
The first stop is the one that is complete first; of two that end together, the one that begins first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from spec_edge.models.contract import BadUsage
from spec_edge.runtime.detok import Decode, Detokenizer


def first_stop(text: str, stops: Iterable[str]) -> tuple[int, int] | None:
    """(start, end) of the first stop in `text`, or None."""
    ends = [(at + len(stop), at) for stop in stops if (at := text.find(stop)) >= 0]
    if not ends:
        return None
    end, start = min(ends)
    return start, end


def held(text: str, stops: Iterable[str]) -> int:
    """Length of the longest end of `text` that a stop may still grow from."""
    return max((_overlap(text, stop) for stop in stops), default=0)


def _overlap(text: str, stop: str) -> int:
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)


class TextStream:
    """Ids to printable text.

    tokens   ids taken so far; once stopped, those up to and including the one that completes the stop
    stopped  a stop string was found; the text ends before it
    """

    def __init__(self, decode: Decode, stops: Sequence[str] = ()) -> None:
        if "" in stops:
            raise BadUsage("a stop string is empty; give it at least one character")
        self.tokens = 0
        self.stopped = False
        self._stops = tuple(stops)
        self._detokenizer = Detokenizer(decode)
        self._buffer = ""

    def push(self, ids: Iterable[int]) -> str:
        """The text that these ids make safe to print. Ids past a stop are ignored."""
        out = ""
        for token in ids:
            if self.stopped:
                break
            self.tokens += 1
            out += self._release(self._detokenizer.push(token))
        return out

    def flush(self) -> str:
        """The rest of the text, at its end."""
        if self.stopped:
            return ""
        out = self._release(self._detokenizer.flush())
        out, self._buffer = out + self._buffer, ""
        return out

    def _release(self, piece: str) -> str:
        self._buffer += piece
        if found := first_stop(self._buffer, self._stops):
            self.stopped = True
            out, self._buffer = self._buffer[: found[0]], ""
            return out
        keep = len(self._buffer) - held(self._buffer, self._stops)
        out, self._buffer = self._buffer[:keep], self._buffer[keep:]
        return out
