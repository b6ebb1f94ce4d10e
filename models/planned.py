"""A model whose weights are not there: shapes enter, and everything leaves that an export of it would have but values.

Matrices stand as views of one zero, packed by their shape alone; the weights file only counts. One decoder layer is
stored and the others are its copies under other names, so that a plan of a large model takes a second and no memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from spec_edge.models.checkpoint import ModelConfig
from spec_edge.models.contract import RopeFacts, SpecError
from spec_edge.models.family import tensor_shapes
from spec_edge.models.plugins import known
from spec_edge.models.safetensors_file import StoredTensor
from spec_edge.models.schemes.scheme import Packed, scheme, zeros
from spec_edge.models.store import ALIGNMENT, Region, WeightStore
from spec_edge.models.stored import Stored, modules, store_model

T = TypeVar("T")


def plannable() -> tuple[str, ...]:
    """Precisions whose sizes follow from shapes; those of `keep` follow from the file."""
    names = known("spec_edge.models.schemes", "SCHEME")
    return tuple(name for name in names if scheme(name).plan is not None)


def packed_like(name: str, precision: str, shape: tuple[int, ...]) -> Packed:
    """What `scheme(precision)` makes of a matrix of this shape, with zeros for values."""
    plan = scheme(precision).plan
    if plan is None:
        raise SpecError(f"a plan knows {', '.join(plannable())}; the sizes of {precision} follow from the weights")
    return plan(name, shape)


class PlannedStore(WeightStore):
    """Counts what would be written."""

    def __init__(self, name: str) -> None:
        self.path = Path(name)
        self._regions = {}
        self._size = 0

    def add(self, key: str, array: NDArray[Any]) -> Region:
        """Where it would lie; nothing is kept of the array."""
        if key not in self._regions:
            start = -(-self._size // ALIGNMENT) * ALIGNMENT
            self._regions[key] = Region(key, array.dtype.name, array.shape, start, array.nbytes)
            self._size = start + array.nbytes
        return self._regions[key]

    @property
    def size(self) -> int:
        """Bytes so far."""
        return self._size


@dataclass(frozen=True)
class PlannedTensor(StoredTensor):
    """A tensor of a drafter that is not at hand."""

    def dense(self) -> NDArray[np.float32]:
        """Zeros."""
        return zeros(self.shape)

    def integers(self) -> NDArray[np.int64]:
        """A map of its length: every id itself."""
        return np.arange(int(np.prod(self.shape)), dtype=np.int64).reshape(self.shape)


def planned_tensors(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, StoredTensor]:
    """A tensor without values for each shape."""
    return {name: PlannedTensor(Path(), shape, "F32", 0, 0) for name, shape in shapes.items()}


@dataclass(frozen=True)
class PlannedWeights:
    """`Weights` of a target that is known by its config alone."""

    shapes: Mapping[str, tuple[int, ...]]

    def names(self) -> frozenset[str]:
        return frozenset(self.shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.shapes[name]

    def dense(self, name: str) -> NDArray[np.float32]:
        return zeros(self.shapes[name])

    def blocks(self, name: str) -> None:
        del name


def planned_weights(config: ModelConfig) -> PlannedWeights:
    """Every tensor of the network."""
    return PlannedWeights(tensor_shapes(config))


def planned_model(
    config: ModelConfig, rope: RopeFacts, precision: str, file: str, table_rows: int, dtypes: tuple[str, ...]
) -> tuple[Stored, int]:
    """What `store_model` would leave (the places in the file are not real), and its bytes.

    SpecError: a precision whose sizes do not follow from shapes, or one that does not suit them.
    """
    like = replace(scheme(precision), pack=lambda w, name: packed_like(name, precision, w.shape(name)))
    one = replace(config, layers=1)
    peaks = dict.fromkeys(modules(one), 1.0)
    stored = store_model(one, rope, planned_weights(one), like, PlannedStore(file), table_rows, dtypes, peaks)
    groups, norms = _copied(stored.groups, config.layers), _copied(stored.norms, config.layers)
    whole = replace(stored, groups=groups, norms=norms)
    regions = {region.key: region.length for region in _regions(whole)}
    return whole, sum(-(-length // ALIGNMENT) * ALIGNMENT for length in regions.values())


_FIRST = "model.layers.0."


def _copied(parts: Mapping[str, T], layers: int) -> dict[str, T]:
    """Layer 0's entries for every layer; others as they are."""
    out = {name: part for name, part in parts.items() if not name.startswith(_FIRST)}
    for i in range(layers):
        layer = f"model.layers.{i}."
        own = {name: part for name, part in parts.items() if name.startswith(_FIRST)}
        out |= {name.replace(_FIRST, layer): _renamed(part, layer) for name, part in own.items()}
    return out


def _renamed(value: T, layer: str) -> T:
    """The same with the keys of another layer in every region."""
    found: Any = value
    if isinstance(found, Region):
        found = replace(found, key=found.key.replace(_FIRST, layer))
    elif isinstance(found, tuple):
        found = tuple(_renamed(part, layer) for part in found)
    elif isinstance(found, dict):
        found = {name: _renamed(part, layer) for name, part in found.items()}
    elif is_dataclass(found) and not isinstance(found, type):
        found = replace(found, **{f.name: _renamed(getattr(found, f.name), layer) for f in fields(found)})
    renamed: T = found
    return renamed


def _regions(value: Any) -> Iterator[Region]:
    """Every region inside a record."""
    if isinstance(value, Region):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _regions(part)
    elif isinstance(value, tuple):
        for part in value:
            yield from _regions(part)
    elif is_dataclass(value):
        for f in fields(value):
            yield from _regions(getattr(value, f.name))
