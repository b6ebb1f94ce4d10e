"""What a lowering is: the parts of the network that providers want written differently.

Enters: a `Site` and value names. Leaves: value names, and the inputs and outputs that the lowering's cache needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spec_edge.models.blocks import Site
from spec_edge.models.checkpoint import ModelConfig
from spec_edge.models.contract import Dim, TensorSpec
from spec_edge.models.forms import Form
from spec_edge.models.plugins import find
from spec_edge.models.stored import Norm, Stored


@dataclass(frozen=True)
class Build:
    """One graph being built: where nodes go, and which model in which form."""

    site: Site
    config: ModelConfig
    stored: Stored
    form: Form

    @property
    def width(self) -> Dim:
        """S."""
        return "S" if self.form.width is None else self.form.width

    @property
    def layers(self) -> range:
        """Those that the graph runs."""
        return self.form.layers(self.config.layers)

    def tensor(self, name: str, *shape: Dim) -> TensorSpec:
        """An input or output in the activation dtype."""
        return TensorSpec(name, self.form.activation, shape)


@dataclass(frozen=True)
class Lowering:
    """`models/lowerings/<name>.py` holds one as `LOWERING`.

    inputs    besides input_ids and rows
    outputs   besides logits and hidden
    norm      (build, x, weight, path) -> RMS norm of x
    add_norm  (build, x, y, weight, path) -> (x + y, RMS norm of x + y)
    attend    (build, projections, layer) -> attention output [S, heads * D]; the projections are one merged q|k|v
              value [S, (heads + 2 kv_heads) D] or three
    """

    inputs: Callable[[Build], tuple[TensorSpec, ...]]
    outputs: Callable[[Build], tuple[TensorSpec, ...]]
    norm: Callable[[Build, str, Norm, str], str]
    add_norm: Callable[[Build, str, str, Norm, str], tuple[str, str]]
    attend: Callable[[Build, tuple[str, ...], int], str]


def lowering(name: str) -> Lowering:
    """The lowering in `models/lowerings/<name>.py`; BadUsage names the known ones."""
    found: Lowering = find("spec_edge.models.lowerings", "LOWERING", name, "lowering").LOWERING
    return found
