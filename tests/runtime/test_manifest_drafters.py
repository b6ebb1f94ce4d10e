"""Drafters in bundle.json: what does not fit is refused in one line."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spec_edge.models.contract import (
    CacheFacts,
    DrafterFact,
    FileFact,
    GraphSpec,
    Manifest,
    RopeFacts,
    Source,
    SpecError,
    TensorSpec,
)
from spec_edge.runtime import manifest as schema
from spec_edge.runtime.manifest_values import check_vocabulary

SOURCE = Source("safetensors", "heads", 9, "0" * 64)
CACHE = CacheFacts(1, 2, 16, RopeFacts((1.0,) * 8, 1.0), 128)
MEDUSA = DrafterFact("medusa", "medusa", "hidden", 8, SOURCE, heads=3)
EAGLE = DrafterFact("eagle", "eagle3", "taps", 8, SOURCE, cache=CACHE)


HIDDEN, VOCAB = 32, 266
TAPS = TensorSpec("taps", "float32", (1, "S", 2 * HIDDEN))
CACHED = tuple(TensorSpec(f"past_{kind}.0", "float32", (1, 2, "M", 16)) for kind in ("key", "value"))
TOP = tuple(TensorSpec(name, "float32", (1, 3, 4)) for name in ("top_ids", "top_logprobs"))
OWN = TensorSpec("hidden", "float32", (1, "S", HIDDEN))
FEATURES = TensorSpec("features", "float32", (1, "S", HIDDEN))
TAPPED = replace(FEATURES, shape=(1, 16, 2 * HIDDEN))
SIDES = {
    "heads": ((OWN,), TOP),
    "step": ((FEATURES, *CACHED), (*TOP, OWN, TensorSpec("logits", "float32", (1, "S", VOCAB)))),
    "fuse": ((TAPS,), (FEATURES,)),
    "catchup": ((TAPPED, *CACHED), (*TOP, OWN)),
}


def graph(network: str, role: str) -> GraphSpec:
    file = FileFact(f"{network}-{role}.onnx", 1, "1" * 64)
    return GraphSpec(f"{network}-{role}", network, role, "fused", 1, None, *SIDES.get(role, ((), ())), file)


@pytest.fixture
def good(tiny: Path) -> Manifest:
    """The tiny bundle's manifest with a Medusa and an EAGLE drafter, its target with taps."""
    manifest = schema.read((tiny / "bundle.json").read_bytes())
    taps = [replace(TAPS, shape=(1, g.width or "S", 2 * HIDDEN)) for g in manifest.graphs]
    targets = [replace(g, outputs=(*g.outputs, t)) for g, t in zip(manifest.graphs, taps, strict=True)]
    own = [graph("medusa", "heads"), *(graph("eagle", role) for role in ("catchup", "step", "fuse"))]
    model = replace(manifest.model, taps=(0, 1))
    return replace(manifest, model=model, graphs=(*targets, *own), drafters=(MEDUSA, EAGLE))


def test_drafters_survive_the_round_trip(good: Manifest) -> None:
    named = replace(EAGLE, vocabulary=FileFact("eagle-vocabulary.bin", 4 * VOCAB, "2" * 64))
    known = replace(MEDUSA, accuracy=((0.5, 0.1), (0.3, 0.1), (0.2, 0.05)))
    manifest = replace(good, drafters=(known, named))
    assert schema.read(schema.write(manifest)) == manifest
    assert "eagle-vocabulary.bin" in [f.file for f in schema.files(manifest)]


def medusa(**changes: Any) -> Callable[[Manifest], Manifest]:
    return lambda m: replace(m, drafters=(replace(MEDUSA, **changes), EAGLE))


def eagle(**changes: Any) -> Callable[[Manifest], Manifest]:
    return lambda m: replace(m, drafters=(MEDUSA, replace(EAGLE, **changes)))


def with_graph(spec: GraphSpec) -> Callable[[Manifest], Manifest]:
    return lambda m: replace(m, graphs=(*m.graphs, spec))


BAD: list[tuple[Callable[[Manifest], Manifest], str]] = [
    (medusa(kind="hydra"), "drafters[0].kind 'hydra' is not one of medusa, eagle, eagle3"),
    (medusa(name="hydra"), "drafters[0].name 'hydra' is not one of medusa"),
    (medusa(reads="logits"), "drafters[0].reads 'logits' is not one of hidden, taps"),
    (medusa(cache=CACHE), "drafters[0].cache is given for kind medusa"),
    (eagle(cache=None), "drafters[1].cache is missing for kind eagle3"),
    (medusa(heads=0), "drafters[0].heads 0 is not within 1..64"),
    (medusa(heads=65), "drafters[0].heads 65 is not within 1..64"),
    (medusa(bytes=10**9), "drafters[0].bytes 1000000000 is more than the weights file's 64"),
    (medusa(accuracy=((1.5,), (0.1,), (0.1,))), "drafters[0].accuracy holds a rate outside 0..1"),
    (medusa(accuracy=((0.5,),)), "drafters[0].accuracy has 1 heads, the drafter has 3"),
    (eagle(cache=replace(CACHE, layers=0)), "drafters[1].cache.layers 0 is not within"),
    (eagle(cache=replace(CACHE, head_dim=18)), "drafters[1].cache.rope.inv_freq has 8 values for a head_dim of 18"),
    (eagle(cache=replace(CACHE, scratch=1 << 30)), "drafters[1].cache.scratch"),
    (eagle(vocabulary=FileFact("v.bin", 10**7, "2" * 64)), "drafters[1].vocabulary has 10000000 bytes"),
    (eagle(vocabulary=FileFact("a/v.bin", 8, "2" * 64)), "file name 'a/v.bin' is not allowed"),
    (lambda m: replace(m, drafters=(MEDUSA, MEDUSA)), "drafters two are called 'medusa'"),
    (lambda m: replace(m, drafters=(EAGLE,)), "network 'medusa' is not one of target, cache, eagle"),
    (lambda m: replace(m, model=replace(m.model, taps=())), "drafters[1].reads taps, which the target's graphs do not"),
    (lambda m: replace(m, graphs=m.graphs[:-3]), "drafter eagle has no graph"),
    (with_graph(graph("medusa", "verify")), "role 'verify' is not one of heads"),
    (with_graph(graph("eagle", "heads")), "role 'heads' is not one of step, fuse, prefill, catchup, expand"),
    (with_graph(graph("target", "heads")), "role 'heads' is not one of step, verify, prefill"),
    (with_graph(graph("hydra", "heads")), "network 'hydra' is not one of target, cache, medusa, eagle"),
]


def each(role: str, change: Callable[[GraphSpec], GraphSpec], network: str = "eagle") -> Callable[[Manifest], Manifest]:
    """Every graph of one role changed."""
    mine = (network, role)
    return lambda m: replace(m, graphs=tuple(change(g) if (g.network, g.role) == mine else g for g in m.graphs))


def facts(**changes: Any) -> Callable[[Manifest], Manifest]:
    return lambda m: replace(m, model=replace(m.model, **changes))


ENDLESS = RopeFacts((1e9,) * 8, 1.0)
DISAGREE: list[tuple[Callable[[Manifest], Manifest], str]] = [
    (eagle(cache=replace(CACHE, layers=2)), "drafters[1].cache.layers 2 are not the 1 of graph eagle-catchup"),
    (eagle(cache=replace(CACHE, kv_heads=4)), "drafters[1].cache.kv_heads 4 is not the 2 of graph eagle-catchup"),
    (
        eagle(cache=replace(CACHE, head_dim=8, rope=RopeFacts((1.0,) * 4, 1.0))),
        "drafters[1].cache.head_dim 8 is not the 16 of graph eagle-catchup",
    ),
    (eagle(cache=replace(CACHE, scratch=0)), "drafters[1].cache.scratch 0 is not within 1..4096"),
    (eagle(cache=replace(CACHE, scratch=4097)), "drafters[1].cache.scratch 4097 is not within 1..4096"),
    (eagle(cache=replace(CACHE, rope=ENDLESS)), "drafters[1].cache.rope.inv_freq has a value outside 0..10000"),
    (eagle(cache=replace(CACHE, rope=RopeFacts((1.0,) * 8, 0.0))), "drafters[1].cache.rope.scale 0 is not above 0"),
    (eagle(reads="hidden"), "drafters[1].reads hidden, but kind eagle3 reads taps"),
    (eagle(kind="eagle", reads="taps"), "drafters[1].reads taps, but kind eagle reads hidden"),
    (eagle(kind="eagle", reads="hidden"), "drafters[1].kind eagle has no graph of role 'fuse'"),
    (lambda m: replace(m, graphs=m.graphs[:-1]), "drafters[1].kind eagle3 needs a graph of role 'fuse'"),
    (medusa(reads="taps"), "drafters[0].reads taps, but kind medusa reads hidden"),
    (medusa(heads=2), "drafters[0].heads 2 do not fit the output 'top_ids' of graph medusa-heads"),
    (
        each("heads", lambda g: replace(g, inputs=(FEATURES,)), "medusa"),
        "drafters[0] needs 32 numbers a row in 'hidden' of graph medusa-heads, which takes None",
    ),
    (
        each("fuse", lambda g: replace(g, inputs=(replace(TAPS, shape=(1, "S", HIDDEN)),))),
        "drafters[1] needs 64 numbers a row in 'taps' of graph eagle-fuse, which takes 32",
    ),
    (
        each("step", lambda g: replace(g, inputs=(TAPPED, *CACHED))),
        "drafters[1] needs 32 numbers a row in 'features' of graph eagle-step, which takes 64",
    ),
    (
        eagle(vocabulary=FileFact("v.bin", 8, "2" * 64)),
        f"drafters[1].vocabulary of 2 ids is not the {VOCAB} of graph eagle-step",
    ),
    (each("step", lambda g: replace(g, outputs=g.outputs[:-1])), "needs the output 'logits' of graph eagle-step"),
    (each("step", lambda g: replace(g, borrows=("x",))), "borrows names 'x', which no graph of this network borrows"),
    (
        each("prefill", lambda g: replace(g, borrows=("lm_head",)), "target"),
        "borrows names 'lm_head', which no graph of this network borrows",
    ),
    (each("prefill", lambda g: replace(g, width=8), "target"), "width 8 and past 64 are not those of graph prefill"),
    (each("verify", lambda g: replace(g, past=192), "target"), "and past 192 are not those of graph verify"),
    (each("verify", lambda g: replace(g, inputs=g.inputs[1:]), "target"), "needs the input 'input_ids' of graph"),
    (each("verify", lambda g: replace(g, outputs=(*g.outputs, FEATURES)), "target"), "'features' of graph verify"),
    (facts(taps=(0, 1, 2)), "model.taps [0, 1, 2] do not fit the output 'taps' of graph step"),
    (facts(vocab_size=VOCAB + 1), f"model.vocab_size {VOCAB + 1} is not the {VOCAB} of graph step"),
    (eagle(heads=2), "drafters[1].heads 2 is not 1, which kind eagle3 has"),
    (facts(layers=3), "model.layers 3 are not the 2 of graph step"),
    (facts(kv_heads=1), "model.kv_heads 1 is not the 2 of graph step"),
    (facts(rope=ENDLESS), "model.rope.inv_freq has a value outside 0..10000"),
]


@pytest.mark.parametrize(("change", "message"), [*BAD, *DISAGREE], ids=[m for _, m in [*BAD, *DISAGREE]])
def test_what_does_not_fit(good: Manifest, change: Callable[[Manifest], Manifest], message: str) -> None:
    schema.write(good)
    with pytest.raises(SpecError) as caught:
        schema.write(change(good))
    assert message in caught.value.message and "\n" not in caught.value.message
    assert "export the model again" in caught.value.message


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ((1, 1), "no list of different"),
        ((), "no list of different"),
        ((-1,), "outside 0.."),
        ((1 << 20,), "outside 0.."),
    ],
)
def test_a_vocabulary_names_the_targets_ids(good: Manifest, ids: tuple[int, ...], message: str) -> None:
    check_vocabulary(good, EAGLE, struct.pack("<3i", 3, 0, 7))
    with pytest.raises(SpecError, match=message):
        check_vocabulary(good, EAGLE, struct.pack(f"<{len(ids)}i", *ids))
    with pytest.raises(SpecError, match="no list of different"):
        check_vocabulary(good, EAGLE, b"12345")
