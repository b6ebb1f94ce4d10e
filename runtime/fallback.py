"""The bundle that stands in for another: the same model with other weights, exported beside it for another target.

Enters: a bundle that records one. Leaves: that bundle, or None where there is none.
"""

from __future__ import annotations

from spec_edge.models.contract import SpecError
from spec_edge.runtime.bundle import Bundle, beside


def fallback(bundle: Bundle) -> Bundle | None:
    """SpecError: it is not beside the bundle, is another one, or spells its tokens otherwise."""
    fact = bundle.manifest.fallback
    if fact is None:
        return None
    found = beside(bundle, fact.folder, fact.sha256, "fallback", "export the model again")
    own, other = bundle.manifest, found.manifest
    if (fact.target, fact.precision) != (other.target, other.precision):
        raise SpecError(
            f"the fallback at {found.folder} is for {other.target} in {other.precision}, not what this bundle records; "
            "export the model again"
        )
    ids = (own.text.tokenizer.sha256, own.text.tokens, own.model.vocab_size)
    if ids != (other.text.tokenizer.sha256, other.text.tokens, other.model.vocab_size):
        raise SpecError(
            f"the fallback at {found.folder} has another vocabulary than this bundle; export the model again"
        )
    return found
