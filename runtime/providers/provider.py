"""What a provider is: `runtime/providers/<name>.py` holds one as `PROVIDER`.

Enters: a graph of a bundle (`Job`). Leaves: the graph opened on a device (`Opened`), which sessions bind to their own
arrays. Importing a provider's file imports none of the packages that it needs: `find` says what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

from numpy.typing import NDArray

from spec_edge.models.contract import FileFact, GraphSpec, SpecError
from spec_edge.models.plugins import find as find_plugin

PACKAGE = "spec_edge.runtime.providers"

Array: TypeAlias = NDArray[Any]


class ProviderMissing(SpecError):
    """The provider cannot be used here: a package, a device or a driver is missing. Says which, and what to install."""


class ProviderFailed(SpecError):
    """The provider was there and failed: it refused a graph, its compiler died, or a run broke."""


@dataclass(frozen=True)
class Found:
    """A device that a provider can use now. driver: "" where unknown; versions: of the packages that take part."""

    device: str
    driver: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """A graph to open.

    model     the .onnx file; its SHA-256 was checked against graph.file
    weights   the external data file that it may read, beside it
    threads   None: one per physical core; read by CPU providers
    options   the target profile's options for this provider, by the provider's own names
    artefact  what `compile` made of this graph, to be opened instead of the .onnx file; None: there is none
    """

    model: Path
    graph: GraphSpec
    weights: FileFact
    threads: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    artefact: Path | None = None


class Opened(Protocol):
    """A graph on a device."""

    @property
    def placement(self) -> Mapping[str, int]:
        """Nodes by the short name of what runs them ("cpu", "openvino-npu"), after the provider's own fusions."""
        ...

    def bind(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> Callable[[], None]:
        """A run over these arrays, in place: each call reads the inputs and writes the outputs as they are then.

        Shapes and dtypes are the graph's (any size where a dimension is symbolic); an array may be input and output.
        Whoever keeps the run keeps the arrays. Outputs that are not named are not wanted. ProviderFailed: it is
        refused, here or in a run.
        """
        ...

    def close(self) -> None: ...


class Placed(Protocol):
    """An array in a device's memory, of fixed shape and dtype."""

    def write(self, array: Array) -> None:
        """All of it, from the CPU. ProviderFailed: another shape, or the device failed."""
        ...

    def read(self) -> Array:
        """On the CPU, as it is until the next run."""
        ...


@runtime_checkable
class Resident(Opened, Protocol):
    """A graph on a device whose inputs and outputs can stay there from run to run."""

    def place(self, shape: Sequence[int], dtype: str) -> Placed:
        """An array of zeros in the device's memory."""
        ...

    def bind_placed(
        self, inputs: Mapping[str, Array | Placed], outputs: Mapping[str, Array | Placed], again: bool
    ) -> Callable[[], None]:
        """As `bind`. again: this very run will come often, and everything in it is placed: it may be recorded."""
        ...


@dataclass(frozen=True)
class Provider:
    """A way to run graphs.

    name      as in --provider: that of its file, with `-` for `_`
    device    "cpu", "gpu" or "npu"
    symbolic  takes symbolic shapes; otherwise only graphs of fixed width and past
    alone     a row gives the same bits whatever rows stand beside it
    fused     takes the "fused" lowering, whose cache is rewritten in place
    resident  what it opens is `Resident`: the cache may stay in its memory
    install   what to install where it is missing, in words: "pip install openvino"
    find      (options) -> Found; ProviderMissing says why it cannot be used
    open      a graph as an `Opened`; ProviderFailed says what the provider said
    compile   (job, file) writes the compiled graph to `file` (whole or not at all), for `Job.artefact`; None: this
              provider is not asked. It may hang or abort: runtime/compiling.py calls it in a child, which then opens
              and runs the graph once
    suits     (job) -> "", or why this provider is not for a graph; a chain passes over it then without a word. It looks
              at the graph and the machine and tries nothing. None: it is for every graph
    keeps     what `compile` writes is a compiled graph. Otherwise it is only a sign that a child opened this graph and
              lived, since a driver that crashes or hangs must not do so in the app
    """

    name: str
    device: str
    symbolic: bool
    install: str
    find: Callable[[Mapping[str, str]], Found]
    open: Callable[[Job], Opened]
    compile: Callable[[Job, Path], None] | None = None
    suits: Callable[[Job], str] | None = None
    fused: bool = False
    alone: bool = False
    resident: bool = False
    keeps: bool = True


Opener: TypeAlias = Callable[[GraphSpec], Opened]
"""Opens graphs of one bundle on one provider: all that a session needs to know of either."""


def provider(name: str) -> Provider:
    """The provider in `runtime/providers/<name>.py`; BadUsage names the known ones."""
    found: Provider = find_plugin(PACKAGE, "PROVIDER", name.lower(), "provider").PROVIDER
    return found
