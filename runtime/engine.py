"""The loop: propose, verify, accept, commit, observe.

Enters: a session, a drafter, sampling options, limits and the prompt's ids.
Leaves: the new ids chunk by chunk, a finish reason and `Stats`. Nothing here names a method, target or family.

Invariant between steps: `ids` is every token so far, its last one is pending, and the session has committed
the rows of all the others (`session.length == len(ids) - 1`). Leaving the loop at any point, also by an
exception, keeps it: a step that fails has committed nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from spec_edge.models.contract import BadUsage, SpecError
from spec_edge.runtime import accept, sampling
from spec_edge.runtime.draft import EMPTY, Context, Draft, Verdict
from spec_edge.runtime.law import Law
from spec_edge.runtime.policy import Fixed, Policy
from spec_edge.runtime.processors import Past
from spec_edge.runtime.protocols import Drafter, Session
from spec_edge.runtime.prune import prune
from spec_edge.runtime.sampling import Sampler, Sampling
from spec_edge.runtime.stats import Round, Stats, dropped, summarise

STOP, LENGTH, CONTEXT = "stop", "length", "context"
NO_DRAFT = ("plain",)
Ran = Callable[[int, int, float], None]
READ_AGAIN = 2
"""Rows of a prompt that are read again, however much of it is known."""


def untold(width: int, length: int, seconds: float) -> None:
    """Nobody wants to know."""


@dataclass(frozen=True)
class Limits:
    """Where a generation ends.

    max_new_tokens  exact; None: until the context is full
    eos_ids         any of them ends the text and is not part of it
    tokens          number of real token ids; logits at or past it are padding. None: the session's vocabulary
    width           most rows of a verify run; None: the session's
    """

    max_new_tokens: int | None = None
    eos_ids: tuple[int, ...] = ()
    tokens: int | None = None
    width: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("max-new-tokens", self.max_new_tokens), ("tokens", self.tokens), ("width", self.width)):
            if value is not None and value < 1:
                raise BadUsage(f"{name} must be at least 1, not {value}")


class Engine:
    """One generation at a time over one session; `generate` again starts the next.

    policy         how much each step drafts; None: as much as fits
    ran            is told the rows, the text's length and the seconds of every verify run

    ids            the prompt and everything after it, the last one pending
    finish_reason  None while running, then stop | length | context
    """

    def __init__(
        self,
        session: Session,
        drafter: Drafter,
        options: Sampling | None = None,
        limits: Limits | None = None,
        policy: Policy | None = None,
        ran: Ran | None = None,
    ) -> None:
        """BadUsage: the options name a token that the model does not have."""
        self.session = session
        self.drafter = drafter
        self.policy = policy or Fixed()
        self.ran = ran or untold
        self.options = options or Sampling()
        self.limits = limits or Limits()
        self.ids: list[int] = []
        self.finish_reason: str | None = None
        self._tokens = min(self.limits.tokens or session.vocab_size, session.vocab_size)
        self._width = min(self.limits.width or session.max_width, session.max_width)
        self._eos = frozenset(self.limits.eos_ids)
        self._sampler = Sampler(self.options, self.limits.eos_ids, self._tokens)
        self._rule = accept.sampled(self.options)
        self._history: NDArray[np.int64] = np.empty(0, np.int64)
        self._rng = sampling.generator(self.options.seed)
        self._prompt = 0
        self._ttft = 0.0
        self._rounds: list[Round] = []

    @property
    def tokens(self) -> list[int]:
        """The new tokens, end-of-sequence not included."""
        new = self.ids[self._prompt :]
        return new[:-1] if new and new[-1] in self._eos else new

    @property
    def stats(self) -> Stats:
        """Of the generation so far."""
        return summarise(self._prompt, len(self.tokens), self._ttft, self._rounds, self.options.lossy)

    def take_over(self, before: Engine) -> None:
        """Know the rows that `before` has left in the same session: `generate(reuse=True)` keeps what is common.

        Nothing is known where this drafter reads features that the other's text did not keep.
        """
        if before.session is self.session and self.drafter.wants <= before.drafter.wants:
            self.ids = before.ids[: self.session.length]

    def generate(self, prompt: Sequence[int], reuse: bool = False) -> Iterator[list[int]]:
        """Prefill now, then give the new ids chunk by chunk (never an empty one).

        `reuse` keeps the committed rows of the common prefix with the last generation. BadUsage: a prompt that is
        empty, leaves no room in the context, or holds an unknown id. SpecError: logits that are not finite.
        """
        begun = perf_counter()
        self._check(prompt)
        common = self._forget(prompt) if reuse else 0
        if self.drafter.wants:
            common = max(0, common - 1)  # a drafter's row pairs a token with the features of the one before
        self.session.wants = self.drafter.wants
        self.session.truncate(common)
        self.ids, self._prompt, self._rounds, self.finish_reason = list(prompt[:common]), len(prompt), [], None
        self._rng = sampling.generator(self.options.seed)
        self._history = np.empty(self.session.capacity + 1, np.int64)
        output = self.session.prefill(prompt[common:])
        self.ids = list(prompt)
        self._history[: len(prompt)] = prompt
        verdict = self._accept(EMPTY, output.logits)
        self.drafter.start(prompt, output)
        self.policy.start()
        first = self._extend(verdict.tokens)
        self._ttft = perf_counter() - begun
        return self._chunks(first)

    def step(self) -> list[int]:
        """One round. Returns the tokens it adds to the text: at least one, or none but an end-of-sequence."""
        begun = perf_counter()
        draft = self._propose(*self._room())
        drafted = perf_counter()
        output = self.session.verify(self.ids[-1], draft)
        verified = perf_counter()
        self.ran(1 + len(draft), len(self.ids), verified - drafted)
        whole = self._accept(draft, output.logits)
        verdict = self._until_eos(whole)
        self.session.commit(verdict.rows)
        text = self._extend(verdict.tokens)
        accepted = perf_counter()
        self.drafter.observe(verdict, draft, output)
        self.policy.observe(draft, whole)
        ended = perf_counter()
        self._rounds.append(
            Round(
                drafted=sum(draft.candidate),
                depth=len(draft.levels),
                accepted=min(len(whole.path), len(verdict.tokens)),
                committed=len(verdict.tokens),
                sources=draft.sources or ((self.drafter.name,) if len(draft) else NO_DRAFT),
                draft_s=drafted - begun + ended - accepted,
                verify_s=verified - drafted,
                total_s=ended - begun,
            )
        )
        return text

    def stop(self, keep: int) -> None:
        """End here with the first `keep` new tokens (a stop string): later ones leave text, session and stats."""
        extra = len(self.ids) - self._prompt - keep
        if extra > 0:
            del self.ids[-extra:]
            self._rounds = dropped(self._rounds, extra)
            self.session.truncate(min(self.session.length, len(self.ids) - 1))
        self.finish_reason = STOP

    def _chunks(self, first: list[int]) -> Iterator[list[int]]:
        chunk = first
        while True:
            if chunk:
                yield chunk
            if self.finish_reason:
                return
            chunk = self.step()

    def _room(self) -> tuple[int, int]:
        """(rows of the verify run, depth of the draft) that the session, the context and the limit allow."""
        left = self.session.capacity - len(self.ids)
        if self.limits.max_new_tokens is not None:
            left = min(left, self.limits.max_new_tokens - (len(self.ids) - self._prompt))
        return min(self._width, self.session.capacity - self.session.length), left - 1

    def _propose(self, rows: int, depth: int) -> Draft:
        """A draft that fits; nobody is asked for one where there is room for none."""
        if min(rows - 1, depth) < 1:
            return EMPTY
        rows = self.policy.rows(len(self.ids), rows)
        return prune(self.drafter.propose(Context(self.ids, self._rng), rows), rows - 1, depth, self._tokens)

    def _accept(self, draft: Draft, logits: NDArray[np.float32]) -> Verdict:
        past = Past(self._history[: len(self.ids)], self._prompt)

        def best(row: int, path: tuple[int, ...]) -> int:
            return self._sampler.best(logits[row], self._before(past, path))

        def law(row: int, path: tuple[int, ...]) -> Law:
            return self._sampler.law(logits[row], self._before(past, path))

        try:
            if self.options.greedy:
                return accept.greedy(draft, best)
            return self._rule(draft, law, accept.Dice(self._rng))
        except FloatingPointError as e:
            where = f"step {len(self._rounds) + 1}" if len(self.ids) > self._prompt else "step 0 (prefill)"
            raise SpecError(
                f"{where}: {e}; the model or its provider computes garbage, try another precision"
            ) from None

    def _before(self, past: Past, path: tuple[int, ...]) -> Past:
        return past + path if self._sampler.reads_past else past

    def _until_eos(self, verdict: Verdict) -> Verdict:
        """The verdict up to its first end-of-sequence, which becomes the pending token."""
        n = next((i for i, t in enumerate(verdict.tokens, 1) if t in self._eos), len(verdict.tokens))
        return Verdict(verdict.path[: n - 1], verdict.tokens[:n])

    def _extend(self, tokens: Sequence[int]) -> list[int]:
        """Append, decide whether that was the end, return what is text."""
        n = len(self.ids)
        self.ids.extend(tokens)
        self._history[n : len(self.ids)] = tokens
        new = len(self.ids) - self._prompt
        text = list(tokens)
        if self.ids[-1] in self._eos:
            self.finish_reason = STOP
            text.pop()
        elif new == self.limits.max_new_tokens:
            self.finish_reason = LENGTH
        elif len(self.ids) >= self.session.capacity:
            self.finish_reason = CONTEXT
        return text

    def _check(self, prompt: Sequence[int]) -> None:
        if not prompt:
            raise BadUsage("the prompt is empty; give it at least one token")
        if len(prompt) >= self.session.capacity:
            raise BadUsage(
                f"the prompt has {len(prompt)} tokens and the context {self.session.capacity}; "
                "shorten it or export with a larger --context"
            )
        if not all(0 <= t < self._tokens for t in prompt):
            raise BadUsage(f"the prompt holds a token id outside 0..{self._tokens - 1}; use the model's own tokenizer")

    def _forget(self, prompt: Sequence[int]) -> int:
        """How many committed tokens the prompt shares.

        Its last token is always run again, for its logits, and the one before with it: kernels that add up a single
        row in another order than several would give the same request another text.
        """
        known, most = self.ids[: self.session.length], max(0, len(prompt) - READ_AGAIN)
        pairs = zip(known, prompt[:most], strict=False)
        return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(known), most))
