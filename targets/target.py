"""What a hardware profile is: frozen facts, no provider imported."""

from __future__ import annotations

from dataclasses import dataclass

from spec_edge.models.contract import SpecError
from spec_edge.models.plugins import find

LOWERINGS = ("portable", "fused")
PRECISIONS = ("keep", "int4", "int8", "fp16", "fp32")


@dataclass(frozen=True)
class Provider:
    """An ONNX Runtime execution provider and its options."""

    name: str
    options: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Target:
    """Where a bundle runs.

    providers   tried in order; the first that is present runs the graphs
    symbolic    the provider takes symbolic shapes: one any-width session per network (`lowering` says which form)
    lowering    of the any-width graph
    static      lowering of the fixed-width graphs
    activation  numpy dtype of activations in the fixed-width graphs at fp16 precision
    precisions  what `auto` may choose from
    widths      verify widths S, ascending, the first is 1
    prefill     rows of the prefill chunk
    buckets     past sizes P, ascending, each a multiple of 64
    proof       what can be shown without the hardware
    """

    name: str
    description: str
    providers: tuple[Provider, ...]
    symbolic: bool
    lowering: str
    static: str
    activation: str
    precisions: tuple[str, ...]
    widths: tuple[int, ...]
    prefill: int
    buckets: tuple[int, ...]
    proof: str

    def __post_init__(self) -> None:
        for value in (self.lowering, self.static):
            if value not in LOWERINGS:
                raise SpecError(f"target {self.name}: lowering '{value}' is not one of {', '.join(LOWERINGS)}")
        if unknown := set(self.precisions) - set(PRECISIONS):
            raise SpecError(f"target {self.name}: unknown precision {', '.join(sorted(unknown))}")
        if self.widths[:1] != (1,) or list(self.widths) != sorted(set(self.widths)):
            raise SpecError(f"target {self.name}: widths must ascend from 1, not {self.widths}")
        if any(p % 64 or p < 64 for p in self.buckets) or list(self.buckets) != sorted(set(self.buckets)):
            raise SpecError(f"target {self.name}: buckets must be ascending multiples of 64, not {self.buckets}")


def target(name: str) -> Target:
    """The profile in `targets/<name>.py`."""
    profile: Target = find("spec_edge.targets", "TARGET", name, "target").TARGET
    return profile
