"""A Hugging Face model folder enters (config.json, safetensors, tokenizer.json); an opened `Checkpoint` leaves.

Nothing of the folder is executed: no pickle, no Python files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from spec_edge.models.blockwise import BlockTensor
from spec_edge.models.checkpoint import Checkpoint, ModelConfig
from spec_edge.models.contract import BadUsage, Source, SpecError
from spec_edge.models.family import check_tensors, family, tensor_shapes
from spec_edge.models.hashing import Progress, sha256
from spec_edge.models.hf_text import read_json, text_files
from spec_edge.models.safetensors_file import StoredTensor, check_kind, read_safetensors

_ONE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_BUFFERS = ("rotary_emb.inv_freq", "self_attn.bias", "self_attn.masked_bias")
"""Endings of tensors that old checkpoints hold and no network reads."""
_DRAFTERS = ("medusa_head.",)
"""Beginnings of tensors of drafters that lie in their target's checkpoint: `--medusa` reads them."""


@dataclass(frozen=True)
class FolderWeights:
    """`Weights` over safetensors files. Nothing is quantised."""

    tensors: Mapping[str, StoredTensor]

    def names(self) -> frozenset[str]:
        return frozenset(self.tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.tensors[name].shape

    def dense(self, name: str) -> NDArray[np.float32]:
        """float32, [out, in] for a matrix."""
        return self.tensors[name].dense()

    def blocks(self, name: str) -> BlockTensor | None:
        """None: safetensors of these types are not quantised."""
        del name
        return None


def _component(name: object) -> str:
    """A shard's file name, which must be one path component."""
    if not isinstance(name, str) or not name.endswith(".safetensors") or set(name) & set('/\\:*?"<>|\0'):
        raise SpecError(f"{_INDEX} names the file {str(name)[:80]!r}; only .safetensors files in the folder are read")
    return name


def _sharded(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor of the index, each from exactly the one shard that the index names."""
    index = read_json(folder / _INDEX).get("weight_map")
    if not isinstance(index, dict) or not index:
        raise SpecError(f"{folder / _INDEX} has no 'weight_map'")
    shards = sorted({_component(name) for name in index.values()})
    found: dict[str, StoredTensor] = {}
    for shard in shards:
        if not (folder / shard).is_file():
            raise SpecError(f"{folder} is incomplete: it has no file {shard}")
        for name, tensor in read_safetensors(folder / shard).items():
            if name in found:
                raise SpecError(f"{folder}: tensor '{name}' is in two files, {found[name].path.name} and {shard}")
            if index.get(name) != shard:
                raise SpecError(f"{folder}: tensor '{name}' is in {shard}, but {_INDEX} says {index.get(name)}")
            found[name] = tensor
    if missing := sorted(index.keys() - found.keys()):
        raise SpecError(f"{folder}: tensor '{missing[0]}' is not in the file that {_INDEX} names")
    return found


def folder_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor of model.safetensors, or of the files that its index names."""
    if (folder / _ONE).is_file():
        return read_safetensors(folder / _ONE)
    if (folder / _INDEX).is_file():
        return _sharded(folder)
    raise SpecError(f"{folder} has no {_ONE} and no {_INDEX}: only safetensors weights are read, never pickles")


def folder_config(folder: Path) -> ModelConfig:
    """The settings of config.json; no weights are needed."""
    settings = read_json(folder / "config.json")
    kind = settings.get("model_type")
    if not isinstance(kind, str):
        raise SpecError(f"{folder / 'config.json'} has no 'model_type'")
    rules = family(kind, str(folder))
    classes = settings.get("architectures") or []
    if not isinstance(classes, list) or any(c not in rules.hf_architectures for c in classes):
        raise SpecError(f"{folder}: architecture {classes} is not supported; {rules.hf_architectures[0]} is")
    return rules.config_from_hf(settings)


def _weights(folder: Path, config: ModelConfig) -> FolderWeights:
    """The tensors of the network. A head beside tied embeddings is not read, as in transformers."""
    stored = folder_tensors(folder)
    wanted = tensor_shapes(config)
    found = {name: tensor for name, tensor in stored.items() if name in wanted}
    silent = {name for name in stored if name.endswith(_BUFFERS) or name.startswith(_DRAFTERS)}
    silent |= {"lm_head.weight"} if config.tied else set()
    if not config.tied and "lm_head.weight" not in found:
        raise SpecError(f"{folder} has no tensor 'lm_head.weight', and config.json says tie_word_embeddings = false")
    check_tensors(config, {n: t.shape for n, t in found.items()}, stored.keys() - wanted.keys() - silent, str(folder))
    for name, tensor in found.items():
        check_kind(tensor, name)
    return FolderWeights(found)


def _source(folder: Path, weights: FolderWeights, progress: Progress | None) -> Source:
    """Size and SHA-256 over the "name sha256" lines of the weight files, in the order of their names."""
    files = sorted({tensor.path for tensor in weights.tensors.values()})
    sizes = [file.stat().st_size for file in files]
    digest, done = hashlib.sha256(), 0
    for file, size in zip(files, sizes, strict=True):
        digest.update(f"{file.name} {sha256(file, _shifted(progress, done, sum(sizes)))}\n".encode())
        done += size
    return Source("safetensors", folder.name, sum(sizes), digest.hexdigest())


def _shifted(progress: Progress | None, before: int, total: int) -> Progress | None:
    return None if progress is None else lambda done, _: progress(before + done, total)


def open_folder(path: Path, progress: Progress | None = None) -> Checkpoint:
    """The model in a folder; SpecError in one line for a file or an option that is not supported.

    `progress` is called with (bytes done, bytes in all) while the weights are hashed.
    """
    folder = path.resolve()
    if not (folder / "config.json").is_file():
        raise BadUsage(f"{path} is not a model folder: it has no config.json")
    config = folder_config(folder)
    weights = _weights(folder, config)
    text = text_files(folder, config.vocab_size)
    return Checkpoint(folder.name, config, weights, text, _source(folder, weights, progress))
