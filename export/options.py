"""What goes into an export and what comes out: the checked options and the summary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from spec_edge.export.memory import Memory
from spec_edge.models.contract import BadUsage, Parity, Quality, SpecError
from spec_edge.models.fetch import check_name
from spec_edge.models.plugins import known
from spec_edge.targets.target import Target, target

AUTO = "auto"
WIDEST = 64


@dataclass(frozen=True)
class BuildOptions:
    """What the user asked for, checked.

    context   None: 2048, or what the model was trained for if that is less
    draft     a model to export beside it, as its draft model; None: none
    drafters  path of the weights of each drafting method that brings some
    fallback  another target to export the model for, beside it; None: none
    heads     whether heads that come with the package for this very model are put in, where `drafters` has none
    drafts    whether this is the draft model of another: its answers are checked by that one
    parts     how many graphs the fixed-width network is cut into; None: as many as the target needs for its weights
    """

    model: str
    output: Path
    precision: str
    context: int | None
    widths: tuple[int, ...]
    target: Target
    replace: bool
    draft: str | None = None
    drafters: Mapping[str, Path] = field(default_factory=dict)
    fallback: Target | None = None
    heads: bool = True
    parts: int | None = None
    drafts: bool = False

    def with_shipped(self, heads: Mapping[str, Path]) -> Mapping[str, Path]:
        """Every drafter to put in. heads: the package's own for this model, for targets that take any width."""
        return {**(heads if self.heads and self.target.symbolic else {}), **self.drafters}


@dataclass(frozen=True)
class Rejected:
    """A precision that `auto` passed over, and why."""

    precision: str
    reason: str


@dataclass(frozen=True)
class Summary:
    """What was made. `bytes`: the whole folder; `seconds`: the whole export. `draft`, `fallback`: bundles beside it.

    memory  of the target and of each drafter, side by side
    """

    bundle: str
    model: str
    target: str
    precision: str
    context: int
    graphs: int
    bytes: int
    weights_bytes: int
    quality: Quality
    parity: Parity | None
    rejected: tuple[Rejected, ...]
    warnings: tuple[str, ...]
    seconds: float
    draft: Summary | None
    memory: tuple[Memory, ...] = ()
    fallback: Summary | None = None


def build_options(
    model: str,
    output: Path,
    precision: str = AUTO,
    context: int | None = None,
    widths: str | None = None,
    target_name: str = "cpu",
    replace: bool = False,
    draft: str | None = None,
    drafters: Mapping[str, Path] | None = None,
    fallback: str | None = None,
    heads: bool = True,
    parts: int | None = None,
) -> BuildOptions:
    """BadUsage for an unknown precision or target, widths that the target does not take, or a model that is not there.

    SpecError: the target takes no language model.
    """
    precisions = known("spec_edge.models.schemes", "SCHEME")
    if precision not in (AUTO, *precisions):
        raise BadUsage(f"unknown precision '{precision}'. Known: {AUTO}, {', '.join(precisions)}")
    profile = _offered(target_name)
    other = None if fallback is None else _offered(fallback)
    if other is not None and other.name == profile.name:
        raise BadUsage(f"--with-fallback names {other.name}, which is the --target itself")
    chosen = profile.widths if widths is None else _chosen_widths(widths, profile)
    for name in [model] if draft is None else [model, draft]:
        check_name(name)
    if missing := [path for path in (drafters or {}).values() if not path.exists()]:
        raise BadUsage(f"there is no file or folder '{missing[0]}' with a drafter's weights")
    return BuildOptions(
        model, output, precision, context, chosen, profile, replace, draft, drafters or {}, other, heads, parts
    )


def _offered(name: str) -> Target:
    """SpecError: the target takes no language model."""
    profile = target(name)
    if profile.refuses:
        raise SpecError(f"target {profile.name}: {profile.refuses}")
    return profile


def _chosen_widths(text: str, profile: Target) -> tuple[int, ...]:
    """BadUsage: a width that its compiler was not shown to take, or more graphs than it takes, all with the weights."""
    widths = parse_widths(text)
    allowed = profile.rules.widths
    if allowed is not None and (strange := sorted(set(widths) - set(allowed))):
        raise BadUsage(f"--widths {text}: target {profile.name} takes {', '.join(map(str, allowed))}, not {strange[0]}")
    if profile.most_graphs is not None and len(widths) >= profile.most_graphs:
        raise BadUsage(
            f"--widths {text} makes {len(widths)} graphs and a prefill, and target {profile.name} takes "
            f"{profile.most_graphs} at most, since each holds the weights once it is compiled; width 1 is always there"
        )
    return widths


def parse_widths(text: str) -> tuple[int, ...]:
    """ "2,4" -> (1, 2, 4): width 1 is plain decoding and always there."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 4 for part in parts):
        raise BadUsage(f"--widths must be whole numbers such as 1,2,4,8,16, not '{text}'")
    widths = sorted({1, *(int(part) for part in parts)})
    if widths[0] < 1 or widths[-1] > WIDEST:
        raise BadUsage(f"--widths must lie between 1 and {WIDEST}, not '{text}'")
    return tuple(widths)
