"""How far a bundle's text is from its fp32 target: KL divergence and top-1 agreement.

Enters: `reference.npz` (the check text's ids and the fp32 target's law at each position) and a session.
Leaves: `Quality`, over the whole text and by kind. The same check serves export, `bench` and new devices.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from spec_edge.models.contract import KindQuality, Quality, SpecError
from spec_edge.runtime.draft import Draft
from spec_edge.runtime.protocols import Session

TOP = 512
KL_LIMIT = 0.02
TOP1_LIMIT = 0.95
_ARRAYS = ("kinds", "starts", "ids", "top_ids", "top_logp", "rest")
_CHUNK = 64


@dataclass(frozen=True)
class Reference:
    """The fp32 law on the check text, T positions of K kinds. Each kind is a text of its own.

    kinds     names [K]
    starts    int64 [K + 1]: kind k holds positions starts[k]:starts[k + 1]
    ids       int32 [T]
    top_ids   int32 [T, 512]: the likeliest next tokens at each position, likeliest first, lowest id first on a tie
    top_logp  float32 [T, 512]: their natural log-probabilities
    rest      float32 [T]: the probability of all other tokens together
    """

    kinds: tuple[str, ...]
    starts: NDArray[np.int64]
    ids: NDArray[np.int32]
    top_ids: NDArray[np.int32]
    top_logp: NDArray[np.float32]
    rest: NDArray[np.float32]

    def __post_init__(self) -> None:
        t, top = len(self.ids), self.top_ids.shape[-1]
        shapes = (self.top_ids.shape, self.top_logp.shape, self.rest.shape, self.starts.shape)
        if shapes != ((t, top), (t, top), (t,), (len(self.kinds) + 1,)):
            raise SpecError(f"the reference's arrays do not fit each other: {shapes}")
        if self.starts[0] != 0 or self.starts[-1] != t or (np.diff(self.starts) < 1).any():
            raise SpecError("the reference's kinds do not cover its text")


def top_law(
    logits: NDArray[np.float32], top: int = TOP
) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.float32]]:
    """Top ids, their log-probabilities [n, top] and the remaining mass [n] of logits [n, V]."""
    top = min(top, logits.shape[1])
    logp = log_softmax(logits)
    part = np.argpartition(-logp, top - 1, axis=1)[:, :top]
    part.sort(axis=1)
    order = np.argsort(-np.take_along_axis(logp, part, 1), axis=1, kind="stable")
    ids = np.take_along_axis(part, order, 1)
    kept = np.take_along_axis(logp, ids, 1)
    rest = np.clip(1.0 - np.exp(kept.astype(np.float64)).sum(1), 0.0, 1.0)
    return ids.astype(np.int32), kept.astype(np.float32), rest.astype(np.float32)


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Natural log-probabilities of logits [n, V], the sum in float64."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    total = np.exp(shifted).sum(axis=1, dtype=np.float64, keepdims=True)
    logp: NDArray[np.float32] = shifted - np.log(total).astype(np.float32)
    return logp


def write(reference: Reference, path: Path) -> None:
    """`reference.npz`: plain arrays, no pickles."""
    arrays = {name: getattr(reference, name) for name in _ARRAYS}
    np.savez_compressed(path, **arrays | {"kinds": np.array(reference.kinds)})


def read(data: bytes) -> Reference:
    """Reference from the bytes of `reference.npz`; SpecError where it is not one."""
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            arrays = {name: file[name] for name in _ARRAYS}
        kinds = tuple(str(kind) for kind in arrays.pop("kinds"))
        return Reference(kinds=kinds, **arrays)
    except (OSError, ValueError, KeyError, EOFError, TypeError) as error:
        raise SpecError(f"reference.npz cannot be read ({error}); export the bundle again") from error


def rows(session: Session, ids: NDArray[np.int32]) -> Iterator[NDArray[np.float32]]:
    """Logits [n, V] of every position of `ids`, by verify runs that are committed whole."""
    session.truncate(0)
    width = min(session.max_width, _CHUNK)
    for start in range(0, len(ids), width):
        chunk = [int(i) for i in ids[start : start + width]]
        output = session.verify(chunk[0], Draft.chain(chunk[1:]))
        yield output.logits
        session.commit(range(len(chunk)))


def measure(
    reference: Reference,
    session: Session,
    limits: tuple[float, float] | None = None,
    tick: Callable[[int], object] = int,
) -> Quality | None:
    """Quality of `session` against `reference` (see `compare`)."""
    return compare(reference, lambda ids: rows(session, ids), limits, tick)


def compare(
    reference: Reference,
    run: Callable[[NDArray[np.int32]], Iterator[NDArray[np.float32]]],
    limits: tuple[float, float] | None = None,
    tick: Callable[[int], object] = int,
) -> Quality | None:
    """Quality of whatever gives logits [n, V] of every position of some ids, piece by piece.

    The divergence is taken over 513 outcomes (the reference's top 512 and "any other"), so it is a lower bound
    of the divergence over the vocabulary; what is left out is bounded by the remaining mass. With `limits`
    (KL, top-1) it returns None as soon as the rest of the text cannot bring the figures inside them.
    `tick(n)` is called with the number of positions done.
    """
    total = len(reference.ids)
    kinds: list[KindQuality] = []
    spent, missed, done = 0.0, 0, 0
    for k, kind in enumerate(reference.kinds):
        start, stop = int(reference.starts[k]), int(reference.starts[k + 1])
        kind_kl, kind_missed, at = 0.0, 0, start
        for logits in run(reference.ids[start:stop]):
            kl, misses = divergence(reference, at, logits)
            at += len(logits)
            kind_kl, kind_missed = kind_kl + kl, kind_missed + misses
            spent, missed, done = spent + kl, missed + misses, done + len(logits)
            tick(done)
            if limits and (spent / total > limits[0] or missed / total > 1 - limits[1]):
                return None
        n = stop - start
        kinds.append(KindQuality(kind, kind_kl / n, 1 - kind_missed / n, n))
    worst = max(kinds, key=lambda kind: kind.kl).kind
    return Quality(spent / total, 1 - missed / total, total, worst, tuple(kinds))


def divergence(reference: Reference, at: int, logits: NDArray[np.float32]) -> tuple[float, int]:
    """Sum of the divergences of these rows, and how many rows have another argmax."""
    here = slice(at, at + len(logits))
    logq = log_softmax(logits)
    ids, logp = reference.top_ids[here], reference.top_logp[here].astype(np.float64)
    q = np.take_along_axis(logq, ids, 1).astype(np.float64)
    rest_p = reference.rest[here].astype(np.float64)
    rest_q = np.clip(1.0 - np.exp(q).sum(1), 1e-9, 1.0)
    kl = (np.exp(logp) * (logp - q)).sum(1) + rest_p * np.log(np.maximum(rest_p, 1e-9) / rest_q)
    return float(np.maximum(kl, 0.0).sum()), int((logits.argmax(1) != ids[:, 0]).sum())
