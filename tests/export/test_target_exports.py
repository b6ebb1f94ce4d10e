"""Exports for every target: all graphs keep to its rules; what an NPU bundle holds; the bundle beside it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from spec_edge.export.options import build_options
from spec_edge.export.plan import plan_bundle
from spec_edge.models.contract import BadUsage, SpecError
from spec_edge.models.forms import buckets, forms
from spec_edge.models.lowerings.rounding import rounded
from spec_edge.models.lowerings.spelling import respelled
from spec_edge.models.planned import plannable
from spec_edge.runtime.bundle import open_bundle, sha256
from spec_edge.runtime.draft import Draft
from spec_edge.runtime.fallback import fallback
from spec_edge.runtime.providers.opening import on_cpu
from spec_edge.runtime.sessions.portable import PortableSession
from spec_edge.runtime.sessions.resident import ResidentSession
from spec_edge.targets.operators import AMD_BF16, PORTABLE
from spec_edge.targets.target import target, targets

OFFERED = [t for t in targets() if not t.refuses]
MEDUSA = {"medusa_num_heads": 3, "medusa_num_layers": 1}


@pytest.fixture(scope="module")
def drafters(bench: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Configurations of drafters: a plan needs no more."""
    folder = tmp_path_factory.mktemp("drafters")
    found = {}
    for name, config in (("medusa", MEDUSA), ("eagle", bench.eagle_config)):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config), "utf-8")
        found[name] = folder / name
    return found


@pytest.mark.parametrize("profile", OFFERED, ids=lambda t: t.name)
def test_every_graph_keeps_to_the_rules(profile: Any, tiny_target: Path, drafters: dict[str, Path]) -> None:
    """Target, Medusa and EAGLE graphs in every precision whose sizes are known; a plan checks what an export would."""
    for precision in (p for p in profile.precisions if p in plannable()):
        options = build_options(
            str(tiny_target), Path("out"), precision, target_name=profile.name, drafters=drafters, context=256
        )
        plan = plan_bundle(options)
        networks = {file.network for file in plan.files}
        assert {"target", "medusa", "eagle"} <= networks
        verify = [file.file for file in plan.files if file.file.startswith("verify-")]
        assert verify == [f"verify-portable-s{s}-p256.onnx" for s in profile.widths]


def test_an_npu_bundle(bench: Any, tiny_target: Path, heads: Path, tmp_path: Path) -> None:
    """Static float16 graphs for the NPU, one any-width float32 graph for the rest of its chain, the same weights."""
    done = bench.export(
        tiny_target, "-o", tmp_path / "b", "--target", "meteor_lake", "--precision", "fp16", "--medusa", heads
    )
    assert done.exit_code == 0, done.output
    manifest = open_bundle(tmp_path / "b").manifest
    assert (manifest.target, manifest.precision, manifest.model.context) == ("meteor-lake", "fp16", 256)
    graphs = {(g.role, g.width): g for g in manifest.graphs if g.network == "target"}
    assert set(graphs) == {("step", None), ("verify", 1), ("verify", 8), ("prefill", 128)}
    assert {g.lowering for g in manifest.graphs} == {"portable"}
    dtypes = {role: g.outputs[0].dtype for (role, _), g in graphs.items()}
    assert dtypes == {"step": "float32", "verify": "float16", "prefill": "float16"}


def test_ryzen_ai_writes_every_node_in_amds_operators(
    bench: Any, tiny_target: Path, heads: Path, tmp_path: Path
) -> None:
    """Export itself compares the respelled graphs with the plain ones; here, their operators."""
    done = bench.export(tiny_target, "-o", tmp_path / "b", "--target", "ryzen-ai", "--medusa", heads)
    assert done.exit_code == 0, done.output
    bundle = open_bundle(tmp_path / "b")
    static = [g for g in bundle.manifest.graphs if g.width is not None]
    assert {g.network for g in static} == {"target", "medusa"}
    assert not list((tmp_path / "b").glob("computed-*")) and bundle.manifest.parity is not None
    assert 0 < bundle.manifest.quality.kl < 0.02  # bfloat16's rounding is in it; the float32 graph's would be 1e-9
    for graph in static:
        model = onnx.load(str(bundle.path(graph.file)), load_external_data=False)
        kinds = {(node.domain, node.op_type) for node in model.graph.node}
        assert kinds <= {("", name) for name in AMD_BF16}, graph.name
        assert ("", "Exp") in kinds and model.opset_import[0].version == 17


# Refusals


def test_refusals(bench: Any, tiny_target: Path, tmp_path: Path) -> None:
    out = (tiny_target, "-o", tmp_path / "out")
    assert "AMD supports neither language models" in bench.refused(*out, "--target", "ryzen-ai-xdna1")
    said = bench.refused(*out, "--target", "meteor-lake", "--widths", "4,8", code=2)
    assert "--widths 4,8 makes 3 graphs and a prefill, and target meteor-lake takes 3 at most" in said
    said = bench.refused(*out, "--target", "meteor-lake", "--widths", "5", code=2)
    assert said == "Error: --widths 5: target meteor-lake takes 1, 4, 8, 16, 32, not 5"
    said = bench.refused(*out, "--target", "ryzen-ai", "--precision", "int8", "--context", "128")
    assert "--precision int8 is none that target ryzen-ai offers (fp32" in said
    assert "Did you mean 'meteor-lake'" in bench.refused(*out, "--target", "meteor", code=2)
    assert "is the --target itself" in bench.refused(*out, "--with-fallback", "cpu", code=2)
    assert "AMD supports neither" in bench.refused(*out, "--with-fallback", "ryzen-ai-xdna1")
    assert list(tmp_path.iterdir()) == []


def test_options_say_no_before_anything_is_read() -> None:
    with pytest.raises(SpecError, match="AMD supports neither"):
        build_options("none", Path("o"), target_name="ryzen-ai-xdna1")
    with pytest.raises(BadUsage, match=r"unknown precision 'int3'. Known: auto, .*fp16"):
        build_options("none", Path("o"), "int3")


# A bundle beside


@pytest.fixture(scope="module")
def pair(bench: Any, tiny_target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    args = ("--target", "meteor-lake", "--precision", "fp16", "--with-fallback", "cpu", "--json")
    done = bench.export(tiny_target, "-o", folder / "b", *args)
    assert done.exit_code == 0, done.output
    summary = json.loads(done.stdout)
    assert (summary["target"], summary["fallback"]["target"]) == ("meteor-lake", "cpu")
    assert sorted(p.name for p in folder.iterdir()) == ["b", "b-fallback"]
    return folder


def test_the_fallback_is_recorded(pair: Path) -> None:
    bundle = open_bundle(pair / "b")
    other = fallback(bundle)
    fact = bundle.manifest.fallback
    assert other is not None and fact is not None
    assert (fact.folder, fact.target, fact.precision) == ("b-fallback", "cpu", other.manifest.precision)
    assert other.digest == fact.sha256 and other.manifest.model.context == bundle.manifest.model.context
    assert any(g.lowering == "fused" for g in other.manifest.graphs)
    assert fallback(other) is None


def test_a_fallback_with_another_vocabulary_is_refused(pair: Path, tmp_path: Path) -> None:
    """Its ids would be decoded with this bundle's tokenizer."""
    for name in ("b", "b-fallback"):
        shutil.copytree(pair / name, tmp_path / name)
    tokenizer, manifest = tmp_path / "b-fallback" / "tokenizer.json", tmp_path / "b-fallback" / "bundle.json"
    tokenizer.write_bytes(tokenizer.read_bytes() + b" ")
    facts = json.loads(manifest.read_text("utf-8"))
    facts["text"]["tokenizer"] |= {"bytes": tokenizer.stat().st_size, "sha256": sha256(tokenizer)}
    manifest.write_text(json.dumps(facts), "utf-8")
    own = tmp_path / "b" / "bundle.json"
    named = json.loads(own.read_text("utf-8"))
    named["fallback"]["sha256"] = sha256(manifest)
    own.write_text(json.dumps(named), "utf-8")
    with pytest.raises(SpecError, match="has another vocabulary than this bundle"):
        fallback(open_bundle(tmp_path / "b"))


@pytest.mark.parametrize(("what", "said"), [("target", "openvino-cpu"), ("precision", "fp16")])
def test_a_fallback_that_is_not_what_is_recorded_is_refused(pair: Path, tmp_path: Path, what: str, said: str) -> None:
    for name in ("b", "b-fallback"):
        shutil.copytree(pair / name, tmp_path / name)
    recorded = tmp_path / "b" / "bundle.json"
    named = json.loads(recorded.read_text("utf-8"))
    assert named["fallback"][what] != said
    named["fallback"][what] = said
    recorded.write_text(json.dumps(named), encoding="utf-8")
    with pytest.raises(SpecError, match="not what this bundle records"):
        fallback(open_bundle(tmp_path / "b"))


def test_a_fallback_that_was_changed_or_lost_is_refused(pair: Path) -> None:
    manifest = pair / "b-fallback" / "bundle.json"
    text = manifest.read_bytes()
    try:
        manifest.write_bytes(text + b"\n")
        with pytest.raises(SpecError, match="is not the fallback that was exported with this bundle"):
            fallback(open_bundle(pair / "b"))
        manifest.unlink()
        with pytest.raises(SpecError, match=r"is not at .*b-fallback; put it back"):
            fallback(open_bundle(pair / "b"))
    finally:
        manifest.write_bytes(text)


# Other spellings


def one(
    kind: str, shape: tuple[int, ...], opset: int = 17, held: Any = (), outputs: Any = None, **attributes: Any
) -> Any:
    inputs = ["x", *(t.name for t in held)]
    outputs = outputs or [("y", TensorProto.FLOAT)]
    node = helper.make_node(kind, inputs, [name for name, _ in outputs], f"/{kind}", **attributes)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, dtype, None) for name, dtype in outputs],
        list(held),
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def run(model: onnx.ModelProto, x: Any) -> list[Any]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, {"x": x}))


def ints(name: str, *values: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(values, np.int64), name)


TOP = [("values", TensorProto.FLOAT), ("places", TensorProto.INT64)]
SPELLINGS = [
    ("Softmax", one("Softmax", (2, 3, 40), axis=-1), AMD_BF16),
    ("LogSoftmax", one("LogSoftmax", (3, 40), axis=-1), AMD_BF16),
    ("TopK", one("TopK", (3, 40), held=[ints("k", 5)], outputs=TOP), AMD_BF16),
    ("TopK", one("TopK", (3, 40), held=[ints("k", 5)], outputs=TOP, axis=1), AMD_BF16),
]


@pytest.mark.parametrize(("kind", "model", "kept"), SPELLINGS, ids=[f"{i}-{s[0]}" for i, s in enumerate(SPELLINGS)])
def test_a_spelling_says_the_same(kind: str, model: onnx.ModelProto, kept: frozenset[str]) -> None:
    """Blocked scores and equal values included; the order of equal ones too."""
    spelled = respelled("elementary", model, kept)
    kinds = {node.op_type for node in spelled.graph.node}
    assert kind not in kinds and kinds <= kept
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(0).normal(size=shape).round(1).astype(np.float32)
    x[..., 7:30] = -1e4 if "Soft" in kind else x[..., 7:30]
    for ours, theirs in zip(run(spelled, x), run(model, x), strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_what_may_stay_stays() -> None:
    model = one("Softmax", (2, 8), axis=-1)
    assert respelled("elementary", model, PORTABLE).graph.node == model.graph.node


@pytest.mark.parametrize(
    "model",
    [
        one("Softmax", (2, 8), axis=0),
        one("TopK", (4, 8), held=[ints("k", 2)], outputs=TOP, axis=0),
    ],
    ids=lambda m: m.graph.node[0].op_type,
)
def test_a_form_without_a_recipe_is_an_error(model: onnx.ModelProto) -> None:
    with pytest.raises(SpecError, match="no spelling of"):
        respelled("elementary", model, frozenset())


def test_rounding_rounds_every_value() -> None:
    """x + x W of bfloat16 numbers: inputs, weights, product and sum are rounded to nearest even, moves are not."""
    w = np.random.default_rng(1).normal(size=(4, 4)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"], "/MatMul"),
        helper.make_node("Transpose", ["p"], ["t"], "/Transpose", perm=[1, 0]),
        helper.make_node("Add", ["x", "t"], ["y"], "/Add"),
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 4]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], [numpy_helper.from_array(w, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    x = np.random.default_rng(2).normal(size=(4, 4)).astype(np.float32)

    def narrow(a: Any) -> Any:
        bits = np.ascontiguousarray(a, np.float32).view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).view(np.float32)

    want = narrow(narrow(x) + narrow((narrow(x) @ narrow(w)).T))
    (found,) = run(rounded(model, "bfloat16"), x)
    np.testing.assert_array_equal(found, want)
    assert np.abs(found - run(model, x)[0]).max() > 1e-4


def test_auto_passes_over_what_does_not_fit(
    bench: Any, tiny_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheme that cannot store matrices of these shapes: the next is taken, and the reason is said."""
    from spec_edge.models.schemes import int8_channel
    from spec_edge.targets import meteor_lake

    def refuse(name: str, shape: tuple[int, ...]) -> Any:
        raise SpecError(f"{name} has {shape[1]} inputs")

    monkeypatch.setattr(int8_channel, "SCHEME", replace(int8_channel.SCHEME, plan=refuse))
    first = replace(meteor_lake.TARGET, precisions=("int8-channel", "fp16"), half=("fp16",))
    monkeypatch.setattr(meteor_lake, "TARGET", first)
    done = bench.export(tiny_target, "-o", tmp_path / "b", "--target", "meteor-lake", "--json")
    assert done.exit_code == 0, done.output
    summary = json.loads(done.stdout)
    assert summary["precision"] == "fp16"
    assert summary["rejected"] == [{"precision": "int8-channel", "reason": "model.embed_tokens.weight has 64 inputs"}]


@pytest.mark.parametrize(
    ("context", "want"), [(300, (320,)), (600, (512, 640)), (1152, (512, 1152)), (4096, (1152, 4096))]
)
def test_an_npu_bundle_has_the_two_largest_buckets(context: int, want: tuple[int, ...]) -> None:
    assert buckets(target("meteor-lake"), context) == want


def test_a_bundle_whose_cache_stays_on_the_device(bench: Any, tiny_target: Path, heads: Path, tmp_path: Path) -> None:
    """The graph that writes to it is planned, written and run; sessions with and without it give the same logits."""
    args = ("--target", "cuda", "--precision", "fp16", "--medusa", heads)
    done = bench.export(tiny_target, "-o", tmp_path / "b", *args, "--json")
    assert done.exit_code == 0, done.output
    bundle = open_bundle(tmp_path / "b")
    (keep,) = bundle.graphs("cache", "keep")
    options = build_options(str(tiny_target), Path("out"), "fp16", target_name="cuda")
    planned = next(file for file in plan_bundle(options).files if file.network == "cache")
    assert (planned.file, planned.bytes) == (keep.file.file, keep.file.bytes) and {t.dtype for t in keep.outputs} == {
        "float16"
    }
    sessions = [kind(bundle, on_cpu(bundle, 1)) for kind in (ResidentSession, PortableSession)]
    for session in sessions:
        session.wants = frozenset({"hidden"})
    ids = [int(i) for i in np.random.default_rng(0).integers(0, 200, 150)]
    outputs = [session.prefill(ids) for session in sessions]
    for kept in ((0, 2, 3), (0, 1), (0,)):
        tree = Draft((5, 6, 7, 8), (-1, -1, 1, 2), (True,) * 4)
        outputs += [session.verify(3, tree) for session in sessions]
        for session in sessions:
            session.commit(kept)
    for ours, theirs in zip(outputs[::2], outputs[1::2], strict=True):
        np.testing.assert_array_equal(ours.logits, theirs.logits)
        assert ours.hidden is not None and theirs.hidden is not None
        np.testing.assert_array_equal(ours.hidden, theirs.hidden)


def test_activations_of_each_precision() -> None:
    """float16 in an NPU's static graphs, float32 in the any-width graph that a CPU falls back to."""
    lake, gpu = target("meteor-lake"), target("cuda")
    wide, *static = forms(lake, "int8-channel", 1152, lake.widths)
    assert (wide.role, wide.lowering, wide.activation) == ("step", "portable", "float32")
    assert {f.activation for f in static} == {"float16"} and len(static) == 6
    assert {f.activation for f in forms(lake, "fp32", 1152, lake.widths)} == {"float32"}
    assert {f.activation for f in forms(gpu, "fp16", 1152, gpu.widths)} == {"float16"}
    assert [f.lowering for f in forms(target("cpu"), "fp32", 512, (1,)) if f.width is None] == ["fused", "portable"]
