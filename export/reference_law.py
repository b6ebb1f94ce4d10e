"""The fp32 target's law on the check text, by the plain numpy forward.

Enters: an opened checkpoint. Leaves: the `Reference` that goes into the bundle, and the first logits as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from spec_edge.models.checkpoint import Checkpoint
from spec_edge.models.contract import SpecError
from spec_edge.models.reference import forward
from spec_edge.runtime.quality import TOP, Reference, top_law

KINDS = ("chat", "code", "documents", "languages", "maths", "prose")
TOKENS_PER_KIND = 352
LEAST_TOKENS = 2000
PARITY_ROWS = 128


@dataclass(frozen=True)
class ReferenceLaw:
    """`first_logits`: float32 [128, V] of the first kind's first positions; `peaks`: max |x| read by each norm."""

    reference: Reference
    first_logits: NDArray[np.float32]
    peaks: dict[str, float]


def check_ids(checkpoint: Checkpoint, context: int) -> list[list[int]]:
    """Ids of each kind's text, at most 352 of them and no more than the bundle's context; no special tokens."""
    tokenizer = Tokenizer.from_str(checkpoint.text.tokenizer_json.decode("utf-8"))
    folder = files("spec_edge.export.check_text")
    texts = (folder.joinpath(f"{kind}.txt").read_text(encoding="utf-8") for kind in KINDS)
    longest = min(TOKENS_PER_KIND, context)
    return [tokenizer.encode(text, add_special_tokens=False).ids[:longest] for text in texts]


def reference_law(checkpoint: Checkpoint, context: int, tick: Callable[[int], None]) -> ReferenceLaw:
    """Run the check text through the numpy forward; `tick(positions done)`."""
    ids = check_ids(checkpoint, context)
    if any(not text for text in ids):
        raise SpecError("the model's tokenizer gives no tokens for the check text; its tokenizer.json is broken")
    config = checkpoint.config
    top = min(TOP, config.vocab_size)
    total = sum(len(text) for text in ids)
    top_ids, top_logp = np.empty((total, top), np.int32), np.empty((total, top), np.float32)
    rest, first, done = np.empty(total, np.float32), None, 0
    peaks: dict[str, float] = {}

    def seen(name: str, x: NDArray[np.float32]) -> None:
        peaks[name] = float(np.abs(x).max())

    for logits in forward(config, checkpoint.weights, ids, seen):
        here = slice(done, done + len(logits))
        top_ids[here], top_logp[here], rest[here] = top_law(logits, top)
        first = logits[: min(PARITY_ROWS, len(ids[0]))].copy() if first is None else first
        done += len(logits)
        tick(done)
    if first is None or not np.isfinite(top_logp).all():
        raise SpecError("the model's fp32 logits are not finite on the check text; its weights are broken")
    starts = np.concatenate([[0], np.cumsum([len(text) for text in ids])]).astype(np.int64)
    flat = np.concatenate([np.asarray(text, np.int32) for text in ids])
    return ReferenceLaw(Reference(KINDS, starts, flat, top_ids, top_logp, rest), first, peaks)
