"""`spec-export build`: a model enters, a checked bundle leaves - whole, or not at all.

resolve -> open -> fp32 law of the check text -> pack, measure, choose the precision -> graphs -> publish
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from spec_edge.export.candidate import Candidate, Plan, finish, start
from spec_edge.export.draft import DRAFT, FALLBACK, check_vocabulary, draft_fact, fallback_fact, folder_beside
from spec_edge.export.drafters import attach, check_drafters
from spec_edge.export.memory import memory
from spec_edge.export.options import AUTO, BuildOptions, Rejected, Summary
from spec_edge.export.parts import parts_of
from spec_edge.export.progress import Stages
from spec_edge.export.reference_law import LEAST_TOKENS, ReferenceLaw, reference_law
from spec_edge.export.shipped import shipped
from spec_edge.export.staging import staged_together
from spec_edge.export.verification import DRAFT_LIMITS, LIMITS, check_static, measured, provisional, within
from spec_edge.models.checkpoint import Checkpoint, ModelConfig
from spec_edge.models.contract import MANIFEST, BadUsage, DraftFact, FallbackFact, Manifest, Parity, Quality, SpecError
from spec_edge.models.family import tensor_shapes
from spec_edge.models.fetch import resolve
from spec_edge.models.open import open_checkpoint, open_config
from spec_edge.models.schemes.scheme import scheme
from spec_edge.runtime import manifest as schema
from spec_edge.runtime.bundle import open_bundle

DEFAULT_CONTEXT = 2048


@dataclass(frozen=True)
class Chosen:
    """The precision that was taken, and what it was measured to be."""

    candidate: Candidate
    quality: Quality
    parity: Parity | None
    rejected: tuple[Rejected, ...]


@dataclass(frozen=True)
class Beside:
    """What a bundle records of those that were exported with it. `drafting`: the draft model's own manifest."""

    draft: DraftFact | None = None
    drafting: Manifest | None = None
    fallback: FallbackFact | None = None


def build_bundle(options: BuildOptions, progress: Stages) -> Summary:
    """Export the model, and what is asked for beside it; bundles appear only when every check has passed."""
    kinds = [kind for kind, wanted in ((DRAFT, options.draft), (FALLBACK, options.fallback)) if wanted is not None]
    folders = (options.output, *(folder_beside(options.output, kind) for kind in kinds))
    with staged_together(folders, options.replace) as (work, *others):
        places = dict(zip(kinds, others, strict=True))
        checkpoint = _open(options, options.model, progress)
        draft, beside = _draft(options, checkpoint, places.get(DRAFT), progress)
        law = _law(options, checkpoint, progress) if FALLBACK in places else None
        fallback, beside = _fallback(options, checkpoint, places.get(FALLBACK), progress, beside, law)
        summary = _build(options, checkpoint, work, progress, beside, law)
        return replace(summary, draft=draft, fallback=fallback)


def _draft(
    options: BuildOptions, target: Checkpoint, work: Path | None, progress: Stages
) -> tuple[Summary | None, Beside]:
    """The draft model in a bundle of its own. One that was trained for a shorter context keeps its own."""
    if options.draft is None or work is None:
        return None, Beside()
    draft = _open(options, options.draft, progress)
    check_vocabulary(target, draft)
    context = None if options.context is None else min(options.context, draft.config.context)
    output = folder_beside(options.output, DRAFT)
    own = replace(
        options,
        model=options.draft,
        output=output,
        context=context,
        drafters={},
        heads=False,
        parts=None,
        drafts=True,
    )
    summary = _build(own, draft, work, progress, Beside(), None)
    return summary, Beside(draft_fact(options.output, work), schema.read((work / MANIFEST).read_bytes()))


def _fallback(
    options: BuildOptions,
    checkpoint: Checkpoint,
    work: Path | None,
    progress: Stages,
    beside: Beside,
    law: ReferenceLaw | None,
) -> tuple[Summary | None, Beside]:
    """The same model, drafters and context for another target, in the best precision there."""
    other = options.fallback
    if other is None or work is None:
        return None, beside
    own = replace(
        options,
        output=folder_beside(options.output, FALLBACK),
        target=other,
        precision=AUTO,
        widths=other.widths,
        context=context_of(options, checkpoint.config),
        parts=None,
    )
    summary = _build(own, checkpoint, work, progress, beside, law)
    return summary, replace(beside, fallback=fallback_fact(options.output, work))


def _build(
    options: BuildOptions,
    checkpoint: Checkpoint,
    work: Path,
    progress: Stages,
    beside: Beside,
    law: ReferenceLaw | None,
) -> Summary:
    """law: of this checkpoint at this context, where it is known."""
    with ExitStack() as temporary:
        paths = options.with_shipped(shipped(checkpoint.source.sha256))
        drafters = attach(paths, checkpoint.config, temporary)
        context = context_of(options, checkpoint.config)
        parts = parts_of(options, checkpoint.config)
        plan = Plan(checkpoint, options.target, context, options.widths, drafters, parts)
        summary, manifest = _checked(options, plan, work, progress, beside, law)
    return replace(summary, memory=memory(manifest, beside.drafting))


def _law(options: BuildOptions, checkpoint: Checkpoint, progress: Stages) -> ReferenceLaw:
    return reference_law(checkpoint, context_of(options, checkpoint.config), progress.stage("fp32 reference"))


def _checked(
    options: BuildOptions, plan: Plan, work: Path, progress: Stages, beside: Beside, known: ReferenceLaw | None
) -> tuple[Summary, Manifest]:
    began = time.perf_counter()
    law = known or _law(options, plan.checkpoint, progress)
    chosen = _choose(options, plan, law, work, progress)
    progress.stage("writing graphs")
    candidate = finish(chosen.candidate, plan, law, chosen.quality, chosen.parity)
    check_static(candidate, law.reference)
    check_drafters(candidate.drafters, provisional(candidate), plan.checkpoint.weights)
    manifest = replace(candidate.manifest, draft=beside.draft, fallback=beside.fallback)
    candidate = replace(candidate, manifest=manifest)
    _settle(candidate, work)
    open_bundle(work)
    return _summary(options, chosen, candidate, law, time.perf_counter() - began), manifest


def _open(options: BuildOptions, model: str, progress: Stages) -> Checkpoint:
    path = resolve(model, _late(progress, f"fetching {model}"))
    if options.context is not None and model == options.model:
        context_of(options, open_config(path)[1])  # the weights would be read for nothing
    if options.parts is not None and model == options.model:
        parts_of(options, open_config(path)[1])
    return open_checkpoint(path, _late(progress, f"reading {path.name}"))


def _late(progress: Stages, text: str) -> Callable[[int, int], None]:
    """A (done, total) callback whose stage opens at its first call."""
    ticks: list[Callable[[int], None]] = []

    def tick(done: int, total: int) -> None:
        if not ticks:
            ticks.append(progress.stage(text, total))
        ticks[0](done)

    return tick


def context_of(options: BuildOptions, config: ModelConfig) -> int:
    """Most positions of the bundle. BadUsage: more than the model was trained for."""
    trained = config.context
    if options.context is None:
        return min(options.target.context or DEFAULT_CONTEXT, trained)
    if options.context > trained:
        raise BadUsage(f"--context {options.context} is more than the {trained} tokens that the model was trained for")
    return options.context


def _choose(options: BuildOptions, plan: Plan, law: ReferenceLaw, work: Path, progress: Stages) -> Chosen:
    """The precision asked for; with `auto` the smallest within the bounds, for a draft model those of its own first:
    what it drafts is checked, so that speed counts more there."""
    rejected: list[Rejected] = []
    bounded = options.precision == AUTO
    quick = plan.target.drafting if bounded and options.drafts else ()
    for name in (*quick, *plan.target.precisions) if bounded else (options.precision,):
        try:
            _suits(name, plan.checkpoint)
        except SpecError as error:
            if not bounded:
                raise
            rejected.append(Rejected(name, error.message))
            continue
        progress.stage(f"packing {name}")
        candidate = start(plan, name, work / name, law.peaks)
        tick = progress.stage(f"measuring {name}", len(law.reference.ids))
        limits = DRAFT_LIMITS if name in quick else LIMITS
        if (found := measured(candidate, plan.target, law, limits if bounded else None, tick)) is not None:
            return Chosen(candidate, *found, tuple(rejected))
        shutil.rmtree(candidate.folder)
        rejected.append(Rejected(name, f"KL above {limits[0]} or top-1 below {limits[1]}"))
    reasons = "; ".join(f"{r.precision}: {r.reason}" for r in rejected)
    raise SpecError(f"no precision of target {plan.target.name} keeps this model within the bounds ({reasons})")


def _suits(precision: str, checkpoint: Checkpoint) -> None:
    """SpecError: the scheme cannot store these weights, or matrices of these shapes."""
    how = scheme(precision)
    how.check(checkpoint.weights)
    for name, shape in tensor_shapes(checkpoint.config).items():
        if how.plan is not None and len(shape) == 2:
            how.plan(name, shape)


def _settle(candidate: Candidate, work: Path) -> None:
    """Move the candidate's files up into the bundle's folder and write its manifest."""
    for path in candidate.folder.iterdir():
        path.replace(work / path.name)
    candidate.folder.rmdir()
    (work / MANIFEST).write_bytes(schema.write(candidate.manifest))


def _summary(options: BuildOptions, chosen: Chosen, candidate: Candidate, law: ReferenceLaw, seconds: float) -> Summary:
    manifest = candidate.manifest
    return Summary(
        bundle=str(options.output),
        model=manifest.model.name,
        target=manifest.target,
        precision=manifest.precision,
        context=manifest.model.context,
        graphs=len(manifest.graphs),
        bytes=sum(fact.bytes for fact in schema.files(manifest)),
        weights_bytes=manifest.weights.bytes,
        quality=chosen.quality,
        parity=chosen.parity,
        rejected=chosen.rejected,
        warnings=_warnings(chosen, law, options.drafts and options.precision == AUTO),
        seconds=round(seconds, 2),
        draft=None,
    )


def _warnings(chosen: Chosen, law: ReferenceLaw, drafts: bool) -> tuple[str, ...]:
    warnings = []
    if not drafts and not within(chosen.quality):
        warnings.append(
            f"precision {chosen.candidate.manifest.precision} is outside the bounds (KL {chosen.quality.kl:.3f} of "
            f"{LIMITS[0]}, top-1 {chosen.quality.top1:.3f} of {LIMITS[1]}): another, worse model; use --precision auto"
        )
    if len(law.reference.ids) < LEAST_TOKENS:
        warnings.append(f"the quality figures rest on {len(law.reference.ids)} tokens only, fewer than {LEAST_TOKENS}")
    return tuple(warnings)
