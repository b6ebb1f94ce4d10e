"""A second, smaller network that keeps up with the text.

Enters: the session of the draft model and the text as it grows. Leaves: the draft model's logits after the text, and
after tokens that it drafts. Nothing has to be told which drafted tokens were accepted: each call keeps the rows of the
common prefix and runs what is missing (a bonus token, what another drafter proposed, a whole prompt) in one run.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from spec_edge.runtime.draft import Draft
from spec_edge.runtime.protocols import Session

Logits = NDArray[np.float32]


class DraftModel:
    """A session and the ids of its committed rows. It outlives a generation: the next one keeps the common prefix.

    tokens  number of the target's token ids, for which there are logits
    shared  ids below it mean the same to both models; no other is drafted: its logit is -inf
    """

    def __init__(self, session: Session, tokens: int, shared: int | None = None) -> None:
        self.session, self.tokens = session, tokens
        self.shared = min(tokens, session.vocab_size, tokens if shared is None else shared)
        self._ids = np.empty(session.capacity, np.int64)
        self._held = 0
        self._sure = 0

    @property
    def text(self) -> NDArray[np.int64]:
        """int64 [length]: the ids of the committed rows, drafted ones included. A view."""
        return self._ids[: self._held]

    def begin(self) -> None:
        """A new text, of which nothing is known to be the old one."""
        self._sure = 0

    def follow(self, ids: Sequence[int]) -> Logits | None:
        """Logits [tokens] after `ids`, whose rows are committed then; `ids` begins with the last call's (see `begin`).

        None where the text is longer than the draft model's context or holds a token that it does not know.
        The view is valid until the next run.
        """
        if len(ids) > self.session.capacity:
            return None
        keep = self._common(ids)
        missing = ids[keep:]
        if any(t >= self.shared for t in missing):
            return None
        self.session.truncate(keep)
        self._held = self._sure = keep
        logits = self._run(missing)
        self._append(missing)
        self._sure = self._held
        return logits

    def extend(self, token: int) -> Logits:
        """Logits [tokens] after one more token, drafted: its row stays only if the text takes it. A view."""
        logits = self._run([token])
        self._append([token])
        return logits

    def grown(self, pending: int, tree: Draft) -> Logits:
        """Logits [len(tree), tokens] after each node of a drafted tree that hangs on the text's last token. A view.

        The last token's row is dropped first: it is row 0 of the run. Commits nothing.
        """
        self._held = min(self._held, self._sure - 1)
        self.session.truncate(self._held)
        return self._real(self.session.verify(pending, tree).logits[1:])

    def _common(self, ids: Sequence[int]) -> int:
        """Committed rows that are the text's; the last token is always run again, for its logits."""
        most = min(self._held, self.session.length, len(ids) - 1)
        sure = min(self._sure, most)
        same = self._ids[sure:most] == np.asarray(ids[sure:most], np.int64)
        return most if same.all() else sure + int(same.argmin())

    def _run(self, tokens: Sequence[int]) -> Logits:
        """Run and commit."""
        if len(tokens) > self.session.max_width:
            logits = self.session.prefill(tokens).logits[-1:]
        else:
            logits = self.session.verify(tokens[0], Draft.chain(tokens[1:])).logits[-1:]
            self.session.commit(range(len(tokens)))
        row: Logits = self._real(logits)[0]
        return row

    def _real(self, logits: Logits) -> Logits:
        """Without padded ids, and with all of the target's; no copy where the vocabularies are the same."""
        if self.shared == self.tokens:
            return logits[:, : self.tokens]
        out = np.full((len(logits), self.tokens), -np.inf, np.float32)
        out[:, : self.shared] = logits[:, : self.shared]
        return out

    def _append(self, tokens: Sequence[int]) -> None:
        end = self._held + len(tokens)
        self._ids[self._held : end] = tokens
        self._held = end
