"""The engine with an EAGLE drafter: the target's own text whatever is drafted, and as many tokens as are known to be
right: heads fitted to a text, and one built so that it says what its target says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from spec_edge.models.contract import SpecError
from spec_edge.runtime.bundle import Bundle
from spec_edge.runtime.drafters import eagle as drafting
from spec_edge.runtime.drafters import plain, prompt_lookup
from spec_edge.runtime.drafters.options import DrafterOptions
from spec_edge.runtime.eagle_model import EagleModel
from spec_edge.runtime.eagle_rows import Level
from spec_edge.runtime.engine import Engine, Limits
from spec_edge.runtime.hybrid import compose
from spec_edge.runtime.protocols import Drafter
from spec_edge.runtime.providers.opening import on_cpu, opener
from spec_edge.runtime.providers.provider import provider
from spec_edge.runtime.sampling import Sampler, Sampling
from spec_edge.runtime.sessions.eagle import EagleSession
from spec_edge.runtime.sessions.eagle_static import StaticEagleSession
from spec_edge.runtime.sessions.ort import OrtSession
from spec_edge.runtime.sessions.static import StaticSession

PROMPT = [5, 17, 3, 40]
SHAPES: dict[str, dict[str, Any]] = {
    "tree": {},
    "chain": {"draft_tokens": 3, "confidence": 0.0},
    "sure chain": {"confidence": 0.5},
    "static": {"tree": (4, 2, 1)},
    "paths": {"paths": ((0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 1, 0))},
    "best": {"tree": (), "draft_tokens": 3},
}
SESSIONS = {"any width": EagleSession, "static": StaticEagleSession}


def drafter(bundle: Bundle, kind: str = "any width", sampling: Sampling | None = None, **told: Any) -> drafting.Eagle:
    tokens = bundle.manifest.text.tokens
    model = EagleModel(SESSIONS[kind](bundle, on_cpu(bundle, 1)), tokens)
    sampler = Sampler(sampling or Sampling(), (), tokens)
    return drafting.create(DrafterOptions(networks={"eagle": model}, sampler=sampler, **told))


def run(bundle: Bundle, drafting_: Drafter, new: int = 40, width: int = 16, sampling: Sampling | None = None) -> Engine:
    engine = Engine(OrtSession(bundle, on_cpu(bundle, 1)), drafting_, sampling, Limits(new, width=width))
    list(engine.generate(PROMPT))
    return engine


@pytest.fixture(scope="module")
def made(eagle: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A bundle of (kind of drafter, what its weights are), made once."""
    found: dict[tuple[str, str], Bundle] = {}
    config = eagle.target_config()
    tiny = eagle.checkpoint(config, eagle.target_weights(config, 3))

    def get(kind: str, weights: str) -> Bundle:
        if (kind, weights) in found:
            return found[kind, weights]
        folder: Path = tmp_path_factory.mktemp("made")
        if kind == "eagle1":
            shape = eagle.Shape(own_head=False)
            dialect = eagle.Dialect(eagle.base_config(shape, bias=False))
        else:
            shape = eagle.Shape(taps=(1, 3), drafted=60, norm_before_fc=True, norm_output=True)
            inner = {"eagle_aux_hidden_state_layer_ids": [0, 2], "norm_before_fc": True}
            more = {"architectures": ["LlamaForCausalLMEagle3"], "eagle_config": inner, "num_aux_hidden_states": 2}
            more |= {"draft_vocab_size": 60, "norm_output": True}
            dialect = eagle.Dialect(eagle.base_config(shape, **more), eagle.midlayer)
        state = eagle.random_state(shape)
        if weights == "fitted":
            text = eagle.greedy(tiny, PROMPT, 28)
            if kind == "eagle3":
                others = [i for i in range(eagle.vocab) if i not in text]
                state["ids"] = torch.tensor(sorted({*text, *others[: 60 - len(set(text))]}))
            state = eagle.fitted(shape, state, tiny, text, 5)
        if weights == "adversarial" and kind == "eagle3":
            # Sure of what is never right: a constant law over wrong tokens.
            state["lm_head.weight"] = torch.zeros_like(state["lm_head.weight"])
            state["lm_head.weight"][7] = 40 * state["norm.weight"]
        path = eagle.write_drafter(folder / "drafter", shape, state, dialect)
        found[kind, weights] = eagle.make_bundle(folder / "bundle", tiny, path)
        return found[kind, weights]

    return get


@pytest.mark.parametrize("session", SESSIONS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("kind", "weights"), [("eagle1", "random"), ("eagle3", "random"), ("eagle3", "adversarial"), ("eagle3", "fitted")]
)
def test_greedy_text_is_the_targets(made: Any, kind: str, weights: str, shape: str, session: str) -> None:
    bundle = made(kind, weights)
    want = run(bundle, plain.create(DrafterOptions()), new=30).ids
    for width in (8, 16, 32) if shape != "chain" else (2, 4, 8):
        engine = run(bundle, drafter(bundle, session, **SHAPES[shape]), new=30, width=width)
        assert engine.ids == want
        assert engine.stats.drafted > 0 or "sure" in shape


def test_trees_through_openvinos_npu_plugin(made: Any) -> None:
    """Target and drafter through the NPU plugin over a CPU, in float32."""
    bundle = made("eagle3", "fitted")
    exact = {"NPU_USE_NPUW": "YES", "NPUW_DEVICES": "CPU", "NPUW_F16IC": "NO", "INFERENCE_PRECISION_HINT": "f32"}
    open_graph = opener(bundle, provider("openvino-npu"), None, exact)
    model = EagleModel(StaticEagleSession(bundle, open_graph), bundle.manifest.text.tokens)
    drafting_ = drafting.create(DrafterOptions(networks={"eagle": model}))
    engine = Engine(StaticSession(bundle, open_graph), drafting_, None, Limits(30, width=8))
    list(engine.generate(PROMPT))
    assert engine.ids == run(bundle, plain.create(DrafterOptions()), new=30).ids
    assert engine.stats.accepted > 10


@pytest.mark.parametrize("session", SESSIONS)
@pytest.mark.parametrize("kind", ["eagle1", "eagle3"])
def test_a_fitted_head_is_right_to_its_depth(made: Any, kind: str, session: str) -> None:
    bundle = made(kind, "fitted")
    for k in (1, 3, 5):
        stats = run(bundle, drafter(bundle, session, draft_tokens=k, confidence=0.0), new=25).stats
        assert stats.acceptance_length > 0.95 * (k + 1) * 24 / (-(-24 // (k + 1)) * (k + 1))
    for width, depth in ((8, 4), (16, 5), (32, 5)):
        told = {} if width < 32 else {"tree": (), "draft_tokens": 5}
        stats = run(bundle, drafter(bundle, session, **told), new=1 + 4 * (depth + 1), width=width).stats
        assert stats.acceptance_length > 0.9 * (depth + 1)


def test_what_the_drafter_reads_matters(made: Any) -> None:
    """The same fitted head told of the wrong rows: little is right, and the text is the same."""

    class Misled(drafting.Eagle):
        def _features(self, output: Any) -> Any:
            found = super()._features(output)
            return None if found is None else -np.roll(found, 1, axis=0)

    bundle = made("eagle3", "fitted")
    good = drafter(bundle, draft_tokens=3, confidence=0.0)
    misled = Misled(good._model, good._options)
    assert run(bundle, misled, new=25).ids == run(bundle, good, new=25).ids
    lengths = [run(bundle, d, new=25).stats.acceptance_length for d in (misled, good)]
    assert lengths[0] < 2.5 < 3 < lengths[1]


def mirror(eagle: Any, folder: Path) -> Bundle:
    """A target of one layer, and an EAGLE-1 head with the same layer that reads embeddings alone.

    The target's input norm does nothing (every embedding has a mean square of 1), its final norm only scales. Token 0
    stands at the beginning of a text, where the drafter has no row: no other row sees it, as its key points away from
    every query (along the last rotary pair, which at this theta hardly turns).
    """
    config = replace(eagle.target_config(layers=1, rope_theta=1e12, heads=2, kv_heads=1, norm_eps=1e-12), tied=False)
    weights = eagle.target_weights(config, 8)
    t, h = weights.tensors, config.hidden_size
    table = t["model.embed_tokens.weight"]
    table[:, 0], table[0] = 1.0, 0.0  # column 0 is the same for all but token 0, and column 1 is token 0's
    table[:, 1], table[0, 1] = 0.0, 1.0
    rest = table[1:, 2:]
    rest *= np.sqrt((h - 1) / (rest**2).sum(-1, keepdims=True))
    table[0] *= np.sqrt(h)
    layer = "model.layers.0.self_attn"
    q, k = t[f"{layer}.q_proj.weight"], t[f"{layer}.k_proj.weight"]
    for part, rows in ((q, (7, 15, 23, 31)), (k, (7, 15))):
        part[list(rows)] = 0.0
        part[:, :2] = 0.0
    q[[7, 23], 0], k[7, 1] = 100.0, -100.0
    state = {"fc.weight": torch.cat([torch.eye(h), torch.zeros(h, h)], 1), "ids": torch.arange(config.vocab_size)}
    names = [n for n in t if n.startswith("model.layers.0.") and "input_layernorm" not in n]
    state |= {n.removeprefix("model."): torch.from_numpy(t[n]) for n in names}
    shape = eagle.Shape(own_head=False, theta=1e12)
    base = eagle.base_config(shape, bias=False, rms_norm_eps=1e-12)
    path = eagle.write_drafter(folder / "drafter", shape, state, eagle.Dialect(base))
    return eagle.make_bundle(folder / "bundle", eagle.checkpoint(config, weights), path)


@pytest.mark.parametrize("session", SESSIONS)
def test_a_head_that_is_its_target_is_always_right(eagle: Any, tmp_path: Path, session: str) -> None:
    bundle = mirror(eagle, tmp_path)
    want = run_from(bundle, plain.create(DrafterOptions()), 1)
    assert len(set(want.ids)) > 8
    for k in (1, 4, 7):
        engine = run_from(bundle, drafter(bundle, session, draft_tokens=k, confidence=0.0), 1 + 6 * (k + 1))
        assert engine.ids == want.ids[: len(engine.ids)]
        assert engine.stats.acceptance_length == k + 1
        assert engine.stats.accepted_by_position == engine.stats.drafted_by_position == (6,) * k
    for width in (8, 16, 32):
        engine = run_from(bundle, drafter(bundle, session, tree=(2, 1, 1)), 1 + 6 * 4, width)
        assert engine.stats.acceptance_length == 4


def run_from(bundle: Bundle, drafting_: Drafter, new: int, width: int = 16) -> Engine:
    engine = Engine(
        OrtSession(bundle, on_cpu(bundle, 1)), drafting_, None, Limits(max(new, 60) if new == 1 else new, width=width)
    )
    list(engine.generate([0, 9, 30, 4]))
    return engine


@pytest.mark.parametrize("session", SESSIONS)
def test_a_seed_decides_sampled_text(eagle: Any, tmp_path: Path, session: str) -> None:
    """A drawn chain where there are logits, a greedy one where there are none; a seed gives the same text twice."""
    bundle = mirror(eagle, tmp_path)
    sampling = Sampling(3.0, top_k=20, seed=4)
    told = {"draft_tokens": 3, "confidence": 0.0}
    engines = [
        Engine(
            OrtSession(bundle, on_cpu(bundle, 1)),
            drafter(bundle, session, sampling, **told),
            sampling,
            Limits(40, width=8),
        )
        for _ in range(2)
    ]
    for engine in engines:
        list(engine.generate([0, 9, 30, 4]))
    assert engines[0].ids == engines[1].ids
    assert engines[0].stats.drafted > 0


@pytest.mark.parametrize("session", SESSIONS)
@pytest.mark.parametrize("mode", ["merge", "cascade"])
def test_a_hybrid_and_a_second_text(made: Any, session: str, mode: str) -> None:
    """Other drafters' tokens reach the cache as well; a second text keeps the common prefix, or starts anew."""
    bundle = made("eagle3", "fitted")
    target = OrtSession(bundle, on_cpu(bundle, 1))
    own = drafter(bundle, session)
    engine = Engine(target, compose([prompt_lookup.create(DrafterOptions()), own], mode), None, Limits(25, width=16))
    list(engine.generate(PROMPT))
    first = list(engine.ids)
    list(engine.generate(first[:12], reuse=True))
    assert engine.ids[: len(first)] == first
    rows = own._model.rows
    assert rows.length <= len(engine.ids)
    long = Engine(target, drafter(bundle, session, draft_tokens=3, confidence=0.0), None, Limits(25, width=16))
    long.ids = first
    list(long.generate(first[:12], reuse=True))  # a drafter that has seen nothing of the prefix begins behind it
    assert long.ids[: len(first)] == first
    list(long.generate(PROMPT))
    assert long.stats.acceptance_length > 3
    list(long.generate(first[:9], reuse=True))  # this one keeps what it has seen
    assert long.stats.acceptance_length > 2.5


def test_to_the_end_of_the_context(eagle: Any, made: Any) -> None:
    bundle = made("eagle3", "random")
    for session in SESSIONS:
        want = run(bundle, plain.create(DrafterOptions()), new=None)  # type: ignore[arg-type]
        got = run(bundle, drafter(bundle, session), new=None, width=32)  # type: ignore[arg-type]
        assert got.ids == want.ids and len(got.ids) == eagle.context and got.finish_reason == "context"


def test_garbage_is_one_line(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN right after the text ends the generation; further down it only ends the draft."""
    bundle, whole = made("eagle3", "random"), EagleSession._run
    want = run(bundle, plain.create(DrafterOptions())).ids

    def broken(name: str) -> None:
        def nan(self: Any, *rest: Any) -> Level:
            level = whole(self, *rest)
            inside = len(self._scratch) > 0
            return replace(level, logprobs=level.logprobs * np.nan) if inside == (name == "expand") else level

        monkeypatch.setattr(EagleSession, "_run", nan)

    broken("expand")
    for told in ({}, {"draft_tokens": 3, "confidence": 0.0}):
        engine = run(bundle, drafter(bundle, **told))
        assert engine.ids == want and len(engine.stats.drafted_by_position) == 1
    broken("extend")
    for sampling in (Sampling(), Sampling(1.0, seed=1)):
        with pytest.raises(SpecError, match="EAGLE drafter: a log-probability is nan") as caught:
            run(bundle, drafter(bundle, sampling=sampling, draft_tokens=3), sampling=sampling)
        assert "\n" not in caught.value.message
