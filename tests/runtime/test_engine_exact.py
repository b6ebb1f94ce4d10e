# ruff: noqa: ARG001, ARG002, ARG005 (stand-ins for protocols take what those take)
"""The law of the engine's text, by enumeration of every random decision, equals the law of plain sampling to 1e-12.

This goes through the whole loop, so it also covers what acceptance alone cannot: the history that penalties and bad
words see on each path, the prompt's share in it, end of sequence, and the limit. The toy's logits are taken in float64.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from spec_edge.runtime import accept
from spec_edge.runtime.draft import UNREAD, Context, Draft, Output, Verdict
from spec_edge.runtime.engine import Engine, Limits
from spec_edge.runtime.law import Law, dense, probability, without
from spec_edge.runtime.processors import Past
from spec_edge.runtime.sampling import Sampler, Sampling
from spec_edge.runtime.sessions.toy import ToySession

V, NEW = 3, 3
PROMPT = [1, 0]
Tokens = tuple[int, ...]
OPTIONS = {
    "bare": Sampling(1.0),
    "top-k": Sampling(0.7, top_k=2),
    "top-p": Sampling(1.2, top_p=0.8),
    "min-p": Sampling(1.0, min_p=0.4),
    "repetition": Sampling(1.0, repetition_penalty=1.8),
    "presence": Sampling(1.0, presence_penalty=1.7),
    "frequency": Sampling(1.0, frequency_penalty=-1.3),
    "bias": Sampling(1.0, logit_bias={0: -1.0, 2: 1.0}),
    "bad words": Sampling(1.0, bad_words=((0, 1), (2, 2), (1, 0, 2))),
    "all": Sampling(0.8, 2, 0.95, 0.05, 1.3, None, 0.4, 0.6, {1: 0.7}, ((1, 1),)),
}


class Exact(ToySession):
    """The toy with logits in float64, so that no rounding of laws hides an error; each text is computed once."""

    def _run(self, tokens: list[int], draft: Draft) -> Output:
        output = super()._run(tokens, draft)
        return Output(output.logits.astype(np.float64), output.hidden)  # type: ignore[arg-type]


def toy() -> ToySession:
    return Exact(V, 12, 8, seed=4)


class Script:
    """Chance, for the engine and for the drafter: follows given choices, then takes the first and notes the others."""

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


class Proposing:
    """A drafter made of one function."""

    name = "proposing"
    wants: frozenset[str] = frozenset()
    chance: Script

    def __init__(self, propose: Callable[[Sequence[int], Script], Draft]) -> None:
        self._propose = propose

    def start(self, prompt: Sequence[int], read: Output = UNREAD) -> None: ...

    def propose(self, context: Context, width: int) -> Draft:
        return self._propose(context.ids, self.chance)

    def observe(self, verdict: Verdict, draft: Draft, output: Output) -> None: ...


def q_after(tokens: Sequence[int]) -> Law:
    """A drafter's law; it excludes a token now and then."""
    rng = np.random.default_rng([9, *tokens])
    p = rng.dirichlet(np.ones(V)) * (rng.random(V) < 0.8)
    return Law(np.arange(V), p / p.sum()) if p.any() else Law(np.arange(V), np.full(V, 1 / V))


def drawn_chain(ids: Sequence[int], chance: Script) -> Draft:
    tokens: list[int] = []
    rows = []
    for _ in range(2):
        law = q_after([*ids, *tokens])
        tokens.append(chance.pick(law))
        rows.append(dense(law, V))
    return Draft.chain(tokens, np.stack(rows))


def drawn_siblings(ids: Sequence[int], chance: Script) -> Draft:
    """Two siblings without replacement, and a child of the second one."""
    tokens, parents, rows = [], [], []
    law = q_after(ids)
    for _ in range(min(2, int(np.count_nonzero(law.p)))):
        tokens.append(chance.pick(law))
        parents.append(-1)
        rows.append(dense(law, V))
        if probability(law, tokens[-1]) < 1:
            law = without(law, tokens[-1])
    law = q_after([*ids, tokens[-1]])
    tokens.append(chance.pick(law))
    return Draft(tuple(tokens), (*parents, len(parents) - 1), (True,) * len(tokens), np.stack([*rows, dense(law, V)]))


def merged_tree(ids: Sequence[int], chance: Script) -> Draft:
    """Point masses: duplicates, copies of a path, a row that does not count."""
    a, b = ids[-1], (ids[-1] + len(ids)) % V
    return Draft((a, b, a, b, a, 2), (-1, -1, -1, 0, 2, 0), (True, True, True, True, True, False))


DRAFTS = {"merged tree": merged_tree, "drawn chain": drawn_chain, "drawn siblings": drawn_siblings}


def outcomes(run: Callable[[Script], list[int]]) -> Iterator[tuple[Tokens, float]]:
    todo: list[Tokens] = [()]
    while todo:
        chance = Script(todo.pop())
        ids = run(chance)
        todo += chance.others
        yield tuple(ids), chance.weight


def plain_law(options: Sampling, eos: tuple[int, ...]) -> dict[Tokens, float]:
    """By the chain rule, from a fresh prefill of each text."""
    sampler, joint = Sampler(options, eos, V), {}
    todo: list[tuple[Tokens, float]] = [((), 1.0)]
    while todo:
        new, weight = todo.pop()
        if len(new) == NEW or (new and new[-1] in eos):
            joint[new] = weight
            continue
        logits = toy().prefill([*PROMPT, *new]).logits[-1]
        law = sampler.law(logits, Past(np.array([*PROMPT, *new]), len(PROMPT)))
        todo += [((*new, t), weight * p) for t, p in zip(law.ids.tolist(), law.p.tolist(), strict=True) if p > 0]
    return joint


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("name", OPTIONS)
def test_law_of_the_engine(name: str, draft: str, monkeypatch: pytest.MonkeyPatch) -> None:
    eos = (2,) if name in ("bare", "all") else ()
    engine = Engine(toy(), drafter := Proposing(DRAFTS[draft]), OPTIONS[name], Limits(NEW, eos))
    joint: dict[Tokens, float] = defaultdict(float)

    def run(chance: Script) -> list[int]:
        drafter.chance = chance
        monkeypatch.setattr(accept, "Dice", lambda rng: chance)
        list(engine.generate(PROMPT, reuse=True))
        return engine.ids[len(PROMPT) :]

    for tokens, weight in outcomes(run):
        joint[tokens] += weight
    want = plain_law(OPTIONS[name], eos)
    assert sum(want.values()) == pytest.approx(1, abs=1e-12)
    assert max(abs(joint[t] - want.get(t, 0.0)) for t in {*joint, *want}) < 1e-12


def test_every_text_is_possible() -> None:
    """The joints above are not degenerate: plain sampling reaches nearly all of them."""
    assert len(plain_law(OPTIONS["bare"], ())) == len(list(itertools.product(range(V), repeat=NEW)))
    assert 3 < len(plain_law(OPTIONS["all"], ())) < V**NEW
