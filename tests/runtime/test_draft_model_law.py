"""The law of text drafted by a model, by enumeration of every draw of drafter and engine, is the target's to 1e-12."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest

from spec_edge.runtime import accept, drafted, hybrid
from spec_edge.runtime.draft import EMPTY, Context, Draft, Output, Verdict
from spec_edge.runtime.draft_model import DraftModel
from spec_edge.runtime.drafters import draft as drafting
from spec_edge.runtime.drafters.options import DrafterOptions
from spec_edge.runtime.engine import Engine, Limits
from spec_edge.runtime.law import Law
from spec_edge.runtime.processors import Past
from spec_edge.runtime.sampling import Sampler, Sampling

V, NEW = 3, 3
PROMPT = [1, 0]
Tokens = tuple[int, ...]
OPTIONS = {
    "bare": Sampling(1.0),
    "cut": Sampling(0.7, top_k=2, min_p=0.05),
    "top-p": Sampling(1.2, top_p=0.8),
    "penalties": Sampling(1.0, repetition_penalty=1.6, presence_penalty=0.7, frequency_penalty=-0.4),
    "bias and bad words": Sampling(1.0, logit_bias={0: -1.0, 2: 1.0}, bad_words=((0, 1), (2, 2))),
}
SHAPES = {
    "chain": {"draft_tokens": 2, "confidence": 0.0},
    "chain that stops": {"draft_tokens": 2, "confidence": 0.45},
    "best-first tree": {"draft_tokens": 2, "tree": ()},
    "fixed tree": {"tree": (2, 1)},
}


@cache
def logits_after(seed: int, ids: Tokens) -> np.ndarray:
    return np.random.default_rng([seed, *ids]).normal(size=V) * 1.3


class Texts:
    """A network whose logits are a float64 function of every token before: as exact as a session can be, and fast."""

    vocab_size, capacity, max_width = V, 12, 8

    def __init__(self, seed: int) -> None:
        self.seed, self.ids, self._run = seed, [], []

    @property
    def length(self) -> int:
        return len(self.ids)

    def prefill(self, ids: Sequence[int]) -> Output:
        self.ids += ids
        return Output(logits_after(self.seed, tuple(self.ids))[None])  # type: ignore[arg-type]

    def verify(self, pending: int, draft: Draft) -> Output:
        assert self.length + len(draft) + 1 <= self.capacity
        self._run = [pending, *draft.tokens]
        paths = [(*self.ids, *(self._run[i] for i in np.flatnonzero(seen))) for seen in draft.mask]
        return Output(np.stack([logits_after(self.seed, path) for path in paths]))  # type: ignore[arg-type]

    def commit(self, rows: Sequence[int]) -> None:
        self.ids += [self._run[row] for row in rows]

    def truncate(self, length: int) -> None:
        del self.ids[length:]

    def close(self) -> None: ...


class Script:
    """Chance that follows given choices, then takes each first possible one and notes the others."""

    def __init__(self, choices: Tokens) -> None:
        self.choices, self.weight, self.others, self._at = choices, 1.0, [], 0

    def _choose(self, options: list[tuple[int, float]]) -> int:
        options = [(o, w) for o, w in options if w > 0]
        if self._at == len(self.choices):
            self.others += [(*self.choices, i) for i in range(1, len(options))]
            self.choices = (*self.choices, 0)
        option, weight = options[self.choices[self._at]]
        self._at += 1
        self.weight *= weight
        return option

    def accept(self, probability: float) -> bool:
        return bool(self._choose([(1, probability), (0, 1 - probability)]))

    def pick(self, law: Law) -> int:
        return self._choose(list(zip(law.ids.tolist(), law.p.tolist(), strict=True)))


def plain_law(options: Sampling) -> dict[Tokens, float]:
    sampler, joint = Sampler(options, (), V), {}
    todo: list[tuple[Tokens, float]] = [((), 1.0)]
    while todo:
        new, weight = todo.pop()
        if len(new) == NEW:
            joint[new] = weight
            continue
        logits = logits_after(4, (*PROMPT, *new))
        law = sampler.law(logits, Past(np.array([*PROMPT, *new]), len(PROMPT)))
        todo += [((*new, t), weight * p) for t, p in zip(law.ids.tolist(), law.p.tolist(), strict=True) if p > 0]
    return joint


def text_law(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> dict[Tokens, float]:
    """Of the engine's new tokens, over every draw of the drafter's and of acceptance."""
    joint: dict[Tokens, float] = defaultdict(float)
    todo: list[Tokens] = [()]
    while todo:
        chance = Script(todo.pop())
        monkeypatch.setattr(accept, "Dice", lambda _, chance=chance: chance)
        monkeypatch.setattr(drafted, "draw", lambda law, _, chance=chance: chance.pick(law))
        list(engine.generate(PROMPT, reuse=True))
        joint[tuple(engine.ids[len(PROMPT) :])] += chance.weight
        todo += chance.others
    return joint


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", OPTIONS)
def test_law(name: str, shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = OPTIONS[name]
    told = DrafterOptions(sampler=Sampler(options, (), V), draft=DraftModel(Texts(9), V), **SHAPES[shape])
    joint = text_law(Engine(Texts(4), drafting.create(told), options, Limits(NEW)), monkeypatch)
    want = plain_law(options)
    assert sum(want.values()) == pytest.approx(1, abs=1e-12)
    assert max(abs(joint[t] - want.get(t, 0.0)) for t in {*joint, *want}) < 1e-12


def test_a_drafted_token_must_not_be_dropped_for_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The enumeration sees the mistake: dropping a token that was drawn, because it is unlikely."""
    options = OPTIONS["bare"]
    told = DrafterOptions(1, sampler=Sampler(options), draft=DraftModel(Texts(9), V), confidence=0.0)
    drafter = drafting.create(told)
    propose = drafter.propose

    def censored(context: Context, width: int) -> Draft:
        draft = propose(context, width)
        return EMPTY if draft.q is not None and draft.q[0, draft.tokens[0]] < 0.45 else draft

    monkeypatch.setattr(drafter, "propose", censored)
    joint, want = text_law(Engine(Texts(4), drafter, options, Limits(NEW)), monkeypatch), plain_law(options)
    assert max(abs(joint[t] - want[t]) for t in want) > 1e-3


@pytest.mark.parametrize("mode", ["merge", "cascade"])
@pytest.mark.parametrize("method", ["suffix+draft", "prompt-lookup+draft", "lookahead+draft", "suffix+lookahead+draft"])
@pytest.mark.parametrize("name", ["bare", "cut", "penalties"])
def test_law_of_hybrids(name: str, method: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains that were drawn, merged with copies of the text: a merged tree must drop the ratio rule."""
    options = OPTIONS[name]
    told = DrafterOptions(
        sampler=Sampler(options, (), V), draft=DraftModel(Texts(9), V), min_ngram=1, hybrid=mode, **SHAPES["chain"]
    )
    drafter = hybrid.create(method, told)
    engine = Engine(Texts(4), drafter, options, Limits(NEW))
    seen: list[Draft] = []
    observe = drafter.observe

    def watch(verdict: Verdict, draft: Draft, output: Output) -> None:
        seen.append(draft)
        observe(verdict, draft, output)

    monkeypatch.setattr(drafter, "observe", watch)
    joint = text_law(engine, monkeypatch)
    want = plain_law(options)
    assert max(abs(joint[t] - want.get(t, 0.0)) for t in {*joint, *want}) < 1e-12
    assert any("draft" in draft.sources for draft in seen)
    assert mode == "cascade" or any(len(draft.sources) > 1 and draft.q is None for draft in seen)
