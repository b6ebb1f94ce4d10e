"""A network cut into parts: the same numbers and texts, every part there, and nothing cut that need not be."""

from __future__ import annotations

import dataclasses
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spec_edge.export.options import build_options
from spec_edge.export.parts import parts_needed
from spec_edge.export.plan import plan_bundle
from spec_edge.models.contract import GraphSpec, SpecError, TensorSpec, layers_of, taps_of
from spec_edge.models.family import tensor_shapes
from spec_edge.models.open import open_config
from spec_edge.runtime import manifest as schema
from spec_edge.runtime.bundle import Bundle, open_bundle
from spec_edge.runtime.draft import Draft
from spec_edge.runtime.drafters import eagle, plain
from spec_edge.runtime.drafters.options import DrafterOptions
from spec_edge.runtime.eagle_model import EagleModel
from spec_edge.runtime.engine import Engine, Limits
from spec_edge.runtime.providers.opening import on_cpu
from spec_edge.runtime.sampling import Sampler, Sampling
from spec_edge.runtime.sessions.eagle_static import StaticEagleSession
from spec_edge.runtime.sessions.static import StaticSession
from spec_edge.targets import snapdragon_x
from spec_edge.targets.target import target

TREE = Draft((5, 6, 7, 8, 9), (-1, -1, 0, 1, 3), (True,) * 5)
ROLES = ("verify", "prefill")


def eagle_tensors() -> dict[str, Any]:
    """Random weights of an EAGLE-3 drafter that reads the inputs of layers 0 and 1."""
    rng = np.random.default_rng(2)
    shapes = {"q": (64, 128), "k": (32, 128), "v": (32, 128), "o": (64, 64)}
    named = {f"midlayer.self_attn.{n}_proj.weight": shape for n, shape in shapes.items()}
    named |= {f"midlayer.mlp.{n}_proj.weight": (128, 64) for n in ("gate", "up")}
    named |= {"midlayer.mlp.down_proj.weight": (64, 128), "fc.weight": (64, 128), "lm_head.weight": (100, 64)}
    norms = ("midlayer.hidden_norm", "midlayer.input_layernorm", "midlayer.post_attention_layernorm", "norm")
    made = {name: rng.normal(size=shape).astype(np.float32) / 8 for name, shape in named.items()}
    return made | {f"{n}.weight": np.ones(64, np.float32) for n in norms} | {"d2t": np.zeros(100, np.int64)}


@pytest.fixture(scope="module")
def bundles(bench: Any, tiny_target: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Bundle]:
    """The same model whole and in two parts, with a drafter that taps both of its layers."""
    eagle3 = bench.drafter(
        tmp_path_factory.mktemp("eagle") / "e", eagle_tensors(), bench.eagle_config, "model.safetensors"
    )
    found = []
    for name, more in (("whole", ()), ("cut", ("--parts", "2"))):
        folder = tmp_path_factory.mktemp("parts") / name
        done = bench.export(tiny_target, "-o", folder, "--precision", "fp32", "--eagle", eagle3, *more)
        assert done.exit_code == 0, done.output
        found.append(open_bundle(folder))
    return found


def session(bundle: Bundle) -> StaticSession:
    made = StaticSession(bundle, on_cpu(bundle, 1))
    made.wants = frozenset({"hidden", "taps"})
    return made


def test_both_give_the_same_numbers(bundles: list[Bundle]) -> None:
    whole, cut = map(session, bundles)
    outputs = []
    for made in (whole, cut):
        run = [made.prefill([int(i) for i in np.random.default_rng(1).integers(0, 200, 150)])]
        for kept in ((0, 2, 4, 5), (0, 1), (0,)):
            run.append(made.verify(3, TREE))
            made.commit(kept)
        outputs.append(run)
    for one, other in zip(*outputs, strict=True):
        for name in ("logits", "hidden", "taps"):
            expected, found = getattr(one, name), getattr(other, name)
            assert found.shape == expected.shape
            np.testing.assert_allclose(found, expected, atol=1e-5)
    assert len(cut.assignment) == 1 and len(bundles[1].graphs("target", "verify")) == 2 * len(
        bundles[0].graphs("target", "verify")
    )


def test_each_part_has_its_own_layers(bundles: list[Bundle]) -> None:
    first, second, *_ = bundles[1].graphs("target", "verify")
    assert (first.part, second.part, second.parts) == (0, 1, 2)
    assert first.name.endswith("-1of2") and second.name == first.name.replace("-1of2", "-2of2")
    inputs, outputs = ([{t.name for t in side} for side in sides] for sides in _sides(first, second))
    assert "input_ids" in inputs[0] and "residual.1" in outputs[0] and "logits" not in outputs[0]
    assert "residual.1" in inputs[1] and "input_ids" not in inputs[1] and {"logits", "hidden"} <= outputs[1]
    assert {"past_key.0", "past_value.0"} <= inputs[0] and "past_key.1" not in inputs[0]
    assert {"new_key.1", "new_value.1"} <= outputs[1] and "new_key.0" not in outputs[1]


def _sides(*graphs: GraphSpec) -> Any:
    return [g.inputs for g in graphs], [g.outputs for g in graphs]


def drafter(bundle: Bundle, method: str) -> Any:
    if method == "plain":
        return plain.create(DrafterOptions())
    tokens = bundle.manifest.text.tokens
    model = EagleModel(StaticEagleSession(bundle, on_cpu(bundle, 1)), tokens)
    return eagle.create(DrafterOptions(networks={"eagle": model}, sampler=Sampler(Sampling(), (), tokens)))


@pytest.mark.parametrize("method", ["plain", "eagle"])
def test_the_text_is_the_same(bundles: list[Bundle], method: str) -> None:
    runs = []
    for bundle in bundles:
        engine = Engine(session(bundle), drafter(bundle, method), limits=Limits(40))
        runs.append([token for chunk in engine.generate([5, 17, 3, 40]) for token in chunk])
    assert len(runs[0]) == 40 and runs[0] == runs[1]


def test_layers_and_taps_of_parts() -> None:
    assert [list(layers_of(5, i, 2)) for i in range(2)] == [[0, 1], [2, 3, 4]]
    assert [list(layers_of(3, i, 3)) for i in range(3)] == [[0], [1], [2]]
    assert [taps_of((5, 2, 0), 5, i, 2) for i in range(2)] == [(0,), (5, 2)]
    assert taps_of((5, 2, 0), 5, 0, 1) == (5, 2, 0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda g: [g[0], *g[2:]], "hold 1 of the 2 parts"),
        (lambda g: [g[0], replace(g[1], part=0), *g[2:]], "needs the input 'input_ids'"),
        (lambda g: [g[0], replace(g[1], part=2), *g[2:]], "2 is none of 2 parts"),
        (lambda g: [g[0], replace(g[1], parts=3), *g[2:]], "are not the 1 of graph"),
        (lambda g: [replace(g[0], parts=1), *g[1:]], "are not the 1 of graph"),
        (lambda g: [g[0], replace(g[1], inputs=_narrow(g[1])), *g[2:]], "is not what goes in and out of graph"),
        (lambda g: [replace(g[0], inputs=_deeper(g[0])), *g[1:]], "is not that of graph"),
    ],
)
def test_a_manifest_with_other_parts_is_refused(bundles: list[Bundle], change: Any, said: str) -> None:
    manifest = bundles[1].manifest
    cut = sorted(
        (g for g in manifest.graphs if g.parts > 1), key=lambda g: (g.role != "verify", g.past, g.width, g.part)
    )
    others = [g for g in manifest.graphs if g.parts == 1]
    with pytest.raises(SpecError, match=said):
        schema.write(dataclasses.replace(manifest, graphs=(*others, *change(cut))))


def _narrow(graph: GraphSpec) -> Any:
    return tuple(replace(t, shape=(*t.shape[:2], 32)) if t.name.startswith("residual") else t for t in graph.inputs)


def _deeper(graph: GraphSpec) -> Any:
    return tuple(replace(t, shape=(*t.shape, 3)) if t.name == "input_ids" else t for t in graph.inputs)


def test_a_whole_graph_beside_a_part_is_refused(bundles: list[Bundle]) -> None:
    whole, cut = (bundle.manifest for bundle in bundles)
    one = next(g for g in whole.graphs if g.role == "verify")
    part = next(g for g in cut.graphs if g.name == f"{one.name}-2of2")
    with pytest.raises(SpecError, match=r"hold 2 of the 1 parts|hold 1 of the 2 parts|hold 2 of the 2 parts"):
        schema.write(dataclasses.replace(whole, graphs=(*whole.graphs, part)))


def test_taps_that_no_layer_gives_are_refused(bundles: list[Bundle]) -> None:
    manifest = bundles[0].manifest
    model, drafters = replace(manifest.model, taps=()), ()
    for shape in ((), (0,), (1, 8, 0)):
        graphs = tuple(
            replace(g, outputs=(*(t for t in g.outputs if t.name != "taps"), TensorSpec("taps", "float32", shape)))
            for g in manifest.graphs
            if g.network == "target"
        )
        with pytest.raises(SpecError, match=r"do not fit the output 'taps'|shape|out of range"):
            schema.write(dataclasses.replace(manifest, model=model, drafters=drafters, graphs=graphs))


def test_only_static_graphs_of_the_target_have_parts(bundles: list[Bundle]) -> None:
    manifest = bundles[1].manifest
    step, *others = sorted(manifest.graphs, key=lambda g: g.role != "step")
    with pytest.raises(SpecError, match="only the target's graphs of fixed width are cut"):
        schema.write(dataclasses.replace(manifest, graphs=(replace(step, parts=2), *others)))


def test_bad_calls(bench: Any, tiny_target: Path, tmp_path: Path) -> None:
    said = bench.refused(tiny_target, "-o", tmp_path / "b", "--parts", "3", code=2)
    assert "--parts 3 is more than the 2 layers of the model" in said
    assert "0 is not in the range" in bench.refused(tiny_target, "-o", tmp_path / "b", "--parts", "0", code=2)
    assert not (tmp_path / "b").exists()


def test_no_part_is_larger_than_it_may_be(tiny_target: Path) -> None:
    """Llama 3.2 3B in float16: the embedding and the output layer are a fifth of the first and the last part."""
    config = replace(
        open_config(tiny_target)[1],
        vocab_size=128256,
        hidden_size=3072,
        intermediate_size=8192,
        layers=28,
        heads=24,
        kv_heads=8,
        head_dim=128,
        tied=True,
    )
    most = target("snapdragon-x").most_weights
    assert most == 2_000_000_000 and target("cpu").most_weights is None
    weights = 2 * sum(int(np.prod(shape)) for shape in tensor_shapes(config).values())
    table, layer = (
        2 * 128256 * 3072,
        2
        * sum(
            int(np.prod(shape)) for name, shape in tensor_shapes(config).items() if name.startswith("model.layers.0.")
        ),
    )
    parts = parts_needed(config, weights, most)
    assert parts == 5
    for count, fits in ((parts, True), (parts - 1, False)):
        sizes = [len(layers_of(28, i, count)) * layer + table * (i in (0, count - 1)) for i in range(count)]
        assert (max(sizes) <= most) == fits
    assert parts_needed(config, most, most) == parts_needed(config, 10**12, None) == 1
    assert parts_needed(config, weights, 1) == 28


def test_a_target_cuts_what_its_memory_does_not_hold(tiny_target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def planned() -> set[str]:
        options = build_options(str(tiny_target), Path("out"), "fp16", target_name="snapdragon-x", context=128)
        return {file.file for file in plan_bundle(options).files if file.file.startswith("verify")}

    assert planned() == {f"verify-portable-s{s}-p128.onnx" for s in (1, 8)}
    monkeypatch.setattr(snapdragon_x, "TARGET", replace(snapdragon_x.TARGET, most_weights=150_000))
    assert planned() == {f"verify-portable-s{s}-p128-{i}of2.onnx" for s in (1, 8) for i in (1, 2)}


def test_a_bundle_of_before_has_whole_graphs(bundles: list[Bundle], tmp_path: Path) -> None:
    """`part` and `parts` are new: a bundle.json without them is read as before."""
    shutil.copytree(bundles[0].folder, tmp_path / "old")
    path = tmp_path / "old" / "bundle.json"
    tree = json.loads(path.read_text("utf-8"))
    for graph in tree["graphs"]:
        assert (graph.pop("part"), graph.pop("parts")) == (0, 1)
    path.write_text(json.dumps(tree), "utf-8")
    assert open_bundle(tmp_path / "old").manifest == bundles[0].manifest
