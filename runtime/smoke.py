"""A few rows of the bundle's check text on a device, before it writes anything for the user.

Enters: a session on a provider that is not the reference, and the bundle. Leaves: nothing, or ProviderFailed with the
figures: NPUs were seen to compute garbage without an error (openvino issue 38100, RyzenAI-SW issue 390). The result is
kept in the user's cache folder, under all that it depends on.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from spec_edge.models.contract import Quality
from spec_edge.runtime import quality
from spec_edge.runtime.bundle import Bundle
from spec_edge.runtime.draft import Draft
from spec_edge.runtime.protocols import Session
from spec_edge.runtime.providers.provider import Found, Provider, ProviderFailed
from spec_edge.runtime.quality import Reference
from spec_edge.runtime.remembered import folder_of, recall, remember

ROWS, PROMPT, PLAIN, DEPTH = 48, 16, 8, 3
"""Rows of the check text; of them read by prefill, then by plain steps; levels of the tree that follows."""

TIMES, ROUNDING = 4.0, 0.005
"""Largest mean divergence: TIMES that of the bundle's worst kind of text, since 48 rows scatter about the mean of a
whole text (on correct providers 0.6 to 3 times it, six kinds of text of SmolLM2), and ROUNDING on top: 16-bit
arithmetic moves logits by up to about 0.1, a divergence of 0.1 * 0.1 / 2."""

FLIPPED, DEVIATIONS = 0.02, 4.0
"""Most rows with another best token: as many as the bundle's worst kind of text has, FLIPPED of the rows on top (16-bit
arithmetic decides near-ties), and four standard deviations of such a count."""

SMOKE = "smoke"
Rows = Iterator[tuple[int, NDArray[np.float32]]]


@dataclass(frozen=True)
class Figures:
    """kl: mean divergence from the fp32 target in nats. missed: rows with another best token. finite: all logits."""

    kl: float
    missed: int
    rows: int
    finite: bool = True


def check(
    bundle: Bundle, session: Session, on: Provider, found: Found, options: Mapping[str, str], folder: Path | None = None
) -> None:
    """ProviderFailed: its logits are not the target's, now or when it was asked before. Leaves the session empty."""
    folder, key = folder or folder_of(SMOKE), smoke_key(bundle, on, found, options)
    known = _known(folder, key)
    figures = known or measure(quality.read(bundle.path(bundle.manifest.reference).read_bytes()), session)
    if known is None:
        remember(folder, key, asdict(figures))
    if said := wrong(figures, bundle.manifest.quality):
        before = "; found before: 'spec-edge doctor --recompile' makes it look again" if known else ""
        raise ProviderFailed(f"its logits are wrong on the bundle's check text: {said}{before}")


def smoke_key(bundle: Bundle, on: Provider, found: Found, options: Mapping[str, str]) -> str:
    """All that a result depends on."""
    parts = [on.name, found.device, found.driver, sorted(found.versions.items()), sorted(options.items())]
    return json.dumps([bundle.digest, version("spec-edge"), *parts])


def wrong(figures: Figures, stated: Quality) -> str:
    """What is out of bounds, with the figures; "" for logits that are as good as the bundle says."""
    if not figures.finite:
        return "some are not finite"
    kinds = stated.kinds or (stated,)
    most_kl = TIMES * max(kind.kl for kind in kinds) + ROUNDING
    expected = figures.rows * (1 - min(kind.top1 for kind in kinds) + FLIPPED)
    most_missed = math.floor(expected + DEVIATIONS * math.sqrt(expected))
    if figures.kl <= most_kl and figures.missed <= most_missed:
        return ""
    return (
        f"KL {figures.kl:.3g} (at most {most_kl:.3g}), another best token in {figures.missed} of {figures.rows} rows "
        f"(at most {most_missed})"
    )


def measure(reference: Reference, session: Session) -> Figures:
    """Of the first rows of the first kind of text: prefill, plain steps, a tree, the widest chains."""
    kl, missed, rows = 0.0, 0, 0
    finite = True
    for at, logits in _rows(reference.ids[: min(ROWS, int(reference.starts[1]))], session):
        finite = finite and bool(np.isfinite(logits).all())
        if not finite:
            break
        more, flips = quality.divergence(reference, at, logits)
        kl, missed, rows = kl + more, missed + flips, rows + len(logits)
    session.truncate(0)
    return Figures(kl / max(rows, 1), missed, rows, finite)


def _rows(ids: NDArray[np.int32], session: Session) -> Rows:
    """(position, logits [n, V]) of consecutive positions from there on."""
    text = [int(i) for i in ids]
    session.truncate(0)
    at = min(PROMPT, len(text))
    yield at - 1, session.prefill(text[:at]).logits
    while at < len(text):
        plain = at < PROMPT + PLAIN
        tree = at == PROMPT + PLAIN
        width = 1 if plain else min(session.max_width, len(text) - at)
        draft = Draft.chain(text[at + 1 : at + width])
        path = list(range(width))
        if tree:
            draft = _tree(text[at + 1 :][: min(DEPTH, (width - 1) // 2)], session.vocab_size)
            path = list(range(0, len(draft) + 1, 2))
        logits = session.verify(text[at], draft).logits
        yield at, logits[path] if np.isfinite(logits).all() else logits
        session.commit(path)
        at += len(path)


def _tree(text: list[int], vocab_size: int) -> Draft:
    """At each level a wrong token, then the text's own, which the next level follows."""
    tokens = [token for right in text for token in ((right + 1) % vocab_size, right)]
    parents = [2 * level - 1 for level in range(len(text)) for _ in range(2)]
    return Draft(tuple(tokens), tuple(parents), (True,) * len(tokens))


def _known(folder: Path, key: str) -> Figures | None:
    stored = recall(folder, key)
    try:
        if stored is None:
            return None
        return Figures(float(stored["kl"]), int(stored["missed"]), int(stored["rows"]), stored["finite"] is True)
    except (KeyError, TypeError, ValueError):
        return None
