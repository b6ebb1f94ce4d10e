"""What `spec-export train` was asked for, checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from spec_edge.models.contract import BadUsage, SpecError
from spec_edge.models.fetch import check_name
from spec_edge.models.plugins import known

if TYPE_CHECKING:
    import torch

TOKENS = 1_000_000
RATES = {"eagle": 1e-3, "medusa": 1e-3}
BATCHES = {"eagle": 1024, "medusa": 2048}
MOST_HEADS = 10
NEEDS = "training needs torch and safetensors; install them: pip install 'spec-edge[export,train]'"


@dataclass(frozen=True)
class TrainOptions:
    """kind: "eagle" or "medusa"; form: "eagle3" or "eagle1". Exactly one of tokens and minutes ends the run.

    tokens  of answers to generate; they are trained on `passes` times
    cache   folder of texts and checkpoints
    start   heads to go on from; None: fresh ones
    """

    kind: str
    form: str
    model: str
    output: Path
    prompts: Path | None
    minutes: float | None
    tokens: int
    passes: int
    heads: int
    draft_vocab: int
    inner: int | None
    device: torch.device
    precision: str
    seed: int
    resume: bool
    cache: Path
    start: Path | None
    rate: float
    batch: int
    replace: bool

    @property
    def name(self) -> str:
        return self.form if self.kind == "eagle" else self.kind


def train_options(
    kind: str,
    model: str,
    output: Path,
    prompts: Path | None = None,
    minutes: float | None = None,
    tokens: int | None = None,
    passes: int = 2,
    heads: int = 4,
    draft_vocab: int = 4096,
    inner: int | None = None,
    device: str = "auto",
    form: str = "eagle3",
    precision: str = "auto",
    seed: int = 0,
    resume: bool = False,
    cache: Path | None = None,
    start: Path | None = None,
    rate: float | None = None,
    batch: int | None = None,
    replace: bool = False,
) -> TrainOptions:
    """SpecError: torch is missing. BadUsage: options contradict each other, or a file or model is not there."""
    check_name(model)
    if minutes is not None and tokens is not None:
        raise BadUsage("--minutes and --tokens both end the run; give one of them")
    if prompts is not None and not prompts.is_file():
        raise BadUsage(f"there is no file --prompts {prompts}")
    if start is not None and not start.exists():
        raise BadUsage(f"there are no heads at --from {start}")
    if precision != "auto" and precision not in (names := known("spec_edge.models.schemes", "SCHEME")):
        raise BadUsage(f"unknown precision '{precision}'. Known: auto, {', '.join(names)}")
    return TrainOptions(
        kind=kind, form=form, model=model, output=output, prompts=prompts, minutes=minutes, tokens=tokens or TOKENS,
        passes=passes, heads=heads, draft_vocab=draft_vocab, inner=inner, device=_device(device), precision=precision,
        seed=seed, resume=resume, cache=cache or output.with_name(f"{output.name}.training"), start=start,
        rate=rate or RATES[kind], batch=batch or BATCHES[kind], replace=replace,
    )  # fmt: skip


def _device(name: str) -> torch.device:
    try:
        import safetensors.torch  # noqa: F401
        import torch
    except ImportError:
        raise SpecError(NEEDS) from None
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise BadUsage(f"--device {name} is not there: {str(error).splitlines()[0][:120]}") from None
    return device
