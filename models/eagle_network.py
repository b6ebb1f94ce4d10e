"""An EAGLE drafter in one form, whatever its files call things: EAGLE-1, 2 and 3 and the options of 3.1.

Enters: a checkpoint whose tensors have been given own names, and the target's shape. Leaves: an `Eagle`, checked, and
its tensors in the weights file (`StoredEagle`).

    kind "eagle"    x = fc [embed(next token), feature]; layer 0 has no input norm; no final norm; the target's lm_head
    kind "eagle3"   feature = fc [tapped layers], unless it is the drafter's own; layer 0 reads
                    [input_layernorm(embed), hidden_norm(feature)] (2 H) beside the residual `feature`

Sources: Li et al. 2024 (EAGLE, arXiv 2401.15077; EAGLE-2, arXiv 2406.16858) and 2025 (EAGLE-3, arXiv 2503.01840).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spec_edge.models.checkpoint import ModelConfig
from spec_edge.models.contract import CacheFacts, RopeFacts, SpecError
from spec_edge.models.drafter import DrafterFiles, FileWeights, Shapes, pack_own, refuse
from spec_edge.models.reference import inv_freq
from spec_edge.models.safetensors_file import StoredTensor
from spec_edge.models.schemes.scheme import Scheme
from spec_edge.models.store import Region
from spec_edge.models.stored import (
    ByDtype,
    Linear,
    Norm,
    Stored,
    Table,
    Writer,
    put_group,
    put_table,
    rotary_tables,
    shrink,
)

METHOD = "eagle"
"""The network's name in a bundle, and what its keys in the weights file begin with."""

PREFIX = f"{METHOD}."

SCRATCH = 128
"""Rows past the context for drafted ones: 12 levels of 10, more than any tree that pays."""

TOP = 16
"""Most children that the graphs give of a node."""

FEATURE_PEAK, RESIDUAL_PEAK = 2048.0, 32768.0
"""Largest magnitude that half-precision norms allow for: in the drafter, and in the target's residual stream."""

EMBED, HEAD, IDS, KNOWN = "embed_tokens.weight", "lm_head.weight", "d2t", "t2d"
_INTEGERS: Mapping[str, str] = {"I64": "<i8", "I32": "<i4", "BOOL": "|b1"}


@dataclass(frozen=True)
class Options:
    """What differs between EAGLE-3 checkpoints.

    norm_before_residual  the residual of layer 0 is the normed feature
    tap_norms             an RMS norm of each tapped layer before `fc` (`fc_norm`)
    norm_before_fc        one RMS norm over all of them (`input_norm`)
    norm_output           what is fed back is the hidden state after the final norm
    """

    norm_before_residual: bool = False
    tap_norms: bool = False
    norm_before_fc: bool = False
    norm_output: bool = False


@dataclass(frozen=True)
class Eagle:
    """A drafter that fits its target.

    kind      "eagle" or "eagle3"
    config    of its own decoder layers; `vocab_size`: drafted ids
    target    its target's
    taps      target layers whose inputs it reads; (): the last hidden state
    weights   by own names behind `PREFIX`
    ids       int32 [drafted ids]: the target's id of each; None where they are the same
    """

    kind: str
    config: ModelConfig
    target: ModelConfig
    taps: tuple[int, ...]
    options: Options
    weights: FileWeights
    ids: NDArray[np.int32] | None
    own_embedding: bool
    own_head: bool
    biased: frozenset[str] = frozenset()

    @property
    def read_size(self) -> int:
        """Numbers per row of what it reads of the target."""
        return max(len(self.taps), 1) * self.target.hidden_size

    @property
    def rope(self) -> RopeFacts:
        frequencies, scale = inv_freq(self.config)
        return RopeFacts(tuple(float(f) for f in frequencies), scale)

    @property
    def cache(self) -> CacheFacts:
        return CacheFacts(self.config.layers, self.config.kv_heads, self.config.head_dim, self.rope, SCRATCH)

    @property
    def top(self) -> int:
        """K: children that the graphs give."""
        return min(TOP, self.config.vocab_size)


def tensor_shapes(net: Eagle) -> dict[str, tuple[int, ...]]:
    """Every tensor that the network reads by its own name; borrowed ones and the map left out."""
    c, hidden = net.config, net.config.hidden_size
    wide = net.kind == "eagle3"
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (hidden, net.read_size if wide else hidden + net.read_size)}
    if net.options.tap_norms:
        shapes |= {f"fc_norm.{i}.weight": (net.target.hidden_size,) for i in range(len(net.taps))}
    if net.options.norm_before_fc:
        shapes["input_norm.weight"] = (net.read_size,)
    for i in range(c.layers):
        shapes |= _layer_shapes(c, i, 2 * hidden if wide and i == 0 else hidden)
    if wide:
        shapes |= dict.fromkeys(("layers.0.input_layernorm.weight", "layers.0.hidden_norm.weight"), (hidden,))
        shapes["norm.weight"] = (hidden,)
    if net.own_embedding:
        shapes[EMBED] = (net.target.vocab_size, hidden)
    if net.own_head:
        shapes[HEAD] = (c.vocab_size, hidden)
    return shapes | {f"{name}.bias": shapes[f"{name}.weight"][:1] for name in sorted(net.biased)}


def own_tensors(net: Eagle) -> dict[str, tuple[int, ...]]:
    """The same by the names of the bundle, with the map of a reduced vocabulary."""
    ids = {IDS: (net.config.vocab_size,)} if net.config.vocab_size < net.target.vocab_size else {}
    return {f"{PREFIX}{name}": shape for name, shape in (tensor_shapes(net) | ids).items()}


def _layer_shapes(c: ModelConfig, layer: int, reads: int) -> dict[str, tuple[int, ...]]:
    hidden, inner, q, kv = c.hidden_size, c.intermediate_size, c.heads * c.head_dim, c.kv_heads * c.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj": (q, reads),
        "self_attn.k_proj": (kv, reads),
        "self_attn.v_proj": (kv, reads),
        "self_attn.o_proj": (hidden, q),
        "post_attention_layernorm": (hidden,),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    if layer:
        shapes["input_layernorm"] = (hidden,)
    return {f"layers.{layer}.{name}.weight": shape for name, shape in shapes.items()}


def checked(net: Eagle, found: Shapes, name: str) -> Eagle:
    """The network itself. SpecError unless `found` (by own names) holds exactly its tensors in their shapes."""
    wanted = tensor_shapes(net)
    for tensor, shape in wanted.items():
        if tensor not in found:
            raise SpecError(f"{name} has no tensor '{tensor}': it is incomplete, or of a kind that is not supported")
        if found[tensor] != shape:
            raise SpecError(
                f"{name}: tensor '{tensor}' has shape {list(found[tensor])}; its configuration and the target ask for "
                f"{list(shape)}"
            )
    if extra := sorted(found.keys() - wanted.keys() - {IDS, KNOWN, EMBED}):
        raise SpecError(f"{name} holds tensors that this network does not read: {', '.join(extra[:4])}")
    return net


def fits(files: DrafterFiles, target: ModelConfig, reads: int, vocabulary: int) -> None:
    """SpecError with both numbers unless the drafter was made for a target of this hidden size and vocabulary.

    reads, vocabulary: the hidden size and the number of ids that it expects of its target.
    """
    if reads != target.hidden_size:
        raise refuse("hidden size", files, reads, target.hidden_size)
    if vocabulary != target.vocab_size:
        raise refuse("vocabulary", files, vocabulary, target.vocab_size)


def drafted_ids(tensors: Mapping[str, StoredTensor], drafted: int, vocabulary: int, name: str) -> NDArray[np.int32]:
    """int32 [drafted]: the target's id of each drafted id, from the offsets in `d2t`.

    SpecError: no map, one that leaves the vocabulary or names an id twice, or one that `t2d` contradicts.
    """
    if IDS not in tensors:
        raise SpecError(
            f"{name} drafts {drafted} of {vocabulary} ids and has no tensor '{IDS}' that says which; "
            "without it every draft would be wrong"
        )
    offsets = integers(tensors[IDS], f"{name}: tensor '{IDS}'")
    if offsets.shape != (drafted,):
        raise SpecError(f"{name}: tensor '{IDS}' has shape {list(offsets.shape)}, not [{drafted}]")
    ids = np.arange(drafted) + offsets
    if ids.min() < 0 or ids.max() >= vocabulary or len(np.unique(ids)) < drafted:
        raise SpecError(f"{name}: tensor '{IDS}' does not map {drafted} ids to different ones of {vocabulary}")
    if KNOWN in tensors:
        known = integers(tensors[KNOWN], f"{name}: tensor '{KNOWN}'")
        if known.shape != (vocabulary,) or not np.array_equal(np.flatnonzero(known), np.sort(ids)):
            raise SpecError(f"{name}: tensors '{IDS}' and '{KNOWN}' do not name the same ids")
    return ids.astype(np.int32)


def integers(tensor: StoredTensor, what: str) -> NDArray[np.int64]:
    """A map's values; SpecError if they are no integers."""
    if tensor.kind not in _INTEGERS:
        raise SpecError(f"{what} is of type {tensor.kind}; a map is one of {', '.join(_INTEGERS)}")
    with tensor.path.open("rb") as file:
        file.seek(tensor.offset)
        raw = file.read(tensor.nbytes)
    return np.frombuffer(raw, _INTEGERS[tensor.kind]).astype(np.int64).reshape(tensor.shape)


@dataclass(frozen=True)
class StoredEagle:
    """The drafter in the weights file, by own names. None: borrowed of the target, or (ids) the target's own."""

    groups: Mapping[str, tuple[Linear, ...]]
    norms: Mapping[str, Norm]
    cos: ByDtype
    sin: ByDtype
    embedding: Table | None
    head: Table | None
    ids: Region | None

    def beside(self, target: Stored) -> Stored:
        """As blocks and lowerings read it, with what is borrowed filled in."""
        return Stored(
            target.weights_file,
            target.accuracy_level,
            self.embedding or target.embedding,
            self.head or target.head,
            self.groups,
            self.norms,
            self.cos,
            self.sin,
            target.opset,
        )


def store(net: Eagle, out: Writer, precision: str, positions: int) -> StoredEagle:
    """Write the drafter's own tensors, packed as `pack_own` says. positions: rows of the cos and sin tables."""
    scheme = Scheme(precision, lambda weights, name: pack_own(weights, name, precision))
    groups = {
        path: put_group(net.weights, scheme, out, f"{PREFIX}{path}", names) for path, names in _modules(net).items()
    }
    cos, sin = rotary_tables(net.rope, positions, out, PREFIX)
    return StoredEagle(
        groups,
        {name: _put_norm(net, out, name) for name in _norms(net)},
        cos,
        sin,
        _put_table(net, out, precision, EMBED, True) if net.own_embedding else None,
        _put_table(net, out, precision, HEAD, False) if net.own_head else None,
        None if net.ids is None else out.store.add(f"{PREFIX}{IDS}", net.ids),
    )


def _modules(net: Eagle) -> dict[str, tuple[str, ...]]:
    """Projections that read the same input, by the path of their group."""
    groups: dict[str, tuple[str, ...]] = {"fc": ("fc",)}
    for i in range(net.config.layers):
        groups[f"layers.{i}.self_attn.qkv"] = ("q_proj", "k_proj", "v_proj")
        groups[f"layers.{i}.self_attn.o"] = ("o_proj",)
        groups[f"layers.{i}.mlp.gate_up"] = ("gate_proj", "up_proj")
        groups[f"layers.{i}.mlp.down"] = ("down_proj",)
    return groups


def _norms(net: Eagle) -> list[str]:
    vectors = (name for name, shape in tensor_shapes(net).items() if len(shape) == 1)
    return [name.removesuffix(".weight") for name in vectors if name.endswith(".weight")]


def _put_norm(net: Eagle, out: Writer, name: str) -> Norm:
    gamma = net.weights.dense(f"{PREFIX}{name}.weight")
    reads_target = name.startswith(("fc_norm", "input_norm"))
    return Norm(out.small(f"{PREFIX}{name}", gamma), shrink(RESIDUAL_PEAK if reads_target else FEATURE_PEAK))


def _put_table(net: Eagle, out: Writer, precision: str, name: str, gathered: bool) -> Table:
    packed = pack_own(net.weights, f"{PREFIX}{name}", precision)
    return put_table(packed, out, f"{PREFIX}{name.removesuffix('.weight')}", gathered)
