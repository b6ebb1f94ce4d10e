"""Which graphs a bundle holds, and their signatures as goldens.

To write the goldens again after a wanted change: SPEC_EDGE_REGOLD=1 pytest tests/models/test_graph_forms.py
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import onnx
import pytest

from spec_edge.models.contract import FileFact, SpecError
from spec_edge.models.decoder import build
from spec_edge.models.forms import Form, buckets, forms, rounded
from spec_edge.models.schemes.scheme import scheme
from spec_edge.models.store import WeightStore
from spec_edge.models.stored import Stored, store_model
from spec_edge.targets.target import target

GOLDENS = Path(__file__).parent / "goldens"
TABLE = 192
PORTABLE = (
    *("Add", "Concat", "Div", "Gather", "Gemm", "MatMul", "Mul", "Pow", "ReduceMean", "Reshape", "Sigmoid"),
    *("Softmax", "Split", "Sqrt", "Squeeze", "Transpose", "Unsqueeze"),
)
FORMS = [
    Form("step", "fused", None, None, TABLE),
    Form("step", "portable", None, None, TABLE),
    Form("verify", "portable", 8, 64, TABLE),
    Form("verify", "fused", 8, 64, TABLE),
    Form("prefill", "portable", 16, 64, TABLE),
    Form("prefill", "fused", 16, 64, TABLE),
    Form("verify", "portable", 8, 64, TABLE, "float16"),
    Form("verify", "portable", 8, 64, TABLE, taps=(0, 1, 2), part=0, parts=2),
    Form("prefill", "portable", 16, 64, TABLE, taps=(0, 1, 2), part=1, parts=2),
]
CASES = [(f, "llama-gqa-tied", "fp16" if f.activation == "float16" else "fp32") for f in FORMS] + [
    (FORMS[0], "llama-gqa-tied", "keep"),
    (FORMS[0], "qwen2-bias-untied", "int4"),
    (FORMS[2], "qwen2-bias-untied", "int4"),
]


def stored(lab: Any, model: str, precision: str, folder: Path) -> tuple[Any, Stored]:
    tiny = lab.quantised(model, 4, 32, True) if precision == "keep" else lab.tiny(model)
    with WeightStore(folder / "weights.bin") as store:
        dtypes = ("float32", "float16")
        return tiny, store_model(tiny.config, tiny.rope, tiny.weights, scheme(precision), store, TABLE, dtypes)


@pytest.mark.parametrize(("form", "model", "precision"), CASES, ids=[f"{m}-{p}-{f.name}" for f, m, p in CASES])
def test_signature_is_the_golden_one(lab: Any, tmp_path: Path, form: Form, model: str, precision: str) -> None:
    tiny, where = stored(lab, model, precision, tmp_path)
    proto, signature = build(tiny.config, where, form)
    found = {
        "inputs": {t.name: f"{t.dtype}{list(t.shape)}" for t in signature.inputs},
        "outputs": {t.name: f"{t.dtype}{list(t.shape)}" for t in signature.outputs},
        "operators": dict(sorted(Counter(f"{n.domain}:{n.op_type}".lstrip(":") for n in proto.graph.node).items())),
        "opsets": {o.domain: o.version for o in proto.opset_import},
        "ir_version": proto.ir_version,
    }
    file = GOLDENS / f"{model}-{precision}-{form.name}.json"
    if os.environ.get("SPEC_EDGE_REGOLD"):
        file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    assert json.loads(file.read_text(encoding="utf-8")) == found


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f"{f.name}-{f.activation}")
def test_the_model_says_what_the_signature_says(lab: Any, tmp_path: Path, form: Form) -> None:
    tiny, where = stored(lab, "llama-gqa-tied", "fp32", tmp_path)
    proto, signature = build(tiny.config, where, form)
    for specs, values in ((signature.inputs, proto.graph.input), (signature.outputs, proto.graph.output)):
        assert [(t.name, t.shape) for t in specs] == [
            (v.name, tuple(d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim)) for v in values
        ]
    names = [n.name for n in proto.graph.node]
    assert len(set(names)) == len(names)
    assert f"/layers.{form.layers(2).start}/attn/qkv_proj/MatMul" in names
    if form.lowering == "portable":
        onnx.save(proto, tmp_path / "graph.onnx")
        onnx.checker.check_model(tmp_path / "graph.onnx", full_check=True)
    inline = [t for t in proto.graph.initializer if t.data_location != onnx.TensorProto.EXTERNAL]
    swap, zeros = 4 * 32 * 32, 4 * 2 * 15 * 32
    assert sum(t.ByteSize() for t in inline) < 4096 + swap + zeros
    spec = signature.spec("target", FileFact("a.onnx", 1, "0"))
    assert (spec.name, spec.width, spec.past, spec.inputs) == (form.name, form.width, form.past, signature.inputs)


def test_a_static_portable_graph_has_no_shape_arithmetic(lab: Any, tmp_path: Path) -> None:
    tiny, where = stored(lab, "llama-gqa-tied", "fp32", tmp_path)
    operators = {n.op_type for n in build(tiny.config, where, FORMS[2])[0].graph.node}
    assert operators == {*PORTABLE}


def test_an_activation_type_that_was_not_stored_is_refused(lab: Any, tmp_path: Path) -> None:
    tiny = lab.tiny("llama-gqa-tied")
    with WeightStore(tmp_path / "weights.bin") as store:
        where = store_model(tiny.config, tiny.rope, tiny.weights, scheme("fp16"), store, TABLE)
    with pytest.raises(SpecError, match="no float16"):
        build(tiny.config, where, FORMS[6])


@pytest.mark.parametrize("lowering", ["portable", "fused"])
def test_a_wider_graph_is_no_larger(lab: Any, tmp_path: Path, lowering: str) -> None:
    """A width is numbers in the same nodes: graphs cost the same to make, whatever their width and past."""
    tiny, where = stored(lab, "llama-gqa-tied", "fp32", tmp_path)
    protos = [build(tiny.config, where, Form("verify", lowering, w, p, TABLE))[0] for w, p in ((16, 64), (48, 512))]
    assert len({len(proto.graph.node) for proto in protos}) == 1
    assert abs(protos[1].ByteSize() - protos[0].ByteSize()) < 1024


@pytest.mark.parametrize(
    ("context", "want"),
    [(2048, (512, 1024, 2048)), (512, (512,)), (513, (512, 576)), (100, (128,)), (40000, (512, 1024, 40000))],
)
def test_buckets_end_at_the_rounded_context(context: int, want: tuple[int, ...]) -> None:
    cpu = target("cpu")
    found = buckets(cpu, context)
    assert found[-1] == rounded(context) >= context
    assert found[-1] - context < 64
    assert tuple(b for b in found if b in want) == want


def test_forms_of_the_cpu_target() -> None:
    found = forms(target("cpu"), "fp32", 1024, (1, 4))
    assert [f.name for f in found] == [
        "step-fused",
        "step-portable",
        "verify-portable-s1-p512",
        "verify-portable-s4-p512",
        "prefill-portable-s128-p512",
        "verify-portable-s1-p1024",
        "verify-portable-s4-p1024",
        "prefill-portable-s128-p1024",
    ]
    assert {f.context for f in found} == {1088}
    assert {f.activation for f in found} == {"float32"}
    half = forms(target("cpu"), "fp16", 1024, (1,))
    assert {(f.role, f.activation) for f in half} == {
        ("step", "float32"),
        ("verify", "float16"),
        ("prefill", "float16"),
    }


@pytest.mark.parametrize(
    "arguments",
    [
        ("decode", "fused", None, None, 64),
        ("step", "fused", 4, None, 64),
        ("verify", "fused", None, 64, 64),
        ("verify", "portable", 4, None, 64),
        ("step", "fused", None, None, 64, "bfloat16"),
        ("step", "portable", None, None, 64, "float32", (), 0, 2),
        ("verify", "fused", 4, 64, 64, "float32", (), 0, 2),
        ("verify", "portable", 4, 64, 64, "float32", (), 2, 2),
    ],
)
def test_undefined_forms_are_refused(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(SpecError):
        Form(*arguments)
