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
from spec_edge.export.draft import check_vocabulary, draft_fact, draft_folder
from spec_edge.export.drafters import attach, check_drafters
from spec_edge.export.memory import memory
from spec_edge.export.options import AUTO, BuildOptions, Rejected, Summary
from spec_edge.export.progress import Stages
from spec_edge.export.reference_law import LEAST_TOKENS, ReferenceLaw, reference_law
from spec_edge.export.staging import staged, staged_together
from spec_edge.export.verification import LIMITS, check_static, measured, provisional, within
from spec_edge.models.checkpoint import Checkpoint, ModelConfig
from spec_edge.models.contract import MANIFEST, BadUsage, DraftFact, Manifest, Parity, Quality, SpecError
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


def build_bundle(options: BuildOptions, progress: Stages) -> Summary:
    """Export the model, and its draft model if one is asked for; bundles appear only when every check has passed."""
    if options.draft is None:
        with staged(options.output, options.replace) as work:
            return _build(options, _open(options, options.model, progress), work, progress)
    folders = (options.output, draft_folder(options.output))
    with staged_together(folders, options.replace) as (work, beside):
        target, draft = (_open(options, model, progress) for model in (options.model, options.draft))
        check_vocabulary(target, draft)
        summary = _build(_for_draft(options, draft), draft, beside, progress)
        drafting = schema.read((beside / MANIFEST).read_bytes())
        fact = draft_fact(options.output, beside)
        return replace(_build(options, target, work, progress, fact, drafting), draft=summary)


def _for_draft(options: BuildOptions, draft: Checkpoint) -> BuildOptions:
    """The same options; a draft model that was trained for a shorter context keeps its own."""
    context = None if options.context is None else min(options.context, draft.config.context)
    output = draft_folder(options.output)
    return replace(options, model=options.draft or "", output=output, context=context, drafters={})


def _build(
    options: BuildOptions,
    checkpoint: Checkpoint,
    work: Path,
    progress: Stages,
    draft: DraftFact | None = None,
    drafting: Manifest | None = None,
) -> Summary:
    """draft, drafting: what the bundle records of its draft model, and that model's own manifest."""
    with ExitStack() as temporary:
        drafters = attach(options.drafters, checkpoint.config, temporary)
        plan = Plan(checkpoint, options.target, context_of(options, checkpoint.config), options.widths, drafters)
        summary, manifest = _checked(options, plan, work, progress, draft)
    return replace(summary, memory=memory(manifest, drafting))


def _checked(
    options: BuildOptions, plan: Plan, work: Path, progress: Stages, draft: DraftFact | None
) -> tuple[Summary, Manifest]:
    began = time.perf_counter()
    law = reference_law(plan.checkpoint, plan.context, progress.stage("fp32 reference"))
    chosen = _choose(options.precision, plan, law, work, progress)
    progress.stage("writing graphs")
    candidate = finish(chosen.candidate, plan, law, chosen.quality, chosen.parity)
    check_static(candidate, law.reference)
    check_drafters(candidate.drafters, provisional(candidate), plan.checkpoint.weights)
    candidate = replace(candidate, manifest=replace(candidate.manifest, draft=draft))
    _settle(candidate, work)
    open_bundle(work)
    return _summary(options, chosen, candidate, law, time.perf_counter() - began), candidate.manifest


def _open(options: BuildOptions, model: str, progress: Stages) -> Checkpoint:
    path = resolve(model, _late(progress, f"fetching {model}"))
    if options.context is not None and model == options.model:
        context_of(options, open_config(path)[1])  # the weights would be read for nothing
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


def _choose(precision: str, plan: Plan, law: ReferenceLaw, work: Path, progress: Stages) -> Chosen:
    """The precision asked for; with `auto` the smallest within the bounds."""
    rejected: list[Rejected] = []
    bounded = precision == AUTO
    for name in plan.target.precisions if bounded else (precision,):
        try:
            scheme(name).check(plan.checkpoint.weights)
        except SpecError as error:
            if not bounded:
                raise
            rejected.append(Rejected(name, error.message))
            continue
        progress.stage(f"packing {name}")
        candidate = start(plan, name, work / name, law.peaks)
        tick = progress.stage(f"measuring {name}", len(law.reference.ids))
        if (found := measured(candidate, law, bounded, tick)) is not None:
            return Chosen(candidate, *found, tuple(rejected))
        shutil.rmtree(candidate.folder)
        rejected.append(Rejected(name, f"KL above {LIMITS[0]} or top-1 below {LIMITS[1]}"))
    reasons = "; ".join(f"{r.precision}: {r.reason}" for r in rejected)
    raise SpecError(f"no precision of target {plan.target.name} keeps this model within the bounds ({reasons})")


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
        warnings=_warnings(chosen, law),
        seconds=round(seconds, 2),
        draft=None,
    )


def _warnings(chosen: Chosen, law: ReferenceLaw) -> tuple[str, ...]:
    warnings = []
    if not within(chosen.quality):
        warnings.append(
            f"precision {chosen.candidate.manifest.precision} is outside the bounds (KL {chosen.quality.kl:.3f} of "
            f"{LIMITS[0]}, top-1 {chosen.quality.top1:.3f} of {LIMITS[1]}): another, worse model; use --precision auto"
        )
    if len(law.reference.ids) < LEAST_TOKENS:
        warnings.append(f"the quality figures rest on {len(law.reference.ids)} tokens only, fewer than {LEAST_TOKENS}")
    return tuple(warnings)
