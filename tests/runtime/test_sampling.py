"""The transforms equal transformers' own processors; bounds, ties and garbage."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation import logits_process as hf

from spec_edge.models.contract import BadUsage
from spec_edge.runtime import sampling
from spec_edge.runtime.sampling import Law, Sampling

EMPTY = np.empty(0, np.int64)


def reference(logits: np.ndarray, history: list[int], o: Sampling) -> np.ndarray:
    """transformers' law, float64 [V], with its order of processors."""
    steps: list[hf.LogitsProcessor] = []
    if o.repetition_penalty != 1:
        steps.append(hf.RepetitionPenaltyLogitsProcessor(o.repetition_penalty))
    steps.append(hf.TemperatureLogitsWarper(float(o.temperature)))
    if o.top_k:
        steps.append(hf.TopKLogitsWarper(o.top_k))
    if o.top_p < 1:
        steps.append(hf.TopPLogitsWarper(float(o.top_p)))
    if o.min_p > 0:
        steps.append(hf.MinPLogitsWarper(float(o.min_p)))
    ids, scores = torch.tensor([history], dtype=torch.int64), torch.tensor(logits[None], dtype=torch.float64)
    for step in steps:
        scores = step(ids, scores)
    return torch.softmax(scores, -1)[0].numpy()


def dense(law: Law, size: int) -> np.ndarray:
    out = np.zeros(size)
    out[law.ids] = law.p
    return out


OPTIONS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.3, 0.7, 1.0, 1.9]),
    top_k=st.sampled_from([0, 1, 3, 17, 5000]),
    top_p=st.sampled_from([1.0, 0.93, 0.51, 0.07, 0.999]),
    min_p=st.sampled_from([0.0, 0.03, 0.4, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.7]),
)


@settings(max_examples=250, deadline=None)
@given(OPTIONS, st.integers(0, 2**32), st.sampled_from([5, 64, 1500, 9000]), st.sampled_from([0.2, 2.0, 6.0]))
def test_law_equals_transformers(o: Sampling, seed: int, size: int, spread: float) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=size) * spread
    history = rng.integers(0, size, 12).tolist()
    law = sampling.law(logits, np.array(history), o)
    assert np.abs(dense(law, size) - reference(logits, history, o)).max() < 1e-12
    assert (np.diff(law.ids) > 0).all()
    assert law.p.sum() == pytest.approx(1, abs=1e-12)


@settings(max_examples=250, deadline=None)
@given(OPTIONS, st.integers(0, 2**32), st.sampled_from([5, 64, 1500]))
def test_law_with_ties_keeps_as_much_as_transformers(o: Sampling, seed: int, size: int) -> None:
    """Which of the tokens tied at a top-p cut stay is undefined there (an unstable sort); here, the lowest ids."""
    rng = np.random.default_rng(seed)
    logits = np.round(rng.normal(size=size) * 2)
    ours, theirs = dense(sampling.law(logits, EMPTY, o), size), reference(logits, [], o)
    assert np.abs(np.sort(ours) - np.sort(theirs)).max() < 1e-12
    for level in np.unique(logits[ours > 0]):
        kept = ours[logits == level] > 0
        assert (np.diff(kept.astype(int)) <= 0).all()


@pytest.mark.parametrize("o", [Sampling(1.0), Sampling(0.7, 50, 0.9, 0.02, 1.2), Sampling(1.0, top_p=0.9)])
def test_float32_rows_of_a_real_size(o: Sampling) -> None:
    rng = np.random.default_rng(1)
    logits = (rng.normal(size=49152) * 3).astype(np.float32)
    law = sampling.law(logits, np.arange(300), o)
    want = reference(logits.astype(np.float64), list(range(300)), o)
    assert np.abs(dense(law, 49152) - want).max() < 1e-6
    assert set(law.ids) == set(np.flatnonzero(want))


def test_nucleus_of_equal_weights_keeps_the_lowest_ids() -> None:
    law = sampling.law(np.zeros(20000, np.float32), EMPTY, Sampling(1.0, top_p=0.25))
    assert law.ids.tolist() == list(range(5000))
    assert sampling.law(np.zeros(20), EMPTY, Sampling(1.0, top_p=0.0)).ids.tolist() == [0]


def test_top_p_zero_leaves_the_best() -> None:
    logits = np.array([0.0, 3.0, 3.0, 1.0])
    assert sampling.law(logits, EMPTY, Sampling(1.0, top_p=0.0)).ids.tolist() == [1]


@pytest.mark.parametrize("temperature", [0.0, -0.0, 1e-45, 9e-6])
def test_cold_is_greedy(temperature: float) -> None:
    assert Sampling(temperature).greedy
    assert not Sampling(1e-5).greedy


def test_tiny_temperature_does_not_overflow() -> None:
    law = sampling.law(np.array([1e4, -1e4, 9999.0]), EMPTY, Sampling(1e-5))
    assert law.p.tolist() == [1.0, 0.0, 0.0]


def test_best_takes_the_lowest_id_and_the_penalty() -> None:
    logits = np.array([1.0, 2.0, 2.0, -1.0], np.float32)
    assert sampling.best(logits, EMPTY, Sampling()) == 1
    assert sampling.best(logits, np.array([1, 1, 99]), Sampling(repetition_penalty=1.5)) == 2
    assert logits.tolist() == [1.0, 2.0, 2.0, -1.0]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_garbage_logits(bad: float) -> None:
    logits = np.zeros(1000, np.float32)
    logits[700] = bad
    with pytest.raises(FloatingPointError, match="700"):
        sampling.best(logits, EMPTY, Sampling())
    with pytest.raises(FloatingPointError, match="700"):
        sampling.law(logits, EMPTY, Sampling(1.0))
    with pytest.raises(FloatingPointError):
        sampling.best(np.full(4, -np.inf), EMPTY, Sampling())


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
    ],
)
def test_bad_options_are_named(option: str, value: float) -> None:
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
        assert sampling.draw(law, Fixed(u)) == token  # type: ignore[arg-type]


def test_draw_has_the_law() -> None:
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(600))
    counts = np.bincount([sampling.draw(Law(np.arange(600), p), rng) for _ in range(30000)], minlength=600)
    big = p * 30000 >= 10
    chi = ((counts - p * 30000)[big] ** 2 / (p * 30000)[big]).sum()
    assert chi < 1.5 * big.sum()


def test_probability_without_and_residual() -> None:
    law = Law(np.array([2, 5, 9]), np.array([0.5, 0.3, 0.2]))
    assert [sampling.probability(law, t) for t in (2, 3, 9, 10)] == [0.5, 0.0, 0.2, 0.0]
    assert np.allclose(sampling.without(law, 5).p, [5 / 7, 0, 2 / 7])
    q = np.zeros(12)
    q[[2, 5]] = [0.1, 0.9]
    assert np.allclose(sampling.residual(law, q).p, [2 / 3, 0, 1 / 3])
    q[[2, 5, 9]] = [0.5, 0.3, 0.2]
    assert sampling.residual(law, q) is law


def test_seed_of_either_sign() -> None:
    assert sampling.generator(-1).random() == sampling.generator(2**64 - 1).random()
    assert sampling.generator(None).random() != sampling.generator(None).random()
