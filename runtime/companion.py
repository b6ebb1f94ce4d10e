"""The draft model of a loaded bundle.

Enters: the target's bundle and the draft's, by name or as the target records it. Leaves: a `DraftModel` whose ids mean
what the target's do. Its network is opened when a method first wants it, by whoever places it.
"""

from __future__ import annotations

from collections.abc import Callable

from spec_edge.runtime.bundle import Bundle, beside
from spec_edge.runtime.draft_model import DraftModel
from spec_edge.runtime.protocols import Session
from spec_edge.runtime.sessions.choose import open_on_cpu
from spec_edge.runtime.vocabulary import shared_by


class Companion:
    """A draft model that was named is checked at once, one that the target's bundle records when it is first wanted."""

    def __init__(
        self, target: Bundle, named: Bundle | None = None, open_session: Callable[[Bundle], Session] = open_on_cpu
    ) -> None:
        """SpecError: its vocabulary is another one."""
        self._target, self._open_session = target, open_session
        self._bundle: Bundle | None = None
        self._session: Session | None = None
        self._model: DraftModel | None = None
        self._found = None if named is None else (named, shared_by(target, named))

    def model(self) -> DraftModel | None:
        """The same one at each call: it remembers the last text. None: there is none."""
        if self._model is None:
            bundle = None if self._found else recorded(self._target)
            found = self._found if bundle is None else (bundle, shared_by(self._target, bundle))
            if found is None:
                return None
            self._bundle, self._session = found[0], self._open_session(found[0])
            self._model = DraftModel(self._session, self._target.manifest.text.tokens, found[1])
        return self._model

    @property
    def opened(self) -> tuple[Bundle, Session] | None:
        """What a `model()` runs, once there is one."""
        return None if self._session is None or self._bundle is None else (self._bundle, self._session)

    def close(self) -> None:
        if self._session is not None:
            self._session.close()


def recorded(target: Bundle) -> Bundle | None:
    """The draft model that was exported with this bundle. SpecError: it is not beside it, or is another one."""
    fact = target.manifest.draft
    if fact is None:
        return None
    return beside(target, fact.folder, fact.sha256, "draft model", "name one with --draft")
