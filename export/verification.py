"""Export's own checks, before anybody sees the bundle.

Enters: a candidate and the fp32 law of the check text. Leaves: its quality, its parity (fp32), or a SpecError.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

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
PARITY_LIMIT = 1e-3
"""fp32 graph against numpy's fp32; ten times what SmolLM2 shows. Past it the graph is wrong, not inexact."""

STATIC_ROWS = 40


def provisional(candidate: Candidate) -> Bundle:
    """The candidate as a bundle that was never written, so it has no digest."""
    return Bundle(candidate.folder, candidate.manifest, digest="")


def measured(
    candidate: Candidate, target: Target, law: ReferenceLaw, bounded: bool, tick: Callable[[int], None]
) -> tuple[Quality, Parity | None] | None:
    """Quality of what the target runs, and parity where it is fp32; None where `bounded` and out of bounds."""
    bundle = provisional(candidate)
    with as_computed(bundle, target) as computed:
        session = _session(computed)
        try:
            found = measure(law.reference, session, LIMITS if bounded else None, tick)
        finally:
            session.close()
    if found is None:
        return None
    return found, _parity(bundle, law) if candidate.manifest.precision == "fp32" else None


def _session(bundle: Bundle) -> Session:
    """Fixed-width graphs where there are some already: they are what the target runs."""
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
    """Mean divergence of the fixed-width graphs from the any-width one on a few rows; SpecError past the bound."""
    bundle = provisional(candidate)
    ids = [int(i) for i in reference.ids[:STATIC_ROWS]]
    widest = max(graph.width or 1 for graph in bundle.graphs("target", "verify"))
    head, tail = ids[:-widest], ids[-widest:]
    laws = []
    for session in (open_on_cpu(bundle), StaticSession(bundle, on_cpu(bundle))):
        session.prefill(head)
        output = session.verify(tail[0], Draft.chain(tail[1:]))
        laws.append(log_softmax(output.logits.astype(np.float32)).astype(np.float64))
        session.close()
    kl = float((np.exp(laws[0]) * (laws[0] - laws[1])).sum(1).mean())
    if not kl <= KL_LIMIT:
        raise SpecError(f"the fixed-width graphs differ from the any-width one (KL {kl:.2g}); nothing was written")
    return kl
