"""A GGUF file enters; an opened `Checkpoint` leaves. Tensors have Hugging Face's names and row order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from spec_edge.models import gguf_blocks
from spec_edge.models.blockwise import BlockTensor
from spec_edge.models.checkpoint import Checkpoint, ModelConfig
from spec_edge.models.contract import Source, SpecError
from spec_edge.models.family import ROPE_FACTORS, Family, check_tensors, family, gguf_names
from spec_edge.models.gguf_file import GgufFile, TensorPlace, read_gguf, typed
from spec_edge.models.gguf_tokenizer import text_files
from spec_edge.models.hashing import Progress, sha256


@dataclass(frozen=True)
class GgufWeights:
    """`Weights` over a GGUF file. `orders`: Hugging Face's row order of the tensors that the file permutes."""

    file: GgufFile
    places: Mapping[str, TensorPlace]
    orders: Mapping[str, NDArray[np.intp]]

    def names(self) -> frozenset[str]:
        return frozenset(self.places)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.places[name].shape

    def dense(self, name: str) -> NDArray[np.float32]:
        """float32, [out, in] for a matrix."""
        place = self.places[name]
        values = gguf_blocks.dense(self.file.raw(place.name), place.kind).reshape(place.shape)
        return values[self.orders[name]] if name in self.orders else values

    def blocks(self, name: str) -> BlockTensor | None:
        """The file's quantised values, or None where the tensor is not a quantised matrix."""
        place = self.places[name]
        if len(place.shape) != 2:
            return None
        found = gguf_blocks.blocks(self.file.raw(place.name), place.kind)
        return found.rows(self.orders[name]) if found is not None and name in self.orders else found


def half_split_order(heads: int, head_dim: int) -> NDArray[np.intp]:
    """order[row in the half-split order] = row in the interleaved order, for `heads` * `head_dim` rows.

    Interleaved: rows 2 j and 2 j + 1 of a head rotate together. Half-split: rows j and j + D / 2 do.
    """
    rows = np.arange(heads * head_dim, dtype=np.intp)
    order: NDArray[np.intp] = rows.reshape(heads, head_dim // 2, 2).swapaxes(1, 2).ravel()
    return order


def _orders(config: ModelConfig) -> dict[str, NDArray[np.intp]]:
    query = half_split_order(config.heads, config.head_dim)
    key = half_split_order(config.kv_heads, config.head_dim)
    stem = "model.layers.{}.self_attn.{}_proj.weight"
    pairs = (("q", query), ("k", key))
    return {stem.format(i, name): order for i in range(config.layers) for name, order in pairs}


def _rope_factors(file: GgufFile, config: ModelConfig) -> ModelConfig:
    if ROPE_FACTORS not in file.tensors:
        return config
    place = file.tensors[ROPE_FACTORS]
    if place.shape != (config.head_dim // 2,) or place.kind != "F32":
        raise SpecError(f"{file.path}: tensor '{ROPE_FACTORS}' must be F32 of {config.head_dim // 2} values")
    factors = gguf_blocks.dense(file.raw(ROPE_FACTORS), place.kind).ravel()
    if (factors <= 0).any():
        raise SpecError(f"{file.path}: tensor '{ROPE_FACTORS}' holds a value that is not positive")
    return replace(config, rope_factors=tuple(float(f) for f in factors))


def _weights(file: GgufFile, config: ModelConfig, rules: Family) -> GgufWeights:
    names = gguf_names(config)
    places = {hf: file.tensors[own] for hf, own in names.items() if own in file.tensors}
    own_names = set(names.values()) | ({ROPE_FACTORS} if rules.rope_factors else set())
    check_tensors(config, {n: p.shape for n, p in places.items()}, file.tensors.keys() - own_names, str(file.path))
    for name, place in places.items():
        gguf_blocks.check_kind(place.kind, name)
    return GgufWeights(file, places, _orders(config) if rules.permuted_qk else {})


def _settings(file: GgufFile) -> tuple[Family, ModelConfig]:
    rules = family(typed(file.meta, "general.architecture", str), str(file.path))
    config = rules.config_from_gguf(file.meta, {name: place.shape for name, place in file.tensors.items()})
    return rules, _rope_factors(file, config) if rules.rope_factors else config


def gguf_config(path: Path) -> ModelConfig:
    """The settings of a GGUF file; its weights are not read."""
    return _settings(read_gguf(path))[1]


def open_gguf(path: Path, progress: Progress | None = None) -> Checkpoint:
    """The model in a GGUF file; SpecError in one line for a file or an option that is not supported.

    `progress` is called with (bytes done, bytes in all) while the file is hashed.
    """
    file = read_gguf(path)
    rules, config = _settings(file)
    weights = _weights(file, config, rules)
    text = text_files(file.meta, config.vocab_size)
    source = Source("gguf", path.name, file.size, sha256(path, progress))
    return Checkpoint(path.stem, config, weights, text, source)
