"""Medusa heads: several small networks that each read the target's last hidden state and predict one later token.

Enters: a checkpoint of any dialect (models/medusa_heads.py). Leaves: heads that fit the target, their matrices and
their graph (models/medusa_graph.py), and the same heads in numpy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import erf, prod, sqrt

import numpy as np
from numpy.typing import NDArray

from spec_edge.models.checkpoint import ModelConfig, Weights
from spec_edge.models.contract import CacheFacts, GraphSpec, SpecError
from spec_edge.models.drafter import (
    AsStored,
    Description,
    DrafterFiles,
    DrafterKind,
    FileWeights,
    MakeGraphs,
    Room,
    Run,
    Shapes,
    pack_own,
    refuse,
    same_table,
)
from spec_edge.models.medusa_graph import NAME, Heads, graphs, reduced, store_heads
from spec_edge.models.medusa_heads import Layout, claims, layout, number, planned
from spec_edge.models.planned import planned_tensors
from spec_edge.models.safetensors_file import check_kind
from spec_edge.models.stored import Writer

F32 = NDArray[np.float32]


@dataclass(frozen=True)
class Medusa:
    """An `OpenDrafter`."""

    own: Heads

    reads: str = "hidden"
    taps: tuple[int, ...] = ()
    cache: CacheFacts | None = None
    vocabulary: NDArray[np.int32] | None = None

    @property
    def heads(self) -> int:
        return self.own.count

    @property
    def tensors(self) -> Shapes:
        return {f"{NAME}.{name}": self.own.shapes[name] for name in sorted(self.own.layout.names)}

    def planned(self) -> Medusa:
        # a shared lm_head of the target's size is nearly always its copy, which an export finds and leaves out
        own = self.own if _shared_output(self.own) is None else _borrowing(self.own)
        files = replace(own.files, tensors=planned_tensors(own.shapes))
        return replace(self, own=replace(own, files=files))

    def store(self, out: Writer, room: Room, target: Weights) -> MakeGraphs:
        heads = _borrowing(self.own) if _is_copy(self.own, target) else self.own
        own = store_heads(heads, out, room.precision)
        return lambda stored, room: graphs(heads, own, stored, room)

    def check(self, graph: GraphSpec, run: Run, target: Weights, precision: str) -> float | None:
        heads = _borrowing(self.own) if graph.borrows else self.own
        own = AsStored(FileWeights(self.own.files.tensors), lambda weights, name: pack_own(weights, name, precision))
        rng = np.random.default_rng(0)
        worst = 0.0
        for _ in range(3):
            hidden = rng.normal(size=(1, 1, self.own.target.hidden_size)).astype(graph.inputs[0].dtype)
            out = run({"hidden": hidden})
            laws = reference(heads, own, target, hidden[0, 0].astype(np.float32))
            worst = max(worst, _difference(laws, out["top_ids"][0], out["top_logprobs"][0]))
        return worst


def _difference(laws: F32, ids: NDArray[np.int32], values: F32) -> float:
    """Largest error of the values, and shortfall of the chosen tokens, as a share of the largest log-probability."""
    at = np.take_along_axis(laws, ids.astype(np.int64), 1)
    best = -np.sort(-laws, axis=1)[:, : ids.shape[1]]
    return float(max(np.abs(at - values).max(), (best - at).max()) / np.abs(best).max())


def _shared_output(own: Heads) -> str | None:
    """The matrix of the target's size that gives the logits of all heads; None: there is no such matrix."""
    outputs = {(head.output, head.output_bias) for head in own.layout.heads}
    name, bias = next(iter(outputs))
    alone = len(outputs) == 1 and len(own.layout.heads) > 1 and name is not None and bias is None
    return name if alone and name and own.shapes[name][0] == own.target.vocab_size else None


def _is_copy(own: Heads, target: Weights) -> bool:
    """Whether a shared lm_head is the target's, as good as."""
    name = _shared_output(own)
    return name is not None and same_table(FileWeights(own.files.tensors).dense(name), target.dense(_table(own.target)))


def _borrowing(own: Heads) -> Heads:
    """The same heads with the target's lm_head."""
    heads = tuple(replace(head, output=None) for head in own.layout.heads)
    return replace(own, layout=replace(own.layout, heads=heads))


def _table(target: ModelConfig) -> str:
    """Name of the matrix that gives the target's logits."""
    return "model.embed_tokens.weight" if target.tied else "lm_head.weight"


# Opening


def _open(files: DrafterFiles, target: ModelConfig) -> Medusa:
    _sizes_of_config(files, target)
    shapes = files.shapes or planned(files.config, target.hidden_size, target.vocab_size)
    heads = layout(files, shapes)
    for name in sorted(heads.names & files.tensors.keys() - {heads.token_map}):
        check_kind(files.tensors[name], name)
    hidden, inner = target.hidden_size, next(iter(shapes[heads.heads[0].blocks[0].weight]), 0)
    for head in heads.heads:
        for at, block in enumerate(head.blocks):
            wanted = (inner, hidden if at == 0 else inner)
            _matrix(files, shapes, block.weight, block.bias, wanted)
    if heads.residual and inner != hidden:
        raise refuse("hidden size", files, inner, hidden)
    reduced_to = _map_length(files, shapes, heads, target)
    for head in heads.heads:
        if head.output is not None:
            rows = next(iter(shapes[head.output]), 0)
            if rows not in (target.vocab_size, reduced_to):
                raise refuse("vocabulary", files, rows, target.vocab_size)
            _matrix(files, shapes, head.output, head.output_bias, (rows, inner))
    return Medusa(Heads(files, shapes, heads, target, reduced_to or target.vocab_size))


def _sizes_of_config(files: DrafterFiles, target: ModelConfig) -> None:
    for key, what, wanted in (
        ("hidden_size", "hidden size", target.hidden_size),
        ("vocab_size", "vocabulary", target.vocab_size),
    ):
        if (found := number(files.config, key, wanted)) != wanted:
            raise refuse(what, files, found, wanted)


def _matrix(files: DrafterFiles, shapes: Shapes, weight: str, bias: str | None, wanted: tuple[int, int]) -> None:
    shape = shapes[weight]
    if len(shape) == 2 and shape[1] != wanted[1]:
        raise refuse("hidden size", files, shape[1], wanted[1])
    if shape != wanted:
        raise SpecError(f"{files.name}: tensor '{weight}' has shape {list(shape)}, not {list(wanted)}")
    if bias is not None and shapes[bias] != wanted[:1]:
        raise SpecError(f"{files.name}: tensor '{bias}' has shape {list(shapes[bias])}, not {list(wanted[:1])}")


def _map_length(files: DrafterFiles, shapes: Shapes, heads: Layout, target: ModelConfig) -> int | None:
    """Ids of the reduced vocabulary; SpecError where the map is none of this target's."""
    if heads.token_map is None:
        return None
    length = prod(shapes[heads.token_map])
    if files.tensors:
        ids = files.tensors[heads.token_map].integers().ravel()
        if not 0 <= ids.min(initial=0) <= ids.max(initial=0) < target.vocab_size:
            raise refuse("vocabulary", files, int(ids.max(initial=0)) + 1, target.vocab_size)
        if len(np.unique(ids)) != length or not length:
            raise SpecError(f"{files.name}: 'token_map' names a token twice, or none")
    return length


def _describe(files: DrafterFiles) -> Description:
    config = files.config
    base = config.get("base_model_name_or_path")
    asked = config.get("medusa_num_heads", config.get("num_heads"))
    missing = () if files.tensors else ("the weights: sizes follow from config.json alone",)
    try:
        shapes = files.shapes or planned(config, 1, 1)
        heads = layout(files, shapes)
    except SpecError as error:
        return Description("Medusa", {}, None, None, _text(base), missing, (error.message,))
    sizes: dict[str, int | float | str] = {"heads": len(heads.heads), "layers": len(heads.heads[0].blocks)}
    if files.tensors and isinstance(asked, int) and asked != len(heads.heads):
        sizes["heads by config.json"] = asked
    output = heads.heads[0].output
    shared = len({head.output for head in heads.heads}) == 1 and len(heads.heads) > 1
    sizes["lm_head"] = "the target's" if output is None else "one for all heads" if shared else "one of each head"
    if heads.token_map is not None:
        sizes["reduced vocabulary"] = prod(shapes[heads.token_map])
    if files.tensors:
        sizes["parameters"] = sum(prod(shapes[name]) for name in heads.names)
    known = files.shapes
    hidden = next(reversed(known.get(heads.heads[0].blocks[0].weight, ())), config.get("hidden_size"))
    rows = None if output is None or heads.token_map is not None else next(iter(known.get(output, ())), None)
    vocab = rows or config.get("vocab_size")
    return Description(
        heads.dialect,
        sizes,
        hidden if isinstance(hidden, int) else None,
        vocab if isinstance(vocab, int) else None,
        _text(base),
        missing,
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


# The same in numpy


def reference(drafter: Heads, weights: Weights, target: Weights, hidden: F32) -> F32:
    """Log-probabilities of all heads for one hidden state [H]: float32 [N, V], -inf outside a reduced vocabulary."""
    laws = [_reference_head(drafter, weights, target, hidden, i) for i in range(drafter.count)]
    return np.stack(laws)


def _reference_head(drafter: Heads, weights: Weights, target: Weights, x: F32, i: int) -> F32:
    head, config = drafter.layout.heads[i], drafter.target
    for block in head.blocks:
        y = weights.dense(block.weight) @ x + (weights.dense(block.bias) if block.bias else 0)
        with np.errstate(over="ignore"):
            x = (x + y / (1 + np.exp(-y)) if drafter.layout.residual else _gelu(y)).astype(np.float32)
    if head.output is None:
        table = target.dense(_table(config))
    else:
        table = reduced(drafter, weights, head.output).dense(head.output)
    logits = table @ x + (weights.dense(head.output_bias) if head.output_bias else 0)
    if (ids := drafter.reduced_ids()) is not None:
        part = logits[ids] if head.output is None else logits
        logits = np.full(config.vocab_size, -np.inf, np.float32)
        logits[ids] = part
    shifted = logits.astype(np.float64) - logits.max()
    law: F32 = (shifted - np.log(np.exp(shifted).sum())).astype(np.float32)
    return law


def _gelu(y: F32) -> F32:
    return np.array([0.5 * v * (1 + erf(v / sqrt(2))) for v in y.tolist()], np.float32)


DRAFTER = DrafterKind(NAME, NAME, claims, _describe, _open)
