"""The transforms equal transformers' own processors; bounds, ties and garbage."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation import logits_process as hf

from spec_edge.models.contract import BadUsage
from spec_edge.runtime import law as laws
from spec_edge.runtime import processors, sampling
from spec_edge.runtime.law import Law, dense
from spec_edge.runtime.processors import Past
from spec_edge.runtime.sampling import Sampler, Sampling

EOS = 3


def past(*ids: int, prompt: int = 0) -> Past:
    return Past(np.array(ids, np.int64), prompt)


def law_of(logits: np.ndarray, history: Past, o: Sampling) -> Law:
    return Sampler(o, (EOS,)).law(logits, history)


def best_of(logits: np.ndarray, history: Past, o: Sampling) -> int:
    return Sampler(o, (EOS,)).best(logits, history)


def processed(logits: np.ndarray, history: Past, o: Sampling) -> torch.Tensor:
    """transformers' processors in its order; presence and frequency, which it has not, by hand as vLLM does."""
    ids, scores = torch.tensor(history.ids[None]), torch.tensor(logits[None], dtype=torch.float64)
    if o.logit_bias:
        scores = hf.SequenceBiasLogitsProcessor({(t,): float(b) for t, b in o.logit_bias.items()})(ids, scores)
    if o.repetition_penalty != 1:
        scores = hf.RepetitionPenaltyLogitsProcessor(o.repetition_penalty)(ids, scores)
    for token in history.ids[history.prompt :].tolist():
        scores[0, token] -= o.frequency_penalty
    for token in set(history.ids[history.prompt :].tolist()):
        scores[0, token] -= o.presence_penalty
    words = [list(w) for w in o.bad_words]
    if any(w != [EOS] for w in words):  # with nothing but an end of sequence, transformers fails
        scores = hf.NoBadWordsLogitsProcessor(words, EOS)(ids, scores)
    return scores


def reference(logits: np.ndarray, history: Past, o: Sampling) -> np.ndarray:
    """transformers' law, float64 [V], with its order of processors."""
    steps: list[hf.LogitsProcessor] = [hf.TemperatureLogitsWarper(float(o.temperature))]
    if o.top_k:
        steps.append(hf.TopKLogitsWarper(o.top_k))
    if o.top_p < 1:
        steps.append(hf.TopPLogitsWarper(float(o.top_p)))
    if o.min_p > 0:
        steps.append(hf.MinPLogitsWarper(float(o.min_p)))
    scores = processed(logits, history, o)
    for step in steps:
        scores = step(torch.tensor(history.ids[None]), scores)
    return torch.softmax(scores, -1)[0].numpy()


OPTIONS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.3, 0.7, 1.0, 1.9]),
    top_k=st.sampled_from([0, 1, 3, 17, 5000]),
    top_p=st.sampled_from([1.0, 0.93, 0.51, 0.07, 0.999]),
    min_p=st.sampled_from([0.0, 0.03, 0.4, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.7]),
)
PENALTIES = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.7, 1.0]),
    top_p=st.sampled_from([1.0, 0.9]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.7]),
    presence_penalty=st.sampled_from([0.0, 0.6, -2.0]),
    frequency_penalty=st.sampled_from([0.0, 0.4, -1.1]),
    # Biases that float32 holds: transformers keeps them in it.
    logit_bias=st.dictionaries(st.integers(0, 4), st.sampled_from([-100.0, -1.25, 0.5, 3.0]), max_size=4),
    bad_words=st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=3).map(tuple), max_size=3),
)


@settings(max_examples=400, deadline=None)
@given(PENALTIES, st.integers(0, 2**32), st.lists(st.integers(0, 4), max_size=8), st.integers(0, 8))
def test_processors_equal_transformers(o: Sampling, seed: int, ids: list[int], prompt: int) -> None:
    """Sampled and greedy; repetition and bad words see the prompt, presence and frequency do not."""
    logits, history = np.random.default_rng(seed).normal(size=6) * 3, past(*ids, prompt=min(prompt, len(ids)))
    want = processed(logits, history, o)[0].numpy()
    assert best_of(logits, history, o) == want.argmax()
    if not o.greedy:
        assert np.abs(dense(law_of(logits, history, o), 6) - reference(logits, history, o)).max() < 1e-12


def test_each_processor_by_hand() -> None:
    history = past(0, 1, 2, 2, prompt=1)
    words = processors.by_prefix([(0,), (2, 1), (1, 2, 3), (2, 2, 3), (2, 0, 1, 2, 2, 2)])

    def after(process: Callable[..., None], *arguments: object) -> list[float]:
        logits = np.array([2.0, -2.0, 1.0, 0.5], np.float32)
        process(logits, *arguments)
        return logits.tolist()

    assert after(processors.bias, np.array([1, 3]), np.array([5.0, -1])) == [2, 3, 1, -0.5]
    assert after(processors.repetition, history, 2.0) == [1, -4, 0.5, 0.5]
    assert after(processors.counted, history, 1.0, 0.25) == [2, -3.25, -0.5, 0.5]
    assert after(processors.forbid, history, words) == [-np.inf, -np.inf, 1, -np.inf]
    assert after(processors.forbid, past(0, 1, 2, 2), {(0, 1, 2, 2): [2]}) == [2, -2, -np.inf, 0.5]


def test_the_row_itself_is_never_changed() -> None:
    logits = np.array([2.0, -2.0, 1.0, 0.5])
    o = Sampling(1.0, 2, 0.9, 0.1, 1.5, None, 0.3, 0.3, {1: 3.0}, ((2,),))
    law_of(logits, past(0, 1, 2), o)
    best_of(logits, past(0, 1, 2), o)
    assert logits.tolist() == [2, -2, 1, 0.5]


def test_an_end_of_sequence_is_never_a_bad_word_but_may_end_one() -> None:
    logits = np.array([0.0, 1.0, 2.0, 3.0])
    assert best_of(logits, past(0), Sampling(bad_words=((EOS,), (2,)))) == EOS
    assert best_of(logits, past(0), Sampling(bad_words=((0, EOS), (2,)))) == 1


def test_bad_words_that_leave_nothing_are_refused() -> None:
    with pytest.raises(BadUsage, match="every token"):
        best_of(np.zeros(2), past(0), Sampling(bad_words=((0,), (1,))))
    for bad in (np.nan, np.inf):
        with pytest.raises(FloatingPointError):
            best_of(np.array([0.0, bad, 0.0]), past(0), Sampling(bad_words=((1,),)))


@pytest.mark.parametrize(
    "o", [Sampling(logit_bias={7: 1.0}), Sampling(bad_words=((1, 7),)), Sampling(bad_words=((-1,),))]
)
def test_ids_that_the_model_has_not(o: Sampling) -> None:
    with pytest.raises(BadUsage, match=r"names token (7|-1); the model has ids 0\.\.6"):
        Sampler(o, (), 7)


def test_padding_is_cut_off() -> None:
    sampler = Sampler(Sampling(1.0), (), 3)
    assert sampler.best(np.arange(9.0), past()) == 2
    assert sampler.law(np.arange(9.0), past()).ids.tolist() == [0, 1, 2]


@settings(max_examples=250, deadline=None)
@given(OPTIONS, st.integers(0, 2**32), st.sampled_from([5, 64, 1500, 9000]), st.sampled_from([0.2, 2.0, 6.0]))
def test_law_equals_transformers(o: Sampling, seed: int, size: int, spread: float) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=size) * spread
    history = past(*rng.integers(0, size, 12).tolist())
    law = law_of(logits, history, o)
    assert np.abs(dense(law, size) - reference(logits, history, o)).max() < 1e-12
    assert (np.diff(law.ids) > 0).all()
    assert law.p.sum() == pytest.approx(1, abs=1e-12)


@settings(max_examples=250, deadline=None)
@given(OPTIONS, st.integers(0, 2**32), st.sampled_from([5, 64, 1500]))
def test_law_with_ties_keeps_as_much_as_transformers(o: Sampling, seed: int, size: int) -> None:
    """Which of the tokens tied at a top-p cut stay is undefined there (an unstable sort); here, the lowest ids."""
    rng = np.random.default_rng(seed)
    logits = np.round(rng.normal(size=size) * 2)
    ours, theirs = dense(law_of(logits, past(), o), size), reference(logits, past(), o)
    assert np.abs(np.sort(ours) - np.sort(theirs)).max() < 1e-12
    for level in np.unique(logits[ours > 0]):
        kept = ours[logits == level] > 0
        assert (np.diff(kept.astype(int)) <= 0).all()


@pytest.mark.parametrize("o", [Sampling(1.0), Sampling(0.7, 50, 0.9, 0.02, 1.2), Sampling(1.0, top_p=0.9)])
def test_float32_rows_of_a_real_size(o: Sampling) -> None:
    rng = np.random.default_rng(1)
    logits = (rng.normal(size=49152) * 3).astype(np.float32)
    law = law_of(logits, past(*range(300)), o)
    want = reference(logits.astype(np.float64), past(*range(300)), o)
    assert np.abs(dense(law, 49152) - want).max() < 1e-6
    assert set(law.ids) == set(np.flatnonzero(want))


def test_nucleus_of_equal_weights_keeps_the_lowest_ids() -> None:
    law = law_of(np.zeros(20000, np.float32), past(), Sampling(1.0, top_p=0.25))
    assert law.ids.tolist() == list(range(5000))
    assert law_of(np.zeros(20), past(), Sampling(1.0, top_p=0.0)).ids.tolist() == [0]


def test_top_p_zero_leaves_the_best() -> None:
    logits = np.array([0.0, 3.0, 3.0, 1.0])
    assert law_of(logits, past(), Sampling(1.0, top_p=0.0)).ids.tolist() == [1]


@pytest.mark.parametrize("temperature", [0.0, -0.0, 1e-45, 9e-6])
def test_cold_is_greedy(temperature: float) -> None:
    assert Sampling(temperature).greedy
    assert not Sampling(1e-5).greedy


def test_tiny_temperature_does_not_overflow() -> None:
    law = law_of(np.array([1e4, -1e4, 9999.0]), past(), Sampling(1e-5))
    assert law.p.tolist() == [1.0, 0.0, 0.0]


def test_best_takes_the_lowest_id_and_the_penalty() -> None:
    logits = np.array([1.0, 2.0, 2.0, -1.0], np.float32)
    assert best_of(logits, past(), Sampling()) == 1
    assert best_of(logits, past(1, 1, 99), Sampling(repetition_penalty=1.5)) == 2
    assert logits.tolist() == [1.0, 2.0, 2.0, -1.0]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_garbage_logits(bad: float) -> None:
    logits = np.zeros(1000, np.float32)
    logits[700] = bad
    with pytest.raises(FloatingPointError, match="700"):
        best_of(logits, past(), Sampling())
    with pytest.raises(FloatingPointError, match="700"):
        law_of(logits, past(), Sampling(1.0))
    with pytest.raises(FloatingPointError):
        best_of(np.full(4, -np.inf), past(), Sampling())


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_k", -1),
        ("top_k", 1.5),
        ("top_p", 1.1),
        ("top_p", float("nan")),
        ("min_p", -0.1),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", float("inf")),
        ("seed", 2**64),
        ("presence_penalty", 2.1),
        ("frequency_penalty", float("nan")),
        ("logit_bias", {1: 101.0}),
        ("logit_bias", {1: float("nan")}),
        ("logit_bias", dict.fromkeys(range(1025), 1.0)),
        ("bad_words", ((1,),) * 1025),
        ("bad_words", ((1,), ())),
        ("accept", "always"),
        ("typical_epsilon", -0.1),
        ("typical_alpha", 1.1),
    ],
)
def test_bad_options_are_named(option: str, value: object) -> None:
    with pytest.raises(BadUsage, match=option.replace("_", "-")) as e:
        Sampling(**{option: value})
    assert "\n" not in str(e.value)


class Fixed:
    """A generator that always gives one number."""

    def __init__(self, u: float) -> None:
        self.u = u

    def random(self) -> float:
        return self.u


def test_draw_never_gives_an_impossible_token() -> None:
    p = np.zeros(1000)
    p[[3, 300, 700]] = [0.25, 0.5, 0.25]
    law = Law(np.arange(1000) + 5, p)
    for u, token in [(0.0, 8), (0.2499, 8), (0.25, 305), (0.7499, 305), (0.75, 705), (1 - 2**-53, 705), (1.0, 705)]:
        assert laws.draw(law, Fixed(u)) == token  # type: ignore[arg-type]


def test_draw_has_the_law() -> None:
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(600))
    counts = np.bincount([laws.draw(Law(np.arange(600), p), rng) for _ in range(30000)], minlength=600)
    big = p * 30000 >= 10
    chi = ((counts - p * 30000)[big] ** 2 / (p * 30000)[big]).sum()
    assert chi < 1.5 * big.sum()


def test_probability_without_and_residual() -> None:
    law = Law(np.array([2, 5, 9]), np.array([0.5, 0.3, 0.2]))
    assert [laws.probability(law, t) for t in (2, 3, 9, 10)] == [0.5, 0.0, 0.2, 0.0]
    assert np.allclose(laws.without(law, 5).p, [5 / 7, 0, 2 / 7])
    q = np.zeros(12)
    q[[2, 5]] = [0.1, 0.9]
    assert np.allclose(laws.residual(law, q).p, [2 / 3, 0, 1 / 3])
    q[[2, 5, 9]] = [0.5, 0.3, 0.2]
    assert laws.residual(law, q) is law


def test_seed_of_either_sign() -> None:
    assert sampling.generator(-1).random() == sampling.generator(2**64 - 1).random()
    assert sampling.generator(None).random() != sampling.generator(None).random()


def test_siblings_state_the_law_they_were_drawn_from() -> None:
    law = Law(np.array([2, 5, 9, 11]), np.array([0.4, 0.3, 0.3, 0.0]))
    first = laws.siblings(law, 3, Fixed(0.45))  # type: ignore[arg-type]
    assert [t for t, _ in first] == [5, 2, 9]
    assert [dense(q, 12)[[2, 5, 9]].round(3).tolist() for _, q in first] == [
        [0.4, 0.3, 0.3],
        [0.571, 0, 0.429],
        [0, 0, 1],
    ]
    assert [t for t, _ in laws.siblings(law, 9, np.random.default_rng(0))].count(11) == 0
    assert len(laws.siblings(law, 9, np.random.default_rng(0))) == 3
    assert laws.siblings(law, 0, np.random.default_rng(0)) == []


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0.001, 0.5, 0.9, 0.999, 0.9999999]), st.sampled_from([0.0, 1.0, 12.0]))
def test_nucleus_of_float32_rows_of_any_flatness(seed: int, top_p: float, spread: float) -> None:
    """Where the cut falls is decided by a sum in float64: the kept mass reaches top_p, one token less would not."""
    logits = (np.random.default_rng(seed).normal(size=20000) * spread).astype(np.float32)
    ids = law_of(logits, past(), Sampling(1.0, top_p=top_p)).ids
    p = np.exp(logits.astype(np.float64))
    p /= p.sum()
    assert p[ids].sum() >= top_p - 1e-6
    assert p[ids].sum() - p[ids].min() < top_p + 1e-6
    assert p[ids].min() >= np.delete(p, ids).max(initial=0)
