"""The embedding API: `load` a model, `generate` or `stream` text.

Enters: a bundle (or what can be exported to one), prompts or messages, the keywords of `Options`.
Leaves: text, and a `Generation` that says what it cost. One generation at a time per `LLM`.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Concatenate, ParamSpec, TypeVar

from spec_edge.models.contract import BadUsage, SpecError
from spec_edge.runtime import hybrid, request
from spec_edge.runtime.bench.machine import physical_cores
from spec_edge.runtime.bundle import Bundle
from spec_edge.runtime.chat import Message
from spec_edge.runtime.companion import Companion
from spec_edge.runtime.costs import UNMEASURED, CostCurve
from spec_edge.runtime.curves import DRAFT_WIDTHS, Curves
from spec_edge.runtime.drafters.options import DrafterOptions
from spec_edge.runtime.engine import Engine
from spec_edge.runtime.fastest import FASTEST, fastest
from spec_edge.runtime.live_costs import share
from spec_edge.runtime.networks import Networks
from spec_edge.runtime.notes import Notes
from spec_edge.runtime.option_types import check_count, check_prompt
from spec_edge.runtime.options import Options
from spec_edge.runtime.paced import seconds
from spec_edge.runtime.placement import GraphPlacement, Place, placements
from spec_edge.runtime.placing import AUTO, DRAFT, TARGET, Placer, Wish
from spec_edge.runtime.policy import known_cost
from spec_edge.runtime.pool import Pool
from spec_edge.runtime.protocols import Drafter, Session
from spec_edge.runtime.providers import provider as providers
from spec_edge.runtime.providers.provider import ProviderFailed
from spec_edge.runtime.resolve import DEFAULT, check_name, open_model
from spec_edge.runtime.sampling import Sampler, Sampling
from spec_edge.runtime.stops import TextStream
from spec_edge.runtime.stream import INTERRUPTED, Generation, Owner, Stream
from spec_edge.runtime.text import Text
from spec_edge.runtime.turn import Turn

__all__ = ["INTERRUPTED", "LLM", "Generation", "Options", "SpecError", "Stream", "load"]

MOST_THREADS = 4 * (os.cpu_count() or 1)
"""Threads past the cores only wait for each other: a few hundred look like a hang."""

P = ParamSpec("P")
R = TypeVar("R")
Prompt = str | Sequence[Message]


def load(
    model: str | Path = DEFAULT,
    *,
    provider: str = AUTO,
    strict: bool = False,
    threads: int | None = None,
    draft: str | Path | None = None,
    draft_provider: str = AUTO,
    draft_threads: int | None = None,
    on_note: Callable[[str], object] | None = None,
) -> LLM:
    """Open a bundle; a GGUF file, a Hugging Face folder, a hub id or an alias is exported first, once.

    provider  a file of runtime/providers, by name, before the chain of the bundle's target; `auto`: that chain alone;
              `fastest`: of the CPU's backends the one that measures fastest, once (see `LLM.notes`)
    strict    SpecError instead of the next provider of the chain
    threads   None: one per physical core
    draft     a draft model for the methods that want one, by the same names; None: the one that the bundle records
    draft_provider, draft_threads  of what drafts, inside the bundle or beside it; `auto`: its own bundle's chain, the
              target's `provider` for drafters inside the bundle
    on_note   takes one line about each step down a chain, as it happens; `LLM.notes` keeps them
    """
    _check(provider, draft_provider, threads, draft_threads)
    notes, places = Notes(on_note), dict[str, Place]()
    for wanted in [model] if draft is None else [model, draft]:
        check_name(str(wanted))
    bundle = open_model(str(model))
    if provider == FASTEST:
        provider = fastest(bundle, threads, notes.say)
    inside = provider if draft_provider == AUTO else draft_provider
    wishes = (
        Wish(provider, strict, threads),
        Wish(inside, strict, draft_threads or threads),
        Wish(draft_provider, strict, draft_threads),
    )
    target, heads, beside = (Placer(wish, notes.say, places) for wish in wishes)
    named = None if draft is None else open_model(str(draft))
    companion = Companion(bundle, named, lambda found: beside.session(found, DRAFT))
    networks = Networks(bundle, lambda name: heads.network(name, bundle))
    return LLM(bundle, target, companion, networks, notes, threads, draft_threads)


def _check(provider: str, draft_provider: str, threads: int | None, draft_threads: int | None) -> None:
    """BadUsage, before anything is exported or opened."""
    for name, count in (("threads", threads), ("draft-threads", draft_threads)):
        check_count(name, count)
        if count is not None and not 1 <= count <= MOST_THREADS:
            raise BadUsage(f"{name} must be at least 1 and at most {MOST_THREADS}, not {count}")
    for name, wish, words in (("provider", provider, (AUTO, FASTEST)), ("draft-provider", draft_provider, (AUTO,))):
        if not isinstance(wish, str):
            raise BadUsage(f"{name} must be the name of a provider or '{AUTO}', not {wish!r}")
        if wish not in words:
            providers.provider(wish)


def by_keyword(
    make: Callable[P, Options], call: Callable[[LLM, Prompt, Options], R]
) -> Callable[Concatenate[LLM, Prompt, P], R]:
    """`call` with the fields of `Options` as its keywords, so that they are written down once."""

    def method(llm: LLM, prompt: Prompt, /, *args: P.args, **options: P.kwargs) -> R:
        return call(llm, prompt, make(*args, **options))

    own = list(inspect.signature(call).parameters.values())[:2]
    fields = list(inspect.signature(make).parameters.values())
    method.__signature__ = inspect.Signature([*own, *fields])  # type: ignore[attr-defined]
    method.__doc__, method.__name__ = call.__doc__, call.__name__.strip("_")
    return method


def _stream(llm: LLM, prompt: Prompt, options: Options) -> Stream:
    """Pieces of text as they become final; `.result` holds the `Generation` so far."""
    return llm.start(prompt, options)


def _generate(llm: LLM, prompt: Prompt, options: Options) -> Generation:
    """The whole answer to a prompt or to messages. Calls from several threads wait for each other."""
    with llm.turn:
        stream = llm.start(prompt, options)
        for _ in stream:
            pass
        return stream.result


class LLM:
    """A loaded bundle, with its draft model if it has one. A context manager; `close` frees the weights.

    turn  whoever holds it has the session: a step of a stream, or the whole of `generate`
    """

    def __init__(
        self,
        bundle: Bundle,
        placer: Placer,
        companion: Companion,
        networks: Networks,
        notes: Notes,
        threads: int | None = None,
        draft_threads: int | None = None,
    ) -> None:
        self.bundle, self._session, self.companion = bundle, placer.session(bundle), companion
        self.text = Text(bundle)
        self._places, self._notes, self._networks = placer.places, notes, networks
        cores = physical_cores()
        self._curves = Curves(
            placer.places,
            {TARGET: threads or cores, DRAFT: draft_threads or cores},
            self._forget,
            draft_threads or threads or cores,
        )
        self._pools: dict[tuple[str | int | float | None, ...], Pool | None] = {}
        self._current: Stream | None = None
        self._last: Engine | None = None
        self.turn = Turn()

    @property
    def session(self) -> Session:
        """The target itself. Whoever takes it may change what it holds, so the next text is read from its beginning."""
        self._last = None
        return self._session

    @session.setter
    def session(self, session: Session) -> None:
        self._last, self._session = None, session

    @property
    def provider(self) -> str:
        """That the target runs on now."""
        return self._places[TARGET].on.name

    @property
    def notes(self) -> tuple[str, ...]:
        """One line for each step down a chain of providers so far."""
        return tuple(self._notes.lines)

    def placement(self) -> tuple[GraphPlacement, ...]:
        """Nodes and estimated arithmetic of every graph that was opened, by what runs them."""
        return placements(self._places)

    generate = by_keyword(Options, _generate)
    stream = by_keyword(Options, _stream)

    def start(self, prompt: Prompt, options: Options) -> Stream:
        """`stream` with its keywords in one record."""
        request.check(options)
        text = TextStream(self.text.decode, request.stops(options))
        ids = self._encode(prompt, options.chat)
        with self.turn:
            pool, before = self._pool(options), self._last
            engine = self.engine(options, pool)
            if reuse := options.reuse and options.seed is None and before is not None:
                engine.take_over(before)
            self._current = Stream(self._owner(pool), engine, ids, text, reuse)
            self._last = engine
            return self._current

    def engine(self, options: Options, pool: Pool | None = None) -> Engine:
        """The loop under a generation, for a caller that counts in tokens and steps. It ends any other generation."""
        modules = request.methods(options)
        sampling = request.sampling(options, [w for word in options.bad_words for w in self.text.spellings(word)])
        request.fit(options, self._session.max_width)
        draft = self.companion.model() if (drafts := request.reads(modules, "draft")) else None
        cost = None if drafts and draft is None else self._cost(options, modules, sampling)
        step = None if draft is None else self._draft_seconds(cost)
        step = None if step is None else step * share(cost)
        networks = self._networks.open(request.networks(options, modules))
        runs = {} if cost is None or options.width is not None else self._curves.runs(self.bundle, networks)
        runs = {name: seconds * share(cost) for name, seconds in runs.items()}
        told = replace(request.drafting(options), cost=cost, draft=draft, draft_seconds=step, pool=pool)
        drafter = self._drafter(options, sampling, replace(told, networks=networks, network_seconds=runs))
        limits = request.limits(options, self.bundle.manifest.text)
        self._current = self._last = None
        drafting = sum(runs.values()) + step if step is not None else sum(runs.values()) or None
        paced = request.paced(options, modules, cost, drafting, seconds(drafter) is not None)
        watched = self._curves.watching(TARGET, self.bundle)
        return Engine(self._session, drafter, sampling, limits, paced, watched.saw if watched else None)

    def close(self) -> None:
        with self.turn:
            self._current = self._last = None
            self._session.close()
            self.companion.close()
            self._networks.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _pool(self, options: Options) -> Pool | None:
        """Kept open: its search structures are made once."""
        key = (options.pool, options.pool_tokens, options.pool_days)
        if key not in self._pools:
            self._pools[key] = request.open_pool(options, self.bundle.manifest.text.tokenizer.sha256)
        pool = self._pools[key]
        if pool is not None and options.pool_erase:
            pool.erase()
        return pool

    def _owner(self, pool: Pool | None) -> Owner:
        def keep(tokens: Sequence[int]) -> None:
            if pool is not None:
                pool.add(tokens)
                pool.save()

        model = self.bundle.manifest.model.name

        def note() -> str | None:
            return pool.note if pool else None

        return Owner(
            lambda: self.provider, lambda: self.notes, model, self.turn, lambda s: self._current is s, keep, note
        )

    def _encode(self, prompt: Prompt, chat: bool) -> list[int]:
        check_prompt(prompt)
        request.refuse_empty(prompt, chat)
        if isinstance(prompt, str):
            return (
                self.text.encode_chat([{"role": "user", "content": prompt}])
                if chat
                else self.text.encode_prompt(prompt)
            )
        if not chat:
            raise BadUsage("messages need the chat template; give plain text with --no-chat (chat=False)")
        return self.text.encode_chat(prompt)

    def _drafter(self, options: Options, sampling: Sampling, told: DrafterOptions) -> Drafter:
        facts = self.bundle.manifest.text
        sampler = Sampler(sampling, facts.eos_ids, facts.tokens)
        return hybrid.create(options.method, replace(told, sampler=sampler), self._notes.say)

    def _cost(self, options: Options, modules: Sequence[ModuleType], sampling: Sampling) -> CostCurve | None:
        """Measuring takes a second, once per machine: only for what weighs costs, and not where a seed forbids it. What
        runs of late took counts where no seed is given and the text cannot depend on how many rows a run has."""
        if not request.weighs_costs(options, modules) or known_cost(sampling, UNMEASURED) is None:
            return None
        if options.seed is not None or not self._places[TARGET].on.alone:
            return self.costs()
        with self.turn:
            return self._curves.live(TARGET, self.bundle, self._session)

    def costs(self) -> CostCurve:
        """t(width) here: measured the first time this bundle runs with this provider, driver and thread count."""
        with self.turn:
            return self._curves.of(TARGET, self.bundle, self._session)

    def _draft_seconds(self, cost: CostCurve | None) -> float | None:
        """Of a run of the draft model, where costs are weighed and one is open."""
        opened = self.companion.opened
        try:
            return None if cost is None or opened is None else self._curves.of(DRAFT, *opened, DRAFT_WIDTHS).at(1)
        except ProviderFailed:  # its drafter will meet that too, say so, and let the text go on
            return None

    def _forget(self) -> None:
        """What is measured is emptied."""
        self._current = self._last = None
