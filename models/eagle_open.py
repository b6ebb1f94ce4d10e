"""What EAGLE checkpoints of all kinds have in common when they are opened: names, configuration, the `OpenDrafter`.

Enters: `DrafterFiles`. Leaves: tensors under own names, the configuration of the drafter's layers, and an `OpenEagle`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from spec_edge.models.checkpoint import ModelConfig, Weights
from spec_edge.models.contract import CacheFacts, GraphSpec, SpecError
from spec_edge.models.drafter import (
    AsStored,
    DrafterFiles,
    FileWeights,
    MakeGraphs,
    Room,
    Run,
    Shapes,
    check_architectures,
    pack_own,
    same_table,
)
from spec_edge.models.eagle_graph import graphs, positions
from spec_edge.models.eagle_network import EMBED, IDS, KNOWN, PREFIX, Eagle, own_tensors, store
from spec_edge.models.eagle_reference import forward, fused
from spec_edge.models.family import Json
from spec_edge.models.hf_config import decoder_from_hf
from spec_edge.models.planned import planned_tensors
from spec_edge.models.safetensors_file import StoredTensor
from spec_edge.models.stored import Writer

SILENT = ("rotary_emb.inv_freq", "verifier_lm_head.weight", "verifier_norm.weight")
"""Endings of tensors that no drafter reads: a buffer, and copies of the target's that training leaves behind."""

TYPES = (None, "llama", "qwen2", "eagle", "eagle3", "speculators")
"""Accepted values of `model_type`: Llama's layers under any of these names."""

CHECK_ROWS = 12


def own_names(files: DrafterFiles) -> dict[str, StoredTensor]:
    """Tensors by own names: `midlayer` is layer 0, `model.` in front means nothing. SpecError: one twice."""
    found: dict[str, StoredTensor] = {}
    for name, tensor in files.tensors.items():
        own = name.removeprefix("model.")
        own = f"layers.0.{own.removeprefix('midlayer.')}" if own.startswith("midlayer.") else own
        if own.endswith(SILENT):
            continue
        if own in found:
            raise SpecError(f"{files.name} holds '{own}' twice, under two names")
        found[own] = tensor
    return found


def decoder(config: Json, own_keys: frozenset[str], biased: bool, where: str) -> ModelConfig:
    """ModelConfig of the drafter's layers. own_keys: EAGLE's, read elsewhere. SpecError names an unknown key."""
    if not config:
        raise SpecError(f"{where} has no config.json (or an empty one); an EAGLE drafter needs it: download it too")
    check_architectures(config, where)
    if config.get("model_type") not in TYPES:
        known = ", ".join(str(t) for t in TYPES[1:])
        raise SpecError(f"{where}: layers of type '{config.get('model_type')}' are not supported. Supported: {known}")
    plain = {key: value for key, value in config.items() if key not in own_keys | {"tie_word_embeddings"}}
    try:
        return replace(decoder_from_hf(plain, "EAGLE", ("default", "llama3"), biased), family="llama")
    except SpecError as error:
        raise SpecError(f"{where}: {error.message}") from None


def biased_names(config: ModelConfig, found: Mapping[str, StoredTensor], where: str) -> frozenset[str]:
    """Projections that have a bias. Without tensors the configuration decides. SpecError: q, k and v differ in that."""
    qkv = [f"layers.{i}.self_attn.{part}_proj" for i in range(config.layers) for part in "qkv"]
    if not found:
        return frozenset(qkv if config.qkv_bias else ())
    biased = frozenset(name.removesuffix(".bias") for name in found if name.endswith(".bias"))
    if config.qkv_bias and not biased.issuperset(qkv):
        raise SpecError(f"{where}: its configuration says that q, k and v have biases, which it does not hold")
    if biased & set(qkv) and not biased.issuperset(qkv):
        raise SpecError(f"{where} holds a bias of some of q, k and v only")
    return biased


@dataclass(frozen=True)
class OpenEagle:
    """An `OpenDrafter`."""

    name: str
    net: Eagle

    heads = 1

    @property
    def reads(self) -> str:
        return "taps" if self.net.taps else "hidden"

    @property
    def taps(self) -> tuple[int, ...]:
        return self.net.taps

    @property
    def cache(self) -> CacheFacts:
        return self.net.cache

    @property
    def vocabulary(self) -> NDArray[np.int32] | None:
        return self.net.ids

    @property
    def tensors(self) -> Shapes:
        return own_tensors(self.net)

    def planned(self) -> OpenEagle:
        # an embedding of the target's size is nearly always its copy, which an export finds and leaves out
        own = self.net.own_embedding and self.net.config.hidden_size != self.net.target.hidden_size
        net = replace(self.net, own_embedding=own)
        tensors = planned_tensors(own_tensors(net))
        drafted, known = self.net.config.vocab_size, self.net.target.vocab_size
        ids = None if drafted == known else np.arange(drafted, dtype=np.int32)
        return replace(self, net=replace(net, weights=FileWeights(tensors), ids=ids))

    def store(self, out: Writer, room: Room, target: Weights) -> MakeGraphs:
        net = self.net
        if net.own_embedding and _same_table(net, target):
            net = replace(net, own_embedding=False)
        stored = store(net, out, room.precision, positions(room.context))
        return lambda beside, same_room: graphs(net, stored, beside, same_room)

    def check(self, graph: GraphSpec, run: Run, target: Weights, precision: str) -> float | None:
        """Of the any-width graphs: a random text read at once, no row of it drafted."""
        own = AsStored(self.net.weights, lambda weights, name: pack_own(weights, name, precision))
        rng = np.random.default_rng(0)
        if graph.role == "fuse":
            taps = rng.normal(size=(CHECK_ROWS, self.net.read_size)).astype(np.float32)
            return _share(run({"taps": taps[None]})["features"][0], fused(self.net, own, taps))
        if graph.role != "step" or graph.lowering != "fused":
            return None
        net = self.net
        if net.own_embedding and "embed_tokens" in " ".join(graph.borrows):
            net = replace(net, own_embedding=False)
        ids = rng.integers(0, net.target.vocab_size, CHECK_ROWS)
        features = rng.normal(size=(CHECK_ROWS, net.config.hidden_size)).astype(np.float32)
        logits, hidden = forward(net, own, target, ids, features)
        found = run(_feeds(net, ids, features))
        return max(_share(found["logits"][0], logits), _share(found["hidden"][0], hidden))


def _share(found: NDArray[np.float32], wanted: NDArray[np.float32]) -> float:
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


def _feeds(net: Eagle, ids: NDArray[np.int64], features: NDArray[np.float32]) -> dict[str, NDArray[np.generic]]:
    """Inputs of a "step" graph over an empty cache."""
    n = len(ids)
    bias = np.where(np.tri(n, dtype=bool), 0, -1e4).astype(np.float32)
    cache = np.zeros((1, net.config.kv_heads, n, net.config.head_dim), np.float32)
    feeds: dict[str, NDArray[np.generic]] = {
        "input_ids": ids[None].astype(np.int32),
        "features": features[None],
        "rows": np.arange(n, dtype=np.int32),
        "position_ids": np.arange(n, dtype=np.int64)[None],
        "seqlens_k": np.array([n - 1], np.int32),
        "total_len": np.array([n], np.int32),
        "bias": bias[None, None],
    }
    names = (f"past_{kind}.{i}" for i in range(net.config.layers) for kind in ("key", "value"))
    return feeds | dict.fromkeys(names, cache)


def _same_table(net: Eagle, target: Weights) -> bool:
    """Whether the drafter's embedding is the target's, as good as."""
    if net.config.hidden_size != net.target.hidden_size:
        return False
    return same_table(net.weights.dense(f"{PREFIX}{EMBED}"), target.dense("model.embed_tokens.weight"))


def weights_of(found: Mapping[str, StoredTensor]) -> FileWeights:
    """Under the names of the bundle; the maps are no weights."""
    return FileWeights({f"{PREFIX}{name}": t for name, t in found.items() if name not in (IDS, KNOWN)})


def sizes_of(config: ModelConfig, drafted: int, tensors: Mapping[str, StoredTensor]) -> dict[str, int | float | str]:
    """What `inspect` shows."""
    weights = [t.shape for name, t in tensors.items() if name not in (IDS, KNOWN)]
    counted = {"parameters": sum(math.prod(shape) for shape in weights)} if weights else {}
    return {
        "layers": config.layers,
        "hidden size": config.hidden_size,
        "heads": config.heads,
        "K/V heads": config.kv_heads,
        "drafted ids": drafted,
        **counted,
    }
