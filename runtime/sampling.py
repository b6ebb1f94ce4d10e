"""What the user asked of sampling, and the law it makes of one row of logits.

Enters: `Sampling` (the options), float logits [V] of one position, the tokens before it.
Leaves: the best token, or a sparse `Law` over the tokens that may follow.
The transforms and their order are those of transformers' logits processors and, for presence and frequency, of vLLM:
logit bias, repetition, frequency and presence penalty, bad words, temperature, top-k, top-p, min-p. Greedy decoding
takes the best token after the bad words. Ids that are only padding are cut off first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from spec_edge.models.contract import BadUsage
from spec_edge.runtime import processors
from spec_edge.runtime.law import Floats, Law
from spec_edge.runtime.processors import Past
from spec_edge.runtime.truncation import every, kth_largest, nucleus, weights

COLD = 1e-5
"""A temperature below this is greedy: dividing by it only overflows."""

MOST = 1024
"""Biased ids, and bad words, of a request."""

ACCEPT = ("exact", "typical")


@dataclass(frozen=True)
class Sampling:
    """Options of one generation. A value that switches a transform off is its default.

    temperature         >= 0; below 1e-5 is greedy
    top_k               0, or the number of most likely tokens that stay (ties with the last one stay too)
    top_p               0..1: the fewest most likely tokens that hold this mass; 0 leaves one
    min_p               0..1: tokens at least this likely relative to the most likely one
    repetition_penalty  0.01..100: logits of tokens already in the text are divided (if negative, multiplied) by it
    seed                None for a fresh one
    presence_penalty    -2..2: off the logit of each token already generated
    frequency_penalty   -2..2: the same, once for each time it was generated
    logit_bias          id -> -100..100, added to its logit; at most 1024 ids
    bad_words           token sequences that are never completed; at most 1024
    accept              exact: the output has the target's own law. typical: LOSSY (Medusa's rule): more drafted tokens
                        are accepted, and sampled text no longer has that law. Greedy text is exact under both
    typical_epsilon     0..1: a drafted token at least this likely is accepted under `typical`
    typical_alpha       0..1: so is one likelier than this share of exp(-entropy)
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    bad_words: Sequence[Sequence[int]] = ()
    accept: str = "exact"
    typical_epsilon: float = 0.09
    typical_alpha: float = 0.3

    def __post_init__(self) -> None:
        for name, low, high in BOUNDS:
            _within(name, getattr(self, name.replace("-", "_")), low, high)
        if not isinstance(self.top_k, int):
            raise BadUsage(f"top-k must be a whole number, not {self.top_k}")
        if self.seed is not None:
            _within("seed", self.seed, -(2**63), 2**64 - 1)
        for name, many in (("logit-bias", self.logit_bias), ("bad-words", self.bad_words)):
            if len(many) > MOST:
                raise BadUsage(f"{name} takes at most {MOST} entries, not {len(many)}")
        for token, bias in self.logit_bias.items():
            _within(f"logit-bias of token {token}", bias, -100.0, 100.0)
        if not all(self.bad_words):
            raise BadUsage("bad-words holds an empty word; give each at least one token")
        if self.accept not in ACCEPT:
            raise BadUsage(f"accept must be one of {', '.join(ACCEPT)}, not {self.accept}")

    @property
    def greedy(self) -> bool:
        return self.temperature < COLD

    @property
    def lossy(self) -> bool:
        """Whether the text may differ in law from the target's own."""
        return self.accept != "exact" and not self.greedy


BOUNDS = (
    ("temperature", 0.0, 1e6),
    ("top-k", 0, 2**31 - 1),
    ("top-p", 0.0, 1.0),
    ("min-p", 0.0, 1.0),
    ("repetition-penalty", 0.01, 100.0),
    ("presence-penalty", -2.0, 2.0),
    ("frequency-penalty", -2.0, 2.0),
    ("typical-epsilon", 0.0, 1.0),
    ("typical-alpha", 0.0, 1.0),
)


def _within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise BadUsage(f"{name} must be between {low:g} and {high:g}, not {value}")


def generator(seed: int | None) -> np.random.Generator:
    """A generator from a 64-bit seed of either sign, or from fresh entropy."""
    return np.random.default_rng(None if seed is None else seed % 2**64)


class Sampler:
    """The options made ready for one model: the same object transforms the target's logits and a drafter's.

    eos_ids  ends of sequence; one alone is never a bad word, as in transformers
    tokens   number of real ids, logits past it are padding; None: all are real
    """

    def __init__(self, options: Sampling, eos_ids: Sequence[int] = (), tokens: int | None = None) -> None:
        """BadUsage: a biased or forbidden id that the model does not have."""
        words = [tuple(w) for w in options.bad_words if len(w) > 1 or w[0] not in eos_ids]
        self.options, self.tokens = options, tokens
        self._bias_ids = np.array(list(options.logit_bias), np.int64)
        self._bias = np.array(list(options.logit_bias.values()), np.float64)
        self._words = processors.by_prefix(words)
        self._ends = max(map(len, words), default=1) - 1
        self._buffers: dict[int, Floats] = {}
        self._processes = bool(self.reads_past or self._words or self._bias_ids.size)
        most = math.inf if tokens is None else tokens
        for name, ids in (("logit-bias", options.logit_bias), ("bad-words", [t for w in words for t in w])):
            if wrong := [t for t in ids if not 0 <= t < most]:
                raise BadUsage(f"{name} names token {wrong[0]}; the model has ids 0..{most - 1}")

    @property
    def reads_past(self) -> bool:
        """Whether the tokens before a position matter to its law."""
        o = self.options
        return bool(o.repetition_penalty != 1 or o.presence_penalty or o.frequency_penalty or self._ends)

    @property
    def changes(self) -> bool:
        """Whether logits are changed before temperature and truncation: by penalties, bias or bad words."""
        return self._processes

    def best(self, logits: Floats, past: Past) -> int:
        """The most likely token, the lowest id of a tie. FloatingPointError on NaN or infinity."""
        return _peak(self._processed(logits, past))

    def law(self, logits: Floats, past: Past) -> Law:
        """The law of the token that follows `past`. FloatingPointError on NaN or infinity.

        Of tokens that tie at the top-p cut, those with the lowest ids stay.
        """
        logits = self._processed(logits, past)
        return law(logits, self.options, self._buffer(1, logits))

    def _processed(self, logits: Floats, past: Past) -> Floats:
        o, logits = self.options, logits[: self.tokens]
        if not self._processes:
            return logits
        _peak(logits)
        changed = self._buffer(0, logits)
        np.copyto(changed, logits)
        logits = changed
        if self._bias_ids.size:
            processors.bias(logits, self._bias_ids, self._bias)
        if o.repetition_penalty != 1:
            processors.repetition(logits, past, o.repetition_penalty)
        if o.presence_penalty or o.frequency_penalty:
            processors.counted(logits, past, o.presence_penalty, o.frequency_penalty)
        if self._words:
            processors.forbid(logits, past, self._words)
            if logits.max() == -np.inf:
                raise BadUsage("the bad words forbid every token here; allow some")
        return logits

    def _buffer(self, which: int, like: Floats) -> Floats:
        """Kept between rows: a fresh 200 kB at each costs more in page faults than the arithmetic on it."""
        kept = self._buffers.get(which)
        if kept is None or kept.shape != like.shape or kept.dtype != like.dtype:
            kept = self._buffers[which] = np.empty_like(like)
        return kept


def law(logits: Floats, o: Sampling, scratch: Floats) -> Law:
    """The law that temperature, top-k, top-p and min-p make of processed logits. `scratch`: an array like them."""
    top = logits[_peak(logits)]
    ids = None
    if 0 < o.top_k < logits.size:
        ids = np.flatnonzero(logits >= kth_largest(logits, o.top_k))
        logits, scratch = logits[ids].astype(np.float64), np.empty(ids.size)
    if o.top_p < 1 or o.min_p > 0:
        weight = weights(logits, top, o.temperature, scratch)
        kept = nucleus(weight, o.top_p) if o.top_p < 1 else (weight >= o.min_p).nonzero()[0]
        kept = kept[weight[kept] >= o.min_p]
        ids, logits = kept if ids is None else ids[kept], logits[kept].astype(np.float64)
    weight = weights(logits, top, o.temperature)
    # A numpy float64 here would make the division of float32 weights a slow one.
    weight /= float(weight.sum())
    return Law(every(weight.size) if ids is None else ids, weight)


def _peak(logits: Floats) -> int:
    """argmax. It stops at the first NaN and finds +inf, so checking its own value checks the row."""
    at = int(logits.argmax())
    if not math.isfinite(logits[at]):
        raise FloatingPointError(f"logit of token {at} is {logits[at]}")
    return at
