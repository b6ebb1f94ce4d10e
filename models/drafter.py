"""What a drafter with weights says about itself: `models/<kind>.py` holds one `DrafterKind` as `DRAFTER`.

Enters: a checkpoint as it lies on disk (`DrafterFiles`), and the target's shape. Leaves: an `OpenDrafter` that fits
that target, from which export takes sizes, stored weights and graphs. In the order in which export calls them:

    claims(files)                   whose checkpoint is it
    describe(files)                 what it says of itself, with or without tensors, for `inspect`
    open(files, target)             checked against the target; without tensors sizes still follow from the config
    drafter.tensors                 own tensors and their shapes: the memory plan is made of them
    drafter.store(out, room, ...)   own tensors into the bundle's weights file; gives the maker of the graphs
    make(target's Stored, room)     the graphs
    drafter.check(...)              a graph that was written, against numpy
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from math import sqrt
from typing import Any, Protocol, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray

from spec_edge.models.blockwise import BlockTensor
from spec_edge.models.checkpoint import ModelConfig, Weights
from spec_edge.models.contract import CacheFacts, FileFact, GraphSpec, Source, SpecError, TensorSpec
from spec_edge.models.family import Json
from spec_edge.models.forms import Profile, activation, step_activation
from spec_edge.models.planned import PlannedTensor, packed_like
from spec_edge.models.plugins import known
from spec_edge.models.safetensors_file import StoredTensor, check_kind
from spec_edge.models.schemes.scheme import Packed, scheme
from spec_edge.models.stored import EMBEDDING, HEAD, Stored, Writer

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]
Feeds: TypeAlias = Mapping[str, NDArray[Any]]
Run: TypeAlias = Callable[[Feeds], Mapping[str, NDArray[Any]]]
"""A graph on ONNX Runtime: inputs by name -> outputs by name."""


@dataclass(frozen=True)
class DrafterFiles:
    """A checkpoint on disk, nothing of it interpreted.

    name     of the folder or file, for messages
    config   config.json beside the weights; {} where there is none
    tensors  by the file's own names, values still on disk; {} where there is only a config.json (a plan needs no more)
    source   None where there are no tensors
    """

    name: str
    config: Json
    tensors: Mapping[str, StoredTensor]
    source: Source | None = None

    @property
    def shapes(self) -> Shapes:
        return {name: tensor.shape for name, tensor in self.tensors.items()}


@dataclass(frozen=True)
class FileWeights:
    """`Weights` of a drafter under names of its own choice: own name -> the file's tensor."""

    tensors: Mapping[str, StoredTensor]

    def names(self) -> frozenset[str]:
        return frozenset(self.tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.tensors[name].shape

    def dense(self, name: str) -> NDArray[np.float32]:
        check_kind(self.tensors[name], name)
        return self.tensors[name].dense()

    def blocks(self, name: str) -> BlockTensor | None:
        """None: nothing is quantised."""
        del name
        return None


@dataclass(frozen=True)
class Description:
    """What `inspect` says of a checkpoint.

    dialect      how its tensors are named, in words
    sizes        what there is to know in numbers, for people: heads, layers, parameters ...
    hidden_size, vocab_size  of the target that it fits; None: the checkpoint does not say
    missing      what it lacks, and where that comes from; what makes it unusable is in `problems`
    """

    dialect: str
    sizes: Mapping[str, int | float | str]
    hidden_size: int | None
    vocab_size: int | None
    target: str | None = None
    missing: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Room:
    """For which bundle graphs are made.

    profile    the target's (forms.Profile): any-width graphs where it is `symbolic`, in its `lowering`; static ones in
               its `static` lowering with its `prefill` chunk
    precision  the bundle's
    context    most positions
    widths     verify widths
    """

    profile: Profile
    precision: str
    context: int
    widths: tuple[int, ...]

    @property
    def activation(self) -> str:
        """numpy dtype of the static graphs' activations."""
        return activation(self.profile, self.precision)

    @property
    def step(self) -> str:
        """numpy dtype of the any-width graphs' activations."""
        return step_activation(self.profile, self.precision)


@dataclass(frozen=True)
class DrafterGraph:
    """A graph and its record but for the file. `name`: begins with the drafter's, it becomes the file's name."""

    name: str
    role: str
    lowering: str
    width: int | None
    past: int | None
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    borrows: tuple[str, ...]
    model: onnx.ModelProto

    def spec(self, network: str, file: FileFact) -> GraphSpec:
        """The bundle's record. `network`: the drafter's name in the bundle."""
        return GraphSpec(
            self.name,
            network,
            self.role,
            self.lowering,
            self.width,
            self.past,
            self.inputs,
            self.outputs,
            file,
            self.borrows,
        )


MakeGraphs: TypeAlias = Callable[[Stored, Room], Sequence[DrafterGraph]]


class OpenDrafter(Protocol):
    """A checkpoint that was checked against its target.

    reads       "hidden" or "taps": the target's output that it starts from
    taps        layers that it reads (see `ModelFacts.taps`); () where it reads `hidden`
    heads       as in `DrafterFact`
    cache       of its own K/V; None: it keeps none
    vocabulary  int32: the target's id of each drafted id, written to the bundle; None: the graphs give target ids
    tensors     own tensors as they will be stored (prefixed names) and their shapes, borrowed ones left out
    """

    @property
    def reads(self) -> str: ...
    @property
    def taps(self) -> tuple[int, ...]: ...
    @property
    def heads(self) -> int: ...
    @property
    def cache(self) -> CacheFacts | None: ...
    @property
    def vocabulary(self) -> NDArray[np.int32] | None: ...
    @property
    def tensors(self) -> Shapes: ...

    def planned(self) -> OpenDrafter:
        """The same with stand-ins for its tensors (models/planned.py), so that `store` gives the sizes and the graphs
        that an export of it would have, and reads nothing."""
        ...

    def store(self, out: Writer, room: Room, target: Weights) -> MakeGraphs:
        """Own tensors into the weights file, under keys that begin with the drafter's name and a point.

        `out.dtypes`: activation dtypes of the graphs to come. `room`: the same that the graphs are made for. `target`:
        what is only a copy of the target's is not stored again. SpecError: a value that cannot be stored.
        """
        ...

    def check(self, graph: GraphSpec, run: Run, target: Weights, precision: str) -> float | None:
        """Largest difference between a few random rows of this graph and a plain numpy forward with the weights as
        they were stored, as a share of the largest value; None: this graph is not checked. `target`: for what is
        borrowed, as it was stored."""
        ...


@dataclass(frozen=True)
class DrafterKind:
    """`models/<name>.py` holds one as `DRAFTER`.

    name      "medusa", "eagle", "eagle3": the file's, and `DrafterFact.kind`
    method    `DrafterFact.name`, the network of its graphs, `spec-export --<method>`, `spec-edge run --method <method>`
    claims    whether a checkpoint is of this kind, by its config and tensor names and shapes. Kinds must not overlap
    describe  for people; no error where something is missing
    open      (files, target) -> checked. SpecError with both numbers where hidden size, vocabulary or layers differ,
              and by name for a tensor or option that is missing or not understood. With `files.tensors` empty the
              config must do; `planned` comes before `store` then, and `check` never
    """

    name: str
    method: str
    claims: Callable[[DrafterFiles], bool]
    describe: Callable[[DrafterFiles], Description]
    open: Callable[[DrafterFiles, ModelConfig], OpenDrafter]


def kinds() -> tuple[DrafterKind, ...]:
    """Every kind there is, by name."""
    names = known("spec_edge.models", "DRAFTER")
    return tuple(import_module(f"spec_edge.models.{name.replace('-', '_')}").DRAFTER for name in names)


def kind_of(files: DrafterFiles) -> DrafterKind | None:
    """The kind that claims the checkpoint, or None."""
    return next((kind for kind in kinds() if kind.claims(files)), None)


def check_architectures(config: Json, where: str) -> None:
    """SpecError: a config.json whose `architectures` are no list of names."""
    found = config.get("architectures")
    if found is not None and not (isinstance(found, list) and all(isinstance(name, str) for name in found)):
        raise SpecError(f"{where}: config.json: 'architectures' must be a list of names, not {str(found)[:60]}")


def refuse(what: str, files: DrafterFiles, own: int, target: int) -> SpecError:
    """The error of a drafter that was made for another target: `refuse("hidden size", ...)`."""
    return SpecError(
        f"{files.name} does not fit this target: its {what} is {own}, the target's is {target}; "
        "use the model that it was trained for"
    )


SAME_TABLE = 0.01
"""A table whose root mean square difference from the target's is below this share of it is a copy: rounding of a copy
to 8 bits makes 0.005."""


def same_table(own: NDArray[np.float32], other: NDArray[np.float32]) -> bool:
    """Whether a drafter's embedding or lm_head [V, H] is the target's, as good as."""
    difference = own - other
    return sqrt(float(np.vdot(difference, difference))) < SAME_TABLE * sqrt(float(np.vdot(other, other)))


def borrowed_head(target: ModelConfig) -> str:
    """Name in `GraphSpec.borrows` of the matrix that gives the target's logits (`Stored.head`)."""
    return EMBEDDING if target.tied else HEAD


BLOCKS = "int4-all"
PRECISION = dict.fromkeys(("int4", "keep", "keep-head4"), BLOCKS) | dict.fromkeys(
    ("int4-channel", "int4-g128", "a16w8"), "int8-channel"
)
"""A drafter's own matrices, by the bundle's precision; as the bundle's where not named. Four bits in blocks of 32 keep
what is accepted (models/schemes/int4_all.py); with a scale for more inputs that is not known, so that those have eight.
The form stays the bundle's: one opset, and what its compiler takes."""


def own_scheme(precision: str, shape: tuple[int, ...]) -> str:
    """Scheme of a drafter's matrix; the schemes of blocks need inputs that are a multiple of 32."""
    name = PRECISION.get(precision, precision)
    return "fp16" if name in ("int8", BLOCKS) and shape[-1] % 32 else name


def pack_own(weights: Weights, name: str, precision: str) -> Packed:
    """A drafter's own matrix [N, K] as the bundle holds it; of one without values by its shape alone."""
    if isinstance(weights, FileWeights) and isinstance(weights.tensors[name], PlannedTensor):
        return packed_like(name, own_scheme(precision, weights.shape(name)), weights.shape(name))
    return scheme(own_scheme(precision, weights.shape(name))).pack(weights, name)


@dataclass(frozen=True)
class AsStored:
    """Weights with the values that the bundle holds: each matrix packed and read back, for checks.

    pack  (weights, name) -> as stored, for matrices; vectors pass through
    """

    weights: Weights
    pack: Callable[[Weights, str], Packed]

    def names(self) -> frozenset[str]:
        return self.weights.names()

    def shape(self, name: str) -> tuple[int, ...]:
        return self.weights.shape(name)

    def dense(self, name: str) -> NDArray[np.float32]:
        if len(self.shape(name)) != 2:
            return self.weights.dense(name)
        packed = self.pack(self.weights, name)
        return packed.astype(np.float32) if isinstance(packed, np.ndarray) else packed.dense()

    def blocks(self, name: str) -> BlockTensor | None:
        return self.weights.blocks(name)
