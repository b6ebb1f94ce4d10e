"""The embedding API: `load` a model, `generate` or `stream` text.

Enters: a bundle (or what can be exported to one), prompts or messages, options by name.
Leaves: text, and a `Generation` that says what it cost. One generation at a time per `LLM`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import onnxruntime

from spec_edge.models.contract import BadUsage, SpecError
from spec_edge.models.plugins import find
from spec_edge.runtime.bundle import Bundle, open_bundle
from spec_edge.runtime.chat import Message
from spec_edge.runtime.costs import CostCurve, cost_key, load_costs, measure, save_costs
from spec_edge.runtime.drafters.options import DrafterOptions
from spec_edge.runtime.engine import Engine, Limits
from spec_edge.runtime.protocols import Drafter
from spec_edge.runtime.resolve import DEFAULT, bundle_folder
from spec_edge.runtime.sampling import Sampling
from spec_edge.runtime.sessions.opening import SUFFIX, provider_name
from spec_edge.runtime.sessions.ort import OrtSession
from spec_edge.runtime.stats import Stats
from spec_edge.runtime.stops import TextStream
from spec_edge.runtime.text import Text

__all__ = ["LLM", "Generation", "SpecError", "Stream", "load"]

NEW_TOKENS = 512
DRAFTERS = "spec_edge.runtime.drafters"
COST_WIDTHS = (1, 2, 4, 8, 16)
COST_PAST = 128
"""Tokens of past at which costs are measured."""

INTERRUPTED = "interrupted"
"""finish_reason of a generation that the caller left before its end."""


@dataclass(frozen=True)
class Generation:
    """text: without end of sequence and stop string. tokens: new ids, end of sequence not included.

    finish_reason  stop | length | context, or interrupted
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: str
    method: str
    provider: str
    model: str
    stats: Stats

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**vars(self), "tokens": list(self.tokens), "stats": self.stats.as_dict()}


def load(model: str | Path = DEFAULT, *, provider: str = "cpu", threads: int | None = None) -> LLM:
    """Open a bundle; a GGUF file, a Hugging Face folder, a hub id or an alias is exported first, once.

    provider  short or full name of an ONNX Runtime execution provider
    threads   None: one per physical core
    """
    if threads is not None and threads < 1:
        raise BadUsage(f"threads must be at least 1, not {threads}")
    provider_name(provider)
    bundle = open_bundle(bundle_folder(str(model)))
    return LLM(bundle, OrtSession(bundle, threads, provider), provider, threads)


class LLM:
    """A loaded bundle. A context manager; `close` frees the weights."""

    def __init__(self, bundle: Bundle, session: OrtSession, provider: str, threads: int | None) -> None:
        self.bundle, self.session = bundle, session
        self.provider = provider_name(provider).removesuffix(SUFFIX).lower()
        self.text = Text(bundle)
        self._threads = threads or os.cpu_count() or 1
        self._costs: CostCurve | None = None
        self._current: Stream | None = None

    def generate(
        self,
        prompt: str | Sequence[Message],
        *,
        max_new_tokens: int | None = NEW_TOKENS,
        method: str = "auto",
        width: int | None = None,
        draft_tokens: int | None = None,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        seed: int | None = None,
        stop: str | Sequence[str] = (),
        chat: bool = True,
    ) -> Generation:
        """The whole answer to a prompt or to messages; options as in `stream`."""
        stream = self.stream(
            prompt,
            max_new_tokens=max_new_tokens,
            method=method,
            width=width,
            draft_tokens=draft_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            seed=seed,
            stop=stop,
            chat=chat,
        )
        for _ in stream:
            pass
        return stream.result

    def stream(
        self,
        prompt: str | Sequence[Message],
        *,
        max_new_tokens: int | None = NEW_TOKENS,
        method: str = "auto",
        width: int | None = None,
        draft_tokens: int | None = None,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        seed: int | None = None,
        stop: str | Sequence[str] = (),
        chat: bool = True,
    ) -> Stream:
        """Pieces of text as they become final; `.result` holds the `Generation` so far.

        max_new_tokens  None: until the model ends or the context is full
        method          a drafting method: auto, plain, prompt-lookup ...
        width           most rows of a verify run, drafted tokens and the pending one
        draft_tokens    most tokens drafted in a step; None: the method's own choice
        temperature ... seed  as in `Sampling`; temperature 0 is greedy
        stop            text that ends the answer and is not part of it, or several
        chat            False: the prompt as it is, without the model's chat template
        """
        sampling = Sampling(temperature, top_k, top_p, min_p, repetition_penalty, seed)
        facts = self.bundle.manifest.text
        limits = Limits(max_new_tokens, facts.eos_ids, facts.tokens, width)
        text = TextStream(self.text.decode, [stop] if isinstance(stop, str) else stop)
        ids = self._encode(prompt, chat)
        drafter = self._drafter(method, draft_tokens)
        self.session.hidden = "hidden" in drafter.wants
        self._current = None
        self._current = Stream(self, Engine(self.session, drafter, sampling, limits), ids, text)
        return self._current

    def close(self) -> None:
        self._current = None
        self.session.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _encode(self, prompt: str | Sequence[Message], chat: bool) -> list[int]:
        if not prompt:
            raise BadUsage("the prompt is empty; give it some text")
        if isinstance(prompt, str):
            return (
                self.text.encode_chat([{"role": "user", "content": prompt}])
                if chat
                else self.text.encode_prompt(prompt)
            )
        if not chat:
            raise BadUsage("messages need the chat template; give plain text with --no-chat (chat=False)")
        return self.text.encode_chat(prompt)

    def _drafter(self, method: str, draft_tokens: int | None) -> Drafter:
        module = find(DRAFTERS, "create", method, "method")
        # A method that weighs costs says so in its file; measuring them takes a second, once per machine.
        cost = self.costs() if "cost" in getattr(module, "READS", ()) else None
        drafter: Drafter = module.create(DrafterOptions(draft_tokens=draft_tokens, cost=cost))
        return drafter

    def costs(self) -> CostCurve:
        """t(width) here: measured the first time this bundle runs with this provider and thread count."""
        if self._costs is None:
            key = cost_key(self.bundle.digest, self.provider, self._threads, onnxruntime.__version__)
            self._costs = load_costs(key)
            if self._costs is None:
                self._current = None
                self.session.truncate(0)
                self.session.prefill([0] * min(COST_PAST, self.session.capacity // 2))
                self._costs = measure(self.session, COST_WIDTHS)
                self.session.truncate(0)
                save_costs(key, self._costs)
        return self._costs


class Stream:
    """An iterator over pieces of text. The prompt has been read when it exists."""

    def __init__(self, llm: LLM, engine: Engine, ids: Sequence[int], text: TextStream) -> None:
        self._llm, self._engine, self._stream = llm, engine, text
        self._chunks = engine.generate(ids)
        self._text: list[str] = []
        self._pieces = self._run()

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        return next(self._pieces)

    @property
    def result(self) -> Generation:
        """What there is so far; complete once the iterator has ended."""
        return Generation(
            text="".join(self._text),
            tokens=tuple(self._engine.tokens),
            finish_reason=self._engine.finish_reason or INTERRUPTED,
            method=self._engine.drafter.name,
            provider=self._llm.provider,
            model=self._llm.bundle.manifest.model.name,
            stats=self._engine.stats,
        )

    def _run(self) -> Iterator[str]:
        for piece in self._raw():
            if piece:
                self._text.append(piece)
                yield piece

    def _raw(self) -> Iterator[str]:
        """A stop string ends it at once, also one that only the last character completes."""
        chunk: list[int] | None = []
        while chunk is not None and not self._stream.stopped:
            self._check()
            chunk = next(self._chunks, None)
            yield self._stream.flush() if chunk is None else self._stream.push(chunk)
        if self._stream.stopped:
            self._engine.stop(self._stream.tokens)

    def _check(self) -> None:
        if self._llm._current is not self:
            raise SpecError("this generation is over: its model was closed or has begun another one")
