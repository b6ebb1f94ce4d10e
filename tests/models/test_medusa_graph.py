"""Medusa heads of every dialect: the graph against PyTorch modules written from the formulas.

To write the goldens again after a wanted change: SPEC_EDGE_REGOLD=1 pytest tests/models/test_medusa_graph.py
"""

from __future__ import annotations

import functools
import json
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file

from spec_edge.models.contract import FileFact, SpecError
from spec_edge.models.drafter import DrafterFiles, DrafterGraph, Room, kind_of
from spec_edge.models.medusa import DRAFTER
from spec_edge.models.safetensors_file import read_safetensors
from spec_edge.models.schemes.scheme import scheme
from spec_edge.models.store import WeightStore
from spec_edge.models.stored import Writer, store_model
from spec_edge.targets.target import target

GOLDENS = Path(__file__).parent / "goldens"
PORTABLE = {
    *("Add", "Cast", "Concat", "Erf", "Exp", "Gather", "Gemm", "Log", "MatMul", "Mul", "ReduceSum", "Reshape"),
    *("Sigmoid", "Split", "Squeeze", "Sub", "TopK", "Unsqueeze"),
}
V, H = 256, 96
KEPT = 40
Tensors = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Case:
    """A checkpoint, what its heads compute ([H] -> logits [N, V], -inf where none), and how many there are."""

    tensors: Tensors
    config: dict[str, Any]
    heads: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    count: int = 3


class Residual(torch.nn.Module):
    """x + SiLU(W x + b)."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(H, H, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.nn.functional.silu(self.linear(x))


def numpy(state: dict[str, torch.Tensor]) -> Tensors:
    return {name: value.detach().numpy().copy() for name, value in state.items()}


def own_heads(layers: int, shared: bool = False, prefix: str = "", extra: bool = False, count: int = 3) -> Case:
    """A and C: blocks, then an output matrix. shared: the blocks of a head are one module, as upstream makes them."""
    heads = torch.nn.ModuleList()
    for _ in range(count):
        blocks = [Residual()] * layers if shared else [Residual() for _ in range(layers)]
        heads.append(torch.nn.Sequential(*blocks, torch.nn.Linear(H, V, bias=False)))
    tensors = {f"{prefix}{name}": value for name, value in numpy(heads.state_dict()).items()}
    if extra:
        tensors["model.layers.0.mlp.gate_proj.weight"] = np.zeros((2, 2), np.float32)
    config = {"medusa_num_heads": 2, "medusa_num_layers": layers}  # uploaded configurations state too few heads
    return Case(tensors, config, lambda x, _: torch.stack([head(x) for head in heads]), count)


def borrowing(layers: int, deduplicated: bool = False) -> Case:
    """B: blocks only; the target's lm_head gives the logits."""
    heads = torch.nn.ModuleList()
    for _ in range(3):
        blocks = [Residual()] * layers if deduplicated else [Residual() for _ in range(layers)]
        heads.append(torch.nn.Sequential(*blocks))
    tensors = numpy(heads.state_dict())
    if deduplicated:  # safetensors keeps one of several names of a tensor
        tensors = {name: value for name, value in tensors.items() if name.split(".")[1] == "0"}
    config = {"medusa_num_heads": 3, "medusa_num_layers": layers, "version": "2"}
    return Case(tensors, config, lambda x, table: torch.stack([head(x) @ table.T for head in heads]))


def mlp() -> Case:
    """The seed article's: Linear, GELU, Linear; head 0 predicts the next token."""
    heads = torch.nn.ModuleList(
        torch.nn.Sequential(torch.nn.Linear(H, 64), torch.nn.GELU(), torch.nn.Linear(64, V)) for _ in range(4)
    )
    tensors = {f"heads.{name}": value for name, value in numpy(heads.state_dict()).items()}
    return Case(tensors, {}, lambda x, _: torch.stack([head(x) for head in heads[1:]]))


def vllm(kept: str = "", output: str = "own", bias: bool = False, prefix: str = "", depth: int = 2) -> Case:
    """kept: "rows" stores whole output matrices beside a token map, "reduced" only their rows, "" has no map."""
    blocks = [[Residual(bias) for _ in range(depth)] for _ in range(3)]
    tensors: Tensors = {}
    for i, layers in enumerate(blocks):
        for at, layer in enumerate(layers):
            tensors[f"blocks.{i}.layers.{at}.weight"] = numpy(layer.state_dict())["linear.weight"]
            if bias:
                tensors[f"blocks.{i}.layers.{at}.bias"] = numpy(layer.state_dict())["linear.bias"]
    own = [torch.randn(V, H) / H**0.5 for _ in range(1 if output == "one" else 3)]
    ids = torch.from_numpy(np.random.default_rng(0).permutation(V)[:KEPT].astype(np.int64))
    config: dict[str, Any] = {"model_type": "medusa", "num_heads": 3, "num_hidden_layers": depth, "hidden_size": H}
    config |= {"vocab_size": V, "truncated_vocab_size": KEPT if kept else V}
    stored = [w[ids] if kept == "reduced" else w for w in own]
    if output == "own":
        tensors |= {f"lm_heads.{i}.weight": w.numpy() for i, w in enumerate(stored)}
    if output == "one":
        tensors["lm_head.weight"] = stored[0].numpy()
        config["original_lm_head"] = True
    if kept:
        tensors["token_map"] = ids.numpy()

    def heads(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        states = [torch.nn.Sequential(*layers)(x) for layers in blocks]
        tables = {"own": own, "one": own * 3, "target": [table] * 3}[output]
        logits = torch.stack([t @ s for t, s in zip(tables, states, strict=True)])
        if kept:
            hidden = torch.ones(V, dtype=torch.bool)
            hidden[ids] = False
            logits[:, hidden] = -torch.inf
        return logits

    return Case({f"{prefix}{name}": value for name, value in tensors.items()}, config, heads)


CASES: dict[str, Callable[[], Case]] = {
    "A": lambda: own_heads(1),
    "A-two-layers": lambda: own_heads(2),
    "A-one-module-twice": lambda: own_heads(2, shared=True),
    "A-one-head": lambda: own_heads(2, count=1),
    "B": lambda: borrowing(1),
    "B-two-layers": lambda: borrowing(2),
    "B-deduplicated": lambda: borrowing(2, deduplicated=True),
    "C": lambda: own_heads(1, prefix="medusa_head.", extra=True),
    "MLP": mlp,
    "vLLM": vllm,
    "vLLM-biased": lambda: vllm(bias=True),
    "vLLM-prefixed": lambda: vllm(prefix="medusa_heads."),
    "vLLM-one-lm-head": lambda: vllm(output="one"),
    "vLLM-reduced-rows": lambda: vllm(kept="reduced"),
    "vLLM-map-over-whole": lambda: vllm(kept="rows"),
    "vLLM-map-over-shared": lambda: vllm(kept="reduced", output="one"),
    "vLLM-shipped": lambda: vllm(kept="reduced", output="one", bias=True, depth=1),
    "vLLM-map-over-targets": lambda: vllm(kept="reduced", output="target"),
}


def written(folder: Path, tensors: Tensors, config: dict[str, Any]) -> DrafterFiles:
    save_file(tensors, folder / "heads.safetensors")
    return DrafterFiles("heads", config, read_safetensors(folder / "heads.safetensors"))


@dataclass(frozen=True)
class Made:
    """Graphs by lowering, runnable; `table` is the target's lm_head [V, H] as stored."""

    graphs: dict[str, DrafterGraph]
    folder: Path
    table: NDArray[np.float32]
    tiny: Any
    drafter: Any
    precision: str

    def run(self, lowering: str, feeds: Any) -> dict[str, NDArray[Any]]:
        options = ort.SessionOptions()
        options.log_severity_level = 3
        path = self.folder / f"{lowering}.onnx"
        path.write_bytes(self.graphs[lowering].model.SerializeToString())
        session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        return dict(zip([o.name for o in session.get_outputs()], session.run(None, dict(feeds)), strict=True))


def made(lab: Any, folder: Path, case: Case, model: str = "llama-mha-untied", precision: str = "fp32") -> Made:
    tiny = lab.tiny(model)
    files = written(folder, case.tensors, case.config)
    assert kind_of(files) is DRAFTER
    drafter = DRAFTER.open(files, tiny.config)
    room = Room(target("cpu"), precision, 128, (1, 8))
    dtypes = ("float32", "float16") if precision == "fp16" else ("float32",)
    with WeightStore(folder / "weights.bin") as store:
        stored = store_model(tiny.config, tiny.rope, tiny.weights, scheme(precision), store, 192, dtypes)
        make = drafter.store(Writer(store, dtypes), room, tiny.weights)
    name = "model.embed_tokens.weight" if tiny.config.tied else "lm_head.weight"
    table = scheme(precision).pack(tiny.weights, name)
    dense = table if isinstance(table, np.ndarray) else table.dense()
    graphs = {graph.lowering: graph for graph in make(stored, room)}
    return Made(graphs, folder, dense.astype(np.float32), tiny, drafter, precision)


def hidden_states(count: int = 4) -> NDArray[np.float32]:
    return np.random.default_rng(1).normal(size=(count, H)).astype(np.float32)


def laws(case: Case, x: NDArray[np.float32], table: NDArray[np.float32]) -> NDArray[np.float32]:
    with torch.no_grad():
        return torch.log_softmax(case.heads(torch.from_numpy(x), torch.from_numpy(table)), -1).numpy()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("model", ["llama-mha-untied", "llama-gqa-tied"])
def test_parity(lab: Any, tmp_path: Path, name: str, model: str) -> None:
    torch.manual_seed(0)
    case = CASES[name]()
    bundle = made(lab, tmp_path, case, model)
    for lowering in ("fused", "portable"):
        for x in hidden_states():
            out = bundle.run(lowering, {"hidden": x[None, None]})
            want = laws(case, x, bundle.table)
            ids, values = out["top_ids"][0], out["top_logprobs"][0]
            assert ids.shape == (case.count, 10) and ids.dtype == np.int32
            best = -np.sort(-want, axis=1)[:, :10]
            np.testing.assert_allclose(values, best, atol=1e-4)
            np.testing.assert_allclose(np.take_along_axis(want, ids.astype(np.int64), 1), best, atol=1e-4)
    borrows = bundle.graphs["fused"].borrows
    own = not name.startswith("B") and name != "vLLM-map-over-targets"
    assert borrows == (() if own else ("lm_head" if model == "llama-mha-untied" else "model.embed_tokens",))


@pytest.mark.parametrize("name", ["A", "B", "MLP", "vLLM-reduced-rows"])
@pytest.mark.parametrize(("precision", "bound"), [("fp16", 0.03), ("int8", 0.15), ("int4", 0.3)])
def test_other_precisions(lab: Any, tmp_path: Path, name: str, precision: str, bound: float) -> None:
    """Against PyTorch with the target's table as stored: what is left is the rounding of the heads and activations."""
    torch.manual_seed(0)
    case = CASES[name]()
    bundle = made(lab, tmp_path, case, precision=precision)
    assert bundle.graphs["portable"].inputs[0].dtype == ("float16" if precision == "fp16" else "float32")
    for lowering in ("fused", "portable"):
        for x in hidden_states(2):
            dtype = bundle.graphs[lowering].inputs[0].dtype
            out = bundle.run(lowering, {"hidden": x[None, None].astype(dtype)})
            want = laws(case, x, bundle.table)
            at = np.take_along_axis(want, out["top_ids"][0].astype(np.int64), 1)
            np.testing.assert_allclose(out["top_logprobs"][0], at, atol=bound)
    if name == "B":
        operators = Counter(n.op_type for n in bundle.graphs["fused"].model.graph.node)
        assert (operators["MatMulNBits"] >= 2) == (precision != "fp16"), (
            "the target's packed lm_head is used as it lies"
        )


@pytest.mark.parametrize("precision", ["fp32", "int8", "fp16"])
@pytest.mark.parametrize("name", ["A", "B", "MLP", "vLLM-map-over-targets"])
def test_the_check_of_an_export_sees_a_wrong_graph(lab: Any, tmp_path: Path, name: str, precision: str) -> None:
    torch.manual_seed(0)
    bundle = made(lab, tmp_path, CASES[name](), precision=precision)
    graph = bundle.graphs["portable"].spec("medusa", FileFact("x.onnx", 1, "0" * 64))
    table = lab.weights({"lm_head.weight": bundle.table})

    def error(change: Callable[[dict[str, NDArray[Any]]], None]) -> float:
        def run(feeds: Any) -> dict[str, NDArray[Any]]:
            out = bundle.run("portable", feeds)
            change(out)
            return out

        return float(bundle.drafter.check(graph, run, table, precision))

    def shifted(out: dict[str, NDArray[Any]]) -> None:
        out["top_ids"] = (out["top_ids"] + 1) % V

    def swapped(out: dict[str, NDArray[Any]]) -> None:
        out["top_logprobs"] = out["top_logprobs"][:, ::-1]

    assert error(lambda _: None) < (1e-4 if precision == "fp32" else 0.05)
    assert error(shifted) > 0.1 and error(swapped) > 0.02


def test_the_shared_lm_head_is_one_matmul(lab: Any, tmp_path: Path) -> None:
    """N rows through one Gemm, and the first layers of all heads as one MatMul."""
    graph = made(lab, tmp_path, CASES["B"]()).graphs["fused"].model.graph
    operators = Counter(n.op_type for n in graph.node)
    assert operators["Gemm"] == 1 and operators["MatMul"] == 1


@pytest.mark.parametrize("model", ["llama-mha-untied", "llama-gqa-tied"])
@pytest.mark.parametrize("mapped", [False, True])
def test_a_copy_of_the_targets_lm_head_is_borrowed(lab: Any, tmp_path: Path, model: str, mapped: bool) -> None:
    """As it is and rounded, for all heads, also beside a map; another matrix is stored."""
    tiny = lab.tiny(model)
    name = "model.embed_tokens.weight" if tiny.config.tied else "lm_head.weight"
    table = tiny.weights.dense(name)
    noise = np.random.default_rng(2).normal(size=table.shape).astype(np.float32) * np.abs(table).mean()
    borrowed, drafter_bytes = {}, {}
    for kind, share in (("same", 0), ("rounded", 0.005), ("other", 0.1)):
        case = vllm(kept="rows" if mapped else "", output="one")
        case = changed(case, lm_head__weight=(table + share * noise).astype(np.float32))
        if mapped:
            case.tensors["token_map"] = vllm(kept="rows").tensors["token_map"]
        (tmp_path / kind).mkdir()
        bundle = made(lab, tmp_path / kind, case, model)
        fused = bundle.graphs["fused"]
        borrowed[kind] = bool(fused.borrows)
        drafter_bytes[kind] = (tmp_path / kind / "weights.bin").stat().st_size
        spec = bundle.graphs["portable"].spec("medusa", FileFact("x.onnx", 1, "0" * 64))
        run = functools.partial(bundle.run, "portable")
        assert float(bundle.drafter.check(spec, run, lab.weights({name: bundle.table}), "fp32")) < 1e-4
    assert borrowed == {"same": True, "rounded": True, "other": False}
    assert drafter_bytes["same"] < drafter_bytes["other"]


GOLDEN_CASES = [("A", "llama-mha-untied", "fp32"), ("B", "llama-gqa-tied", "int4"), ("MLP", "llama-mha-untied", "fp16")]


@pytest.mark.parametrize(("name", "model", "precision"), GOLDEN_CASES)
@pytest.mark.parametrize("lowering", ["fused", "portable"])
def test_signature_is_the_golden_one(
    lab: Any, tmp_path: Path, name: str, model: str, precision: str, lowering: str
) -> None:
    graph = made(lab, tmp_path, CASES[name](), model, precision).graphs[lowering]
    nodes = Counter(f"{n.domain}:{n.op_type}".lstrip(":") for n in graph.model.graph.node)
    found = {
        "name": graph.name,
        "role": graph.role,
        "borrows": list(graph.borrows),
        "inputs": {t.name: f"{t.dtype}{list(t.shape)}" for t in graph.inputs},
        "outputs": {t.name: f"{t.dtype}{list(t.shape)}" for t in graph.outputs},
        "operators": dict(sorted(nodes.items())),
        "opsets": {o.domain: o.version for o in graph.model.opset_import},
    }
    path = GOLDENS / f"medusa-{name}-{precision}-{lowering}.json"
    if os.environ.get("SPEC_EDGE_REGOLD"):
        path.write_text(json.dumps(found, indent=1) + "\n", "utf-8", newline="\n")
    assert found == json.loads(path.read_text("utf-8"))
    if precision != "int4":
        assert set(nodes) <= PORTABLE


# What does not fit


def refused(lab: Any, folder: Path, case: Case, model: str = "llama-mha-untied") -> str:
    with pytest.raises(SpecError) as caught:
        files = written(folder, case.tensors, case.config)
        DRAFTER.open(files, lab.tiny(model).config)
    assert "\n" not in caught.value.message
    return caught.value.message


def test_both_numbers_are_named(lab: Any, tmp_path: Path) -> None:
    wide = {name: np.zeros(tuple(2 * n for n in w.shape), np.float32) for name, w in borrowing(1).tensors.items()}
    said = refused(lab, tmp_path, Case(wide, {}, lambda x, _: x))
    assert f"hidden size is {2 * H}, the target's is {H}" in said
    tall = {
        n: np.zeros((300, H), np.float32) if n.endswith(".1.weight") else w for n, w in own_heads(1).tensors.items()
    }
    assert f"vocabulary is 300, the target's is {V}" in refused(lab, tmp_path, Case(tall, {}, lambda x, _: x))
    stated = replace(vllm(), config=vllm().config | {"vocab_size": 999})
    assert f"vocabulary is 999, the target's is {V}" in refused(lab, tmp_path, stated)
    strange = vllm(kept="reduced")
    strange.tensors["token_map"][0] = V + 5
    assert f"vocabulary is {V + 6}, the target's is {V}" in refused(lab, tmp_path, strange)


def changed(case: Case, **tensors: NDArray[Any] | None) -> Case:
    """Names with `__` for points; None takes a tensor away."""
    named = {name.replace("__", "."): value for name, value in tensors.items()}
    kept = {name: value for name, value in (case.tensors | named).items() if value is not None}
    return replace(case, tensors=kept)


Z = np.zeros((H, H), np.float32)
BAD: list[tuple[str, Callable[[], Case], str]] = [
    ("gap", lambda: changed(borrowing(1), **{"1__0__linear__weight": None, "1__0__linear__bias": None}), "of head 1"),
    ("no first layer", lambda: changed(borrowing(1), **{"2__0__linear__weight": None}), "no first layer of head 2"),
    ("strange", lambda: changed(borrowing(1), **{"lstm__weight": Z}), "no Medusa head reads: 'lstm.weight'"),
    ("two outputs", lambda: changed(own_heads(1), **{"0__2__weight": Z}), "head 0 has layers that are not understood"),
    ("uneven", lambda: changed(own_heads(1), **{"1__1__weight": None}), "the heads differ in their layers"),
    ("square", lambda: changed(borrowing(1), **{"0__0__linear__weight": Z[:5]}), "not "),
    ("bias", lambda: changed(borrowing(1), **{"0__0__linear__bias": Z[0, :4]}), "'0.0.linear.bias' has shape [4]"),
    ("one bias", lambda: changed(borrowing(1), **{"1__0__linear__bias": None}), "has no tensor '1.0.linear.bias'"),
    (
        "no biases",
        lambda: Case({k: v for k, v in borrowing(1).tensors.items() if "bias" not in k}, {}, borrowing(1).heads),
        "has no tensor '0.0.linear.bias'",
    ),
    ("vLLM bias", lambda: changed(vllm(bias=True), **{"blocks__2__layers__1__bias": None}), "'blocks.2.layers.1.bias'"),
    ("MLP bias", lambda: changed(mlp(), **{"heads__2__0__bias": None}), "has no tensor 'heads.2.0.bias'"),
    ("MLP output", lambda: changed(mlp(), **{"heads__3__2__bias": None}), "has no tensor 'heads.3.2.bias'"),
    ("architectures", lambda: replace(borrowing(1), config={"architectures": 5}), "must be a list of names, not 5"),
    ("limit", lambda: replace(borrowing(1), config={"medusa_num_layers": 10**18}), "from 1 to 16777215"),
    ("scalar", lambda: changed(borrowing(1), **{"0__0__linear__weight": np.array(1, np.float32)}), "shape []"),
    ("one MLP head", lambda: Case({k: v for k, v in mlp().tensors.items() if k[6] == "0"}, {}, mlp().heads), "2 are"),
    ("deep MLP", lambda: changed(mlp(), **{"heads__0__4__weight": Z}), "is no Linear, GELU, Linear"),
    ("no output", lambda: changed(vllm(), **{"lm_heads__1__weight": None}), "no output matrix of head 1"),
    ("no map", lambda: changed(vllm(kept="reduced"), token_map=None), "truncated_vocab_size = 40 of 256"),
    ("twice", lambda: changed(vllm(kept="reduced"), token_map=np.zeros(KEPT, np.int64)), "names a token twice"),
    ("floats", lambda: changed(vllm(kept="reduced"), token_map=np.zeros(KEPT, np.float32)), "table of type F32"),
    ("doubles", lambda: changed(borrowing(1), **{"0__0__linear__weight": Z.astype(np.float64)}), "is of type F64"),
    ("scale", lambda: replace(vllm(), config=vllm().config | {"logit_scale": 2.0}), "'logit_scale' = 2.0"),
    ("layers", lambda: replace(borrowing(1), config={"medusa_num_layers": "two"}), "'medusa_num_layers' must be"),
]


@pytest.mark.parametrize(("make", "message"), [(m, s) for _, m, s in BAD], ids=[n for n, _, _ in BAD])
def test_a_bad_checkpoint_is_one_line(lab: Any, tmp_path: Path, make: Callable[[], Case], message: str) -> None:
    assert message in refused(lab, tmp_path, make())


def test_a_config_alone_gives_the_same_sizes(lab: Any, tmp_path: Path) -> None:
    """Of dialects whose config says how many heads there are."""
    config = lab.tiny("llama-mha-untied").config
    for name in ("B", "B-two-layers", "vLLM", "vLLM-reduced-rows", "vLLM-one-lm-head"):
        case = CASES[name]()
        whole = DRAFTER.open(written(tmp_path, case.tensors, case.config), config)
        files = DrafterFiles("plan", case.config, {})
        assert kind_of(files) is DRAFTER
        assert DRAFTER.open(files, config).tensors == whole.tensors
    v01 = DrafterFiles("plan", {"medusa_num_heads": 3, "medusa_num_layers": 1}, {})
    assert (
        DRAFTER.open(v01, config).tensors == DRAFTER.open(written(tmp_path, own_heads(1).tensors, {}), config).tensors
    )
