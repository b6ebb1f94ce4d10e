"""Which graphs a bundle holds, and what goes in and out of each.

Enters: what a target offers (`Profile`), the precision, the context and the widths. Leaves: `Form`s; a form and a
model's shape give the graph's `Signature`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from spec_edge.models.contract import FileFact, GraphSpec, SpecError, TensorSpec, layers_of, taps_of

ROLES = ("step", "verify", "prefill")
BUCKET_STEP = 64
SCRATCH = 64
"""Rows of the fused cos and sin tables past the context: room for drafted rows at the very end of it."""


class Profile(Protocol):
    """What `forms` reads of a target (see targets/target.py for the meanings)."""

    @property
    def symbolic(self) -> bool: ...
    @property
    def lowering(self) -> str: ...
    @property
    def static(self) -> str: ...
    @property
    def half(self) -> tuple[str, ...]: ...
    @property
    def step(self) -> str: ...
    @property
    def prefill(self) -> int: ...
    @property
    def buckets(self) -> tuple[int, ...]: ...
    @property
    def most_buckets(self) -> int | None: ...


@dataclass(frozen=True)
class Form:
    """One way to write the network down as a graph.

    role        "step", "verify" or "prefill" (see `GraphSpec`)
    lowering    "portable" or "fused"
    width       rows S; None (symbolic) for a step, fixed for the others
    past        P (portable) or M (fused) slots; None where symbolic, fixed for verify and prefill
    context     rows of the cos and sin tables of a fused graph: M must not exceed it
    activation  "float32" or "float16": dtype of activations, masks, cache and logits
    taps        layers whose input the graph gives as output `taps` (see `ModelFacts`)
    part, parts  which of how many graphs the network is cut into (see `GraphSpec`)
    """

    role: str
    lowering: str
    width: int | None
    past: int | None
    context: int
    activation: str = "float32"
    taps: tuple[int, ...] = ()
    part: int = 0
    parts: int = 1

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise SpecError(f"a graph's role is one of {', '.join(ROLES)}, not '{self.role}'")
        if (self.role == "step") != (self.width is None) or (self.role != "step" and self.past is None):
            raise SpecError(f"a {self.role} graph of width {self.width} and past {self.past} is not defined")
        if self.activation not in ("float32", "float16"):
            raise SpecError(f"activations are float32 or float16, not '{self.activation}'")
        if not 0 <= self.part < self.parts or (self.parts > 1 and (self.width is None or self.lowering != "portable")):
            raise SpecError(f"a {self.lowering} {self.role} graph cannot be part {self.part} of {self.parts}")

    @property
    def name(self) -> str:
        """`step-fused`, `verify-portable-s8-p512`, `verify-portable-s8-p512-1of2`."""
        sizes = [f"{k}{n}" for k, n in (("s", self.width), ("p", self.past)) if n is not None]
        cut = [f"{self.part + 1}of{self.parts}"] if self.parts > 1 else []
        return "-".join([self.role, self.lowering, *sizes, *cut])

    @property
    def last(self) -> bool:
        """Whether the graph ends in logits."""
        return self.part + 1 == self.parts

    def layers(self, count: int) -> range:
        """Those of a network of `count` that this graph runs."""
        return layers_of(count, self.part, self.parts)

    def own_taps(self, count: int) -> tuple[int, ...]:
        """Those of `taps` that this graph gives: what enters its layers, and in the last one what leaves them."""
        return taps_of(self.taps, count, self.part, self.parts)


@dataclass(frozen=True)
class Signature:
    """A graph's inputs and outputs: everything of a `GraphSpec` but the file."""

    form: Form
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def spec(self, network: str, file: FileFact) -> GraphSpec:
        """The bundle's record of this graph, once it lies in `file`."""
        f = self.form
        sizes = (f.width, f.past)
        return GraphSpec(
            f.name, network, f.role, f.lowering, *sizes, self.inputs, self.outputs, file, part=f.part, parts=f.parts
        )


def rounded(context: int) -> int:
    """`context` rounded up to the step of the buckets."""
    return -(-context // BUCKET_STEP) * BUCKET_STEP


def buckets(profile: Profile, context: int) -> tuple[int, ...]:
    """Past sizes P, ascending: the target's own below the rounded context, then the rounded context itself.

    Where the target takes only so many, the largest.
    """
    top = rounded(context)
    sizes = (*(p for p in profile.buckets if p < top), top)
    return sizes[-(profile.most_buckets or len(sizes)) :]


def activation(profile: Profile, precision: str) -> str:
    """dtype of the fixed-width graphs' activations."""
    return "float16" if precision in profile.half else "float32"


def step_activation(profile: Profile, precision: str) -> str:
    """dtype of the any-width graphs' activations."""
    return profile.step if precision in profile.half else "float32"


def steps(profile: Profile) -> tuple[str, ...]:
    """Lowerings of the any-width graphs.

    Where the target takes symbolic shapes, its own and the static one, so that both can be compared. Elsewhere the
    static one alone: the providers behind the first run it, over the same weights.
    """
    return tuple(dict.fromkeys((profile.lowering, profile.static))) if profile.symbolic else (profile.static,)


def forms(
    profile: Profile, precision: str, context: int, widths: Sequence[int], taps: tuple[int, ...] = (), parts: int = 1
) -> tuple[Form, ...]:
    """Every graph of a bundle: the any-width ones, then the static ones, each cut into so many parts."""
    table = rounded(context) + SCRATCH
    dtype = step_activation(profile, precision)
    wide = [Form("step", lowering, None, None, table, dtype, taps) for lowering in steps(profile)]
    dtype = activation(profile, precision)
    sizes = [("verify", s) for s in widths] + [("prefill", profile.prefill)]
    static = [
        Form(role, profile.static, s, p, table, dtype, taps, part, parts)
        for p in buckets(profile, context)
        for role, s in sizes
        for part in range(parts)
    ]
    return (*wide, *static)
