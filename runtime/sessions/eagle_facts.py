"""What a bundle says of its EAGLE drafter, as its sessions need it.

Enters: a bundle. Leaves: the drafter's record, its cache, its vocabulary, sizes in its graphs; or one line.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spec_edge.models.contract import CacheFacts, DrafterFact, GraphSpec, SpecError
from spec_edge.runtime.bundle import Bundle

METHOD = "eagle"
AGAIN = "export it again with --eagle"


def drafter_fact(bundle: Bundle) -> tuple[DrafterFact, CacheFacts]:
    """The bundle's EAGLE drafter and its cache. SpecError: it has none."""
    fact = next((d for d in bundle.manifest.drafters if d.name == METHOD), None)
    if fact is None or fact.cache is None:
        raise SpecError(f"this bundle has no EAGLE drafter; {AGAIN}")
    return fact, fact.cache


def drafted_ids(bundle: Bundle, fact: DrafterFact) -> NDArray[np.int64] | None:
    """The map of a reduced vocabulary. SpecError: it leaves the target's."""
    if fact.vocabulary is None:
        return None
    ids = np.fromfile(bundle.path(fact.vocabulary), "<i4").astype(np.int64)
    if not ids.size or ids.min() < 0 or ids.max() >= bundle.manifest.model.vocab_size:
        raise SpecError(f"bundle file {fact.vocabulary.file} names an id that the model does not have; {AGAIN}")
    return ids


def size_of(graph: GraphSpec, output: str) -> int:
    """Last dimension of an output."""
    return int(next(t.shape[-1] for t in graph.outputs if t.name == output))
