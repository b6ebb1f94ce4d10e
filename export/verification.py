"""Export's own checks, before anybody sees the bundle.

Enters: a candidate and the fp32 law of the check text. Leaves: its quality, its parity (fp32), or a SpecError.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from spec_edge.export.candidate import Candidate
from spec_edge.export.computed import as_computed
from spec_edge.export.reference_law import ReferenceLaw
from spec_edge.models.contract import Parity, Quality, SpecError
from spec_edge.runtime.bundle import Bundle
from spec_edge.runtime.draft import Draft
from spec_edge.runtime.protocols import Session
from spec_edge.runtime.providers.opening import on_cpu
from spec_edge.runtime.quality import KL_LIMIT, TOP1_LIMIT, Reference, log_softmax, measure, rows
from spec_edge.runtime.sessions.choose import open_on_cpu
from spec_edge.runtime.sessions.static import StaticSession
from spec_edge.targets.target import Target

LIMITS = (KL_LIMIT, TOP1_LIMIT)
DRAFT_LIMITS = (0.05, 0.9)
"""Of a draft model in a precision for drafting. Qwen2.5 Coder 0.5B is at 0.016 and 0.927 in keep-head4, and drafts as
well as before; SmolLM2-135M at 0.078 and 0.819, which loses a twelfth of its acceptance."""

PARITY_LIMIT = 1e-3
"""fp32 graph against numpy's fp32; ten times what SmolLM2 shows. Past it the graph is wrong, not inexact."""

HEAD = 24
"""Rows before those on which fixed-width graphs are compared."""


def provisional(candidate: Candidate) -> Bundle:
    """The candidate as a bundle that was never written, so it has no digest."""
    return Bundle(candidate.folder, candidate.manifest, digest="")


def measured(
    candidate: Candidate,
    target: Target,
    law: ReferenceLaw,
    limits: tuple[float, float] | None,
    tick: Callable[[int], None],
) -> tuple[Quality, Parity | None] | None:
    """Quality of what the target runs, and parity where it is fp32; None where it is outside of `limits`."""
    bundle = provisional(candidate)
    with as_computed(bundle, target) as computed:
        session = _session(computed)
        try:
            found = measure(law.reference, session, limits, tick)
        finally:
            session.close()
    if found is None:
        return None
    return found, _parity(bundle, law) if candidate.manifest.precision == "fp32" else None


def _session(bundle: Bundle) -> Session:
    """Fixed-width graphs where there are some already: they are there to be measured."""
    return StaticSession(bundle, on_cpu(bundle)) if bundle.graphs("target", "verify") else open_on_cpu(bundle)


def within(quality: Quality) -> bool:
    """Whether a bundle is as good as its fp32 target for practical purposes: KL at most 0.02, top-1 at least 0.95."""
    return quality.kl <= KL_LIMIT and quality.top1 >= TOP1_LIMIT


def _parity(bundle: Bundle, law: ReferenceLaw) -> Parity:
    ids = law.reference.ids[: len(law.first_logits)]
    session = _session(bundle)
    logits = np.concatenate([out.copy() for out in rows(session, ids)])
    session.close()
    error = float(np.abs(logits - law.first_logits).max())
    if not error <= PARITY_LIMIT:
        raise SpecError(
            f"the fp32 graph differs from the numpy reference by {error:.2g} in logits; nothing was written"
        )
    return Parity(error, len(ids))


def check_static(candidate: Candidate, reference: Reference) -> float:
    """Largest mean divergence of a fixed-width graph from the any-width one on a few rows; SpecError past the bound."""
    bundle = provisional(candidate)
    text = [int(i) for i in reference.ids[: reference.starts[1]]]
    head, tail = text[: min(HEAD, len(text) // 2)], text[min(HEAD, len(text) // 2) :]
    sizes = sorted({min(graph.width or 1, len(tail)) for graph in bundle.graphs("target", "verify")})
    wide, static = (
        _laws(session, head, tail, sizes) for session in (open_on_cpu(bundle), StaticSession(bundle, on_cpu(bundle)))
    )
    kl = max(float((np.exp(p) * (p - q)).sum(1).mean()) for p, q in zip(wide, static, strict=True))
    if not kl <= KL_LIMIT:
        raise SpecError(f"the fixed-width graphs differ from the any-width one (KL {kl:.2g}); nothing was written")
    return kl


def _laws(session: Session, head: list[int], tail: list[int], sizes: list[int]) -> list[NDArray[np.float64]]:
    """Log-probabilities of the first rows of `tail` behind `head`, for each number of rows."""
    session.prefill(head)
    outputs = [session.verify(tail[0], Draft.chain(tail[1:size])).logits.astype(np.float32) for size in sizes]
    session.close()
    return [log_softmax(logits).astype(np.float64) for logits in outputs]
