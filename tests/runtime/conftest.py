"""A tiny bundle made by hand: random weights, the fused and the portable graphs, a byte-level tokenizer."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from spec_edge.models.contract import (
    FileFact,
    GraphSpec,
    KindQuality,
    Manifest,
    ModelFacts,
    Parity,
    Quality,
    RopeFacts,
    Source,
    TensorSpec,
    TextFacts,
)
from spec_edge.models.keep_graph import NETWORK, ROLE, keep_graph
from spec_edge.runtime import manifest as schema

LAYERS, HIDDEN, HEADS, KV, DIM, CONTEXT = 2, 32, 4, 2, 16, 1024
WIDTHS, BUCKETS, CHUNK = (1, 4, 8), (64, 128), 16
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "int32": TensorProto.INT32}
TYPES["int64"] = TensorProto.INT64


def byte_tokenizer() -> Tokenizer:
    """One token per byte, a few merges, three special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "w"), ("<", "|"), ("|", ">")]
    vocab = {c: i for i, c in enumerate([*alphabet, *("".join(m) for m in merges)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    tokenizer.add_special_tokens([AddedToken(n, special=True, normalized=False) for n in names])
    return tokenizer


@dataclass(frozen=True)
class Network:
    """Weights by name, and the same network in numpy: ids -> logits [S, V] and hidden [S, H]."""

    weights: dict[str, np.ndarray]
    inv_freq: np.ndarray

    def __call__(self, ids: list[int]) -> tuple[np.ndarray, np.ndarray]:
        w, x = self.weights, self.weights["embed"][ids].astype(np.float64)
        mask = np.tri(len(ids), dtype=bool)
        for i in range(LAYERS):
            q, k, v = (_heads(x @ w[f"{n}.{i}"]) for n in "qkv")
            q, k = self._rotate(q), self._rotate(k)
            k, v = (np.repeat(t, HEADS // KV, axis=0) for t in (k, v))
            scores = np.where(mask, q @ k.transpose(0, 2, 1) / np.sqrt(DIM), -np.inf)
            p = np.exp(scores - scores.max(-1, keepdims=True))
            mixed = (p / p.sum(-1, keepdims=True)) @ v
            x = x + mixed.transpose(1, 0, 2).reshape(len(ids), -1) @ w[f"o.{i}"]
        return x @ w["head"], x

    def _rotate(self, x: np.ndarray) -> np.ndarray:
        angle = np.arange(x.shape[1])[:, None] * self.inv_freq
        cos, sin = (np.concatenate([f(angle)] * 2, axis=-1) for f in (np.cos, np.sin))
        half = np.concatenate([-x[..., DIM // 2 :], x[..., : DIM // 2]], axis=-1)
        return x * cos + half * sin


def _heads(x: np.ndarray) -> np.ndarray:
    return x.reshape(len(x), -1, DIM).transpose(1, 0, 2)


def make_network(vocab: int, seed: int = 0) -> Network:
    rng = np.random.default_rng(seed)
    shapes = {"embed": (vocab, HIDDEN), "head": (HIDDEN, vocab)}
    for i in range(LAYERS):
        shapes |= {f"q.{i}": (HIDDEN, HEADS * DIM), f"o.{i}": (HEADS * DIM, HIDDEN)}
        shapes |= {f"k.{i}": (HIDDEN, KV * DIM), f"v.{i}": (HIDDEN, KV * DIM)}
    weights = {n: (rng.standard_normal(s) / np.sqrt(s[0])).astype(np.float32) for n, s in shapes.items()}
    weights["embed"] = rng.standard_normal((vocab, HIDDEN)).astype(np.float32)
    return Network(weights, 100.0 ** -(np.arange(DIM // 2) / (DIM // 2)))


class Graph:
    """Nodes and constants; `op` returns the name of its output."""

    def __init__(self, weights: dict[str, np.ndarray]) -> None:
        self.nodes: list[Any] = []
        self.constants = dict(weights)

    def op(self, kind: str, *inputs: str, out: str = "", domain: str = "", outputs: int = 1, **attrs: Any) -> Any:
        names = [out or f"t{len(self.nodes)}"] + [f"t{len(self.nodes)}_{i}" for i in range(1, outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, domain=domain, **attrs))
        return names[0] if outputs == 1 else names

    def const(self, value: Any, dtype: Any = np.int64) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.array(value, dtype)
        return name

    def save(self, path: Path, inputs: list[TensorSpec], outputs: list[TensorSpec]) -> None:
        info = [[helper.make_tensor_value_info(t.name, TYPES[t.dtype], t.shape) for t in s] for s in (inputs, outputs)]
        data = [numpy_helper.from_array(a, n) for n, a in self.constants.items()]
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(
            helper.make_graph(self.nodes, "tiny", *info, data), opset_imports=opsets, ir_version=8
        )
        onnx.save(model, str(path))


def save_fused(network: Network, path: Path, vocab: int) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    g = Graph(network.weights)
    angle = np.arange(CONTEXT)[:, None] * network.inv_freq
    cos, sin = (g.const(f(angle), np.float32) for f in (np.cos, np.sin))
    x = g.op("Gather", "embed", "input_ids")
    inputs = [TensorSpec("input_ids", "int32", (1, "S")), TensorSpec("position_ids", "int64", (1, "S"))]
    inputs += [TensorSpec("seqlens_k", "int32", (1,)), TensorSpec("total_len", "int32", (1,))]
    inputs += [TensorSpec("bias", "float32", (1, 1, "S", "M")), TensorSpec("rows", "int32", ("R",))]
    outputs = [TensorSpec("logits", "float32", (1, "R", vocab)), TensorSpec("hidden", "float32", (1, "S", HIDDEN))]
    for i in range(LAYERS):
        q, k, v = (g.op("MatMul", x, f"{n}.{i}") for n in "qkv")
        out = [f"mixed.{i}", f"present_key.{i}", f"present_value.{i}"]
        ins = [q, k, v, f"past_key.{i}", f"past_value.{i}", "seqlens_k", "total_len", cos, sin, "position_ids", "bias"]
        heads = {"num_heads": HEADS, "kv_num_heads": KV, "do_rotary": 1}
        g.nodes.append(helper.make_node("GroupQueryAttention", ins, out, domain="com.microsoft", **heads))
        last = {"out": "hidden"} if i == LAYERS - 1 else {}
        x = g.op("Add", x, g.op("MatMul", out[0], f"o.{i}"), **last)
        for n in ("key", "value"):
            inputs.append(TensorSpec(f"past_{n}.{i}", "float32", (1, KV, "M", DIM)))
            outputs.append(TensorSpec(f"present_{n}.{i}", "float32", (1, KV, "M", DIM)))
    g.op("MatMul", g.op("Gather", x, "rows", axis=1), "head", out="logits")
    g.save(path, inputs, outputs)
    return tuple(inputs), tuple(outputs)


def save_portable(
    network: Network, path: Path, vocab: int, width: int | None, past: int | None, prefill: bool, dtype: str = "float32"
) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """width and past None: any, and an input `rows` says which get logits."""
    g = Graph({n: a.astype(dtype) for n, a in network.weights.items()})
    s, p = ("S" if width is None else width), ("P" if past is None else past)
    rows = "R" if width is None else 1 if prefill else width
    inputs = [TensorSpec("input_ids", "int32", (1, s))]
    inputs += [TensorSpec(n, dtype, (1, 1, s, DIM)) for n in ("cos", "sin")]
    inputs += [TensorSpec("bias_past", dtype, (1, 1, s, p)), TensorSpec("bias_new", dtype, (1, 1, s, s))]
    outputs = [TensorSpec("logits", dtype, (1, rows, vocab)), TensorSpec("hidden", dtype, (1, s, HIDDEN))]
    x = g.op("Gather", "embed", "input_ids")
    scale = g.const(1 / np.sqrt(DIM), dtype)

    def heads(t: str, n: int) -> str:
        return g.op("Transpose", g.op("Reshape", t, g.const([1, -1, n, DIM])), perm=[0, 2, 1, 3])

    def rotate(t: str, **last: str) -> str:
        a, b = g.op("Split", t, g.const([DIM // 2] * 2), axis=3, outputs=2)
        half = g.op("Concat", g.op("Neg", b), a, axis=3)
        return g.op("Add", g.op("Mul", t, "cos"), g.op("Mul", half, "sin"), **last)

    def spread(t: str) -> str:
        wide = g.op("Expand", g.op("Unsqueeze", t, g.const([2])), g.const([1, KV, HEADS // KV, 1, DIM]))
        return g.op("Reshape", wide, g.const([1, HEADS, -1, DIM]))

    def columns() -> str:
        return g.op("Concat", *(g.op("Shape", f"bias_{n}", start=3) for n in ("past", "new")), axis=0)

    sizes = columns() if width is None or past is None else g.const([past, width])

    for i in range(LAYERS):
        q = g.op("Mul", rotate(heads(g.op("MatMul", x, f"q.{i}"), HEADS)), scale)
        k = rotate(heads(g.op("MatMul", x, f"k.{i}"), KV), out=f"new_key.{i}")
        v = g.op("Identity", heads(g.op("MatMul", x, f"v.{i}"), KV), out=f"new_value.{i}")
        parts = []
        for keys, bias in ((f"past_key.{i}", "bias_past"), (k, "bias_new")):
            parts.append(g.op("Add", g.op("MatMul", q, g.op("Transpose", spread(keys), perm=[0, 1, 3, 2])), bias))
        weights = g.op("Softmax", g.op("Concat", *parts, axis=3), axis=3)
        w_past, w_new = g.op("Split", weights, sizes, axis=3, outputs=2)
        both = [g.op("MatMul", w_past, spread(f"past_value.{i}")), g.op("MatMul", w_new, spread(v))]
        mixed = g.op("Reshape", g.op("Transpose", g.op("Add", *both), perm=[0, 2, 1, 3]), g.const([1, -1, HEADS * DIM]))
        last = {"out": "hidden"} if i == LAYERS - 1 else {}
        x = g.op("Add", x, g.op("MatMul", mixed, f"o.{i}"), **last)
        for n in ("key", "value"):
            inputs.append(TensorSpec(f"past_{n}.{i}", dtype, (1, KV, p, DIM)))
            outputs.append(TensorSpec(f"new_{n}.{i}", dtype, (1, KV, s, DIM)))
    if width is None:
        inputs.append(TensorSpec("rows", "int32", ("R",)))
    chosen = x
    if width is None or prefill:
        chosen = g.op("Gather", x, "rows" if width is None else g.const([width - 1]), axis=1)
    g.op("MatMul", chosen, "head", out="logits")
    g.save(path, inputs, outputs)
    return tuple(inputs), tuple(outputs)


def fact(path: Path) -> FileFact:
    data = path.read_bytes()
    return FileFact(path.name, len(data), hashlib.sha256(data).hexdigest())


def write_bundle(folder: Path, network: Network, tokenizer: Tokenizer, dtype: str = "float32") -> Manifest:
    """A bundle with the fused graph and every portable one; its weights file is a stand-in (weights are inline)."""
    folder.mkdir(parents=True, exist_ok=True)
    vocab = network.weights["embed"].shape[0]
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8", newline="\n")
    (folder / "weights.bin").write_bytes(b"0" * 64)
    np.savez(folder / "reference.npz", ids=np.zeros(4, np.int32))
    graphs = []
    signature = save_fused(network, folder / "step.onnx", vocab)
    graphs.append(GraphSpec("step", "target", "step", "fused", None, None, *signature, fact(folder / "step.onnx")))
    signature = save_portable(network, folder / "wide.onnx", vocab, None, None, False, dtype)
    graphs.append(GraphSpec("wide", "target", "step", "portable", None, None, *signature, fact(folder / "wide.onnx")))
    for past in BUCKETS:
        for role, width in [("verify", w) for w in WIDTHS] + [("prefill", CHUNK)]:
            name = f"{role}_{width}_{past}"
            signature = save_portable(network, folder / f"{name}.onnx", vocab, width, past, role == "prefill", dtype)
            file = fact(folder / f"{name}.onnx")
            graphs.append(GraphSpec(name, "target", role, "portable", width, past, *signature, file))
    rope = RopeFacts(tuple(float(f) for f in network.inv_freq), 1.0)
    eos = tuple(tokenizer.token_to_id(t) for t in ("<|im_end|>", "<|endoftext|>"))
    manifest = Manifest(
        format=1,
        model=ModelFacts("tiny", "llama", vocab, HIDDEN, LAYERS, HEADS, KV, DIM, CONTEXT, CONTEXT, rope),
        text=TextFacts(
            tokenizer=fact(folder / "tokenizer.json"),
            chat_template=fact(folder / "chat_template.jinja"),
            tokens=tokenizer.get_vocab_size(),
            bos_id=None,
            add_bos=False,
            eos_ids=eos,
        ),
        target="cpu",
        precision="fp32",
        source=Source("gguf", "tiny.gguf", 1, "0" * 64),
        weights=fact(folder / "weights.bin"),
        reference=fact(folder / "reference.npz"),
        graphs=tuple(graphs),
        drafters=(),
        versions={"spec-edge": "0", "onnx": "0", "onnxruntime": "0"},
        quality=Quality(0.0, 1.0, 4, "prose", (KindQuality("prose", 0.0, 1.0, 4),)),
        parity=Parity(0.0, 4),
    )
    (folder / "bundle.json").write_bytes(schema.write(manifest))
    return manifest


@pytest.fixture(scope="session")
def network() -> Network:
    return make_network(byte_tokenizer().get_vocab_size())


@pytest.fixture(scope="session")
def tiny(network: Network, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny bundle's folder; do not change it (copy it first)."""
    folder = tmp_path_factory.mktemp("tiny") / "bundle"
    write_bundle(folder, network, byte_tokenizer())
    return folder


@pytest.fixture(scope="session")
def tiny_half(network: Network, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with portable graphs in fp16."""
    folder = tmp_path_factory.mktemp("half") / "bundle"
    write_bundle(folder, network, byte_tokenizer(), "float16")
    return folder


@pytest.fixture(scope="session")
def tiny_resident(network: Network, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with the graph that writes to a cache in a device's memory."""
    folder = tmp_path_factory.mktemp("resident") / "bundle"
    manifest = write_bundle(folder, network, byte_tokenizer())
    shape: Any = SimpleNamespace(layers=LAYERS, kv_heads=KV, head_dim=DIM)
    model, inputs, outputs = keep_graph(shape, "float32")
    (folder / "keep.onnx").write_bytes(model.SerializeToString())
    keep = GraphSpec("keep", NETWORK, ROLE, "portable", None, None, inputs, outputs, fact(folder / "keep.onnx"))
    changed = dataclasses.replace(manifest, graphs=(*manifest.graphs, keep))
    (folder / "bundle.json").write_bytes(schema.write(changed))
    return folder


@pytest.fixture
def remake() -> Callable[..., None]:
    """Rewrite bundle.json with some fields of the manifest replaced."""

    def change(folder: Path, **fields: Any) -> None:
        path = folder / "bundle.json"
        path.write_bytes(schema.write(dataclasses.replace(schema.read(path.read_bytes()), **fields)))

    return change


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache folder, empty, for one test (child processes included)."""
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / "cache"))
    return tmp_path / "cache"
