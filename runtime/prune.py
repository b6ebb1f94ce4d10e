"""Cut a draft to what a step can use.

Enters: any draft and the step's room. Leaves: a draft that the session may run.
"""

from __future__ import annotations

from dataclasses import replace

from spec_edge.models.contract import SpecError
from spec_edge.runtime.draft import EMPTY, ROOT, Draft


def prune(draft: Draft, nodes: int, depth: int, tokens: int) -> Draft:
    """At most `nodes` tokens, none deeper than `depth`, each id in [0, tokens); a dropped token takes its descendants.

    An impossible id is never accepted, so dropping it changes nothing, except under `q`: there the rejection
    itself is part of the law, so SpecError. So is a `q` that does not cover `tokens` ids. Which tokens are dropped
    depends on their places alone, so the law that the others were drawn from stays.
    """
    if draft.q is not None and draft.q.shape[1] < tokens:
        raise SpecError(f"a draft's q covers {draft.q.shape[1]} tokens, the target has {tokens}")
    if nodes <= 0 or depth <= 0:
        return EMPTY
    if len(draft) <= nodes and len(draft) <= depth and all(0 <= t < tokens for t in draft.tokens):
        return draft
    return _keep(draft, _kept(draft, nodes, depth, tokens))


def _kept(draft: Draft, nodes: int, depth: int, tokens: int) -> list[int]:
    depths = draft.depths[1:].tolist()
    kept: dict[int, None] = {ROOT: None}
    for i, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        if parent not in kept or depths[i] > depth or len(kept) > nodes:
            continue
        if 0 <= token < tokens:
            kept[i] = None
        elif draft.q is not None:
            raise SpecError(f"drafted token {token} with a q is outside the target's {tokens} tokens")
    return list(kept)[1:]


def _keep(draft: Draft, kept: list[int]) -> Draft:
    place = {old: new for new, old in enumerate(kept)} | {ROOT: ROOT}
    return replace(
        draft,
        tokens=tuple(draft.tokens[i] for i in kept),
        parents=tuple(place[draft.parents[i]] for i in kept),
        candidate=tuple(draft.candidate[i] for i in kept),
        q=None if draft.q is None else draft.q[kept],
    )
