"""What a hardware profile is: frozen facts, no provider imported.

`targets/<name>.py` holds one `Target` as `TARGET`. Export takes lowering, precision, widths and buckets from it and
checks every graph against its `Rules`; the runtime takes the chain of providers.
"""

from __future__ import annotations

from dataclasses import dataclass

from spec_edge.models.contract import BadUsage, SpecError
from spec_edge.models.plugins import find, known

LOWERINGS = ("portable", "fused")
DEVICES = ("cpu", "gpu", "npu")
DTYPES = ("float32", "float16")
COMPUTED = ("bfloat16",)
FREE_WIDTHS = 64
"""Widest verify run of a target that names no widths of its own."""

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Provider:
    """A file in runtime/providers/ (its name with `-` for `_`) and options in that provider's own names."""

    name: str
    options: Pairs = ()


@dataclass(frozen=True)
class Compiler:
    """What compiles this target's graphs ahead of time, also on a machine without the hardware.

    provider   of the chain: the one whose compiler it is
    arguments  which chip, in that compiler's own names; they come on top of the provider's options
    """

    provider: str
    arguments: Pairs


@dataclass(frozen=True)
class Rules:
    """What a target's compiler takes of a fixed-width graph. Export checks every graph of a bundle against them.

    operators        (domain, operators) that it takes, ONNX's own domain as ""; None: any
    opset            greatest of ONNX's own domain
    symbolic         whether a dimension may be symbolic
    zero_points      whether a quantised tensor may have a zero point other than 0
    negative_index   whether a constant index of Gather may count from the end
    past_multiple    P must be a multiple of it
    widths           verify widths that it takes; None: any
    prefills         prefill chunks that it takes; None: any
    """

    operators: tuple[tuple[str, frozenset[str]], ...] | None = None
    opset: int = 21
    symbolic: bool = False
    zero_points: bool = True
    negative_index: bool = False
    past_multiple: int = 64
    widths: tuple[int, ...] | None = None
    prefills: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Target:
    """Where a bundle runs.

    name          of its file, with `-` for `_`
    description   the hardware, in words
    device        "cpu", "gpu" or "npu": of the first provider
    providers     tried in order: each runs what the one before it could not
    proof         what is shown, and how, without the hardware; and what is not
    refuses       why nothing is exported for it; "": it is
    symbolic      the provider takes symbolic shapes: one any-width session per network runs the bundle. Otherwise only
                  the fixed-width graphs do, and one any-width graph in the static lowering serves the rest of the chain
    lowering      of the any-width graph, where `symbolic`
    static        lowering of the fixed-width graphs
    spelling      how the fixed-width graphs are rewritten (models/lowerings/<spelling>.py); "": not at all
    computes      (precision, type): there the compiler rounds every float32 value to that type, and quality is
                  measured with it
    half          precisions whose fixed-width graphs have float16 activations; the others have float32
    resident      the first provider keeps the cache in the device's memory: the bundle has a graph that writes to it
    step          activation dtype of the any-width graph at these precisions
    precisions    what `auto` may choose, in order: the first within the bounds is taken
    drafting      what `auto` takes for a draft model, the first that its weights suit; none of them: as `precisions`
    widths        verify widths S, ascending, the first is 1
    prefill       rows of the prefill chunk
    buckets       past sizes P, ascending, each a multiple of 64
    context       most positions of a bundle where nobody says; None: what most models are used with
    most_graphs   verify and prefill graphs of a bucket; None: any number. A compiled graph carries the weights
    most_buckets  likewise: the largest are kept
    most_weights  bytes of weights that one compiled graph may hold; the network is cut into parts that are smaller.
                  None: any number
    rules         of the fixed-width graphs
    by_precision  (precision, rules) of those that have others
    compiler      None: none that runs without the hardware
    """

    name: str
    description: str
    device: str
    providers: tuple[Provider, ...]
    proof: str
    refuses: str = ""
    symbolic: bool = False
    lowering: str = "portable"
    static: str = "portable"
    spelling: str = ""
    computes: Pairs = ()
    half: tuple[str, ...] = ()
    resident: bool = False
    step: str = "float32"
    precisions: tuple[str, ...] = ()
    drafting: tuple[str, ...] = ()
    widths: tuple[int, ...] = (1, 8)
    prefill: int = 128
    buckets: tuple[int, ...] = (1152,)
    context: int | None = None
    most_graphs: int | None = None
    most_buckets: int | None = None
    most_weights: int | None = None
    rules: Rules = Rules()
    by_precision: tuple[tuple[str, Rules], ...] = ()
    compiler: Compiler | None = None

    def __post_init__(self) -> None:
        for what, value, those in (
            ("lowering", self.lowering, LOWERINGS),
            ("lowering", self.static, LOWERINGS),
            ("device", self.device, DEVICES),
            ("activation", self.step, DTYPES),
            *(("type", to, COMPUTED) for _, to in self.computes),
        ):
            self._ensure(value in those, f"{what} '{value}' is not one of {', '.join(those)}")
        self._ensure(bool(self.providers) != bool(self.refuses), "either has providers or says why it refuses")
        names = [provider.name for provider in self.providers]
        self._ensure(len(set(names)) == len(names), f"a provider stands twice in {names}")
        compiler = self.compiler.provider if self.compiler else None
        self._ensure(compiler is None or compiler in names, f"the compiler's provider {compiler} is not in its chain")
        self._ensure(not (self.computes and self.symbolic), "only fixed-width graphs are rounded")
        self._ensure(not self.resident or self.symbolic, "only any-width graphs keep their cache on a device")
        self._ensure(bool(self.proof), "does not say what is proved")
        self._check_sizes()
        self._check_precisions()

    def _check_sizes(self) -> None:
        """Widths and buckets that no bundle could be made of, or that its own rules refuse."""
        widths, buckets, step = self.widths, self.buckets, self.rules.past_multiple
        self._ensure(widths[:1] == (1,) and _ascends(widths), f"widths must ascend from 1, not {widths}")
        self._ensure(
            _ascends(buckets) and all(p > 0 and p % 64 == 0 and p % step == 0 for p in buckets),
            f"buckets must be ascending multiples of {max(64, step)}, not {buckets}",
        )
        self._ensure(self.prefill > 0, f"the prefill chunk is {self.prefill}")
        self._ensure(
            self.most_graphs is None or len(widths) < self.most_graphs,
            f"{len(widths)} widths and a prefill are more than {self.most_graphs} graphs",
        )
        self._ensure(self.most_weights is None or self.most_weights > 0, f"graphs hold {self.most_weights} bytes")
        self._ensure(self.most_buckets is None or len(buckets) <= self.most_buckets, f"has {len(buckets)} buckets")
        for rules in (self.rules, *(rules for _, rules in self.by_precision)):
            refused = set(widths) - set(rules.widths or widths)
            self._ensure(not refused, f"its rules refuse its widths {sorted(refused)}")
            self._ensure(self.prefill in (rules.prefills or (self.prefill,)), "its rules refuse its prefill chunk")

    def _check_precisions(self) -> None:
        self._ensure(bool(self.precisions) or bool(self.refuses), "has no precision")
        self._ensure(len(set(self.precisions)) == len(self.precisions), f"{self.precisions} names one twice")
        stated = {*self.half, *(name for name, _ in (*self.by_precision, *self.computes))}
        unknown = stated - {*self.precisions, "fp16"}
        self._ensure(not unknown, f"has facts of {sorted(unknown)}, which it does not offer")
        # a drafter's graph of one lowering is either any-width or static, so both must have one activation dtype
        alike = not (self.symbolic and self.lowering == self.static and self.half) or self.step == "float16"
        self._ensure(alike, "its any-width graphs are float32 where its static ones are float16")

    def _ensure(self, holds: bool, otherwise: str) -> None:
        if not holds:
            raise SpecError(f"target {self.name}: {otherwise}")

    def rules_of(self, precision: str) -> Rules:
        """What the fixed-width graphs of a bundle in this precision must keep to."""
        return dict(self.by_precision).get(precision, self.rules)

    def rounds_to(self, precision: str) -> str:
        """The type that the compiler rounds float32 values to; "": none."""
        return dict(self.computes).get(precision, "")


def _ascends(values: tuple[int, ...]) -> bool:
    return bool(values) and list(values) == sorted(set(values))


def target(name: str) -> Target:
    """The profile in `targets/<name>.py`."""
    profile: Target = find("spec_edge.targets", "TARGET", name, "target").TARGET
    return profile


def recorded(name: str) -> Target:
    """The profile that a bundle names. SpecError: this version of spec-edge has none of that name."""
    try:
        return target(name)
    except BadUsage:
        known_here = "this version of spec-edge does not know; export the model again, or install a newer version"
        raise SpecError(f"this bundle is for target {ascii(name)[:60]}, which {known_here}") from None


def targets() -> tuple[Target, ...]:
    """Every profile there is, by name."""
    return tuple(target(name) for name in known("spec_edge.targets", "TARGET"))
