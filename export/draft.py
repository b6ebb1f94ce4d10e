"""What is exported together with a target, beside it: its draft model, and the same model for another target.

Enters: the opened checkpoints and the target's folder. Leaves: the names of the folders beside it and what the target
records of them, or one line that says why this model cannot draft for that one.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from spec_edge.models.checkpoint import Checkpoint
from spec_edge.models.contract import MANIFEST, DraftFact, FallbackFact
from spec_edge.runtime import manifest as schema
from spec_edge.runtime.vocabulary import Vocabulary, shared_ids, vocabulary

DRAFT, FALLBACK = "draft", "fallback"
_OTHER = re.compile(r"[^A-Za-z0-9._-]+")
LONGEST = 100
"""Characters of the target folder's name that the one beside it keeps."""


def folder_beside(output: Path, kind: str) -> Path:
    """`NAME-draft` beside the target's folder, NAME in characters that mean the same on every system."""
    name = _OTHER.sub("-", output.absolute().name).strip(".-")[:LONGEST]
    return output.absolute().with_name(f"{name}-{kind}")


def check_vocabulary(target: Checkpoint, draft: Checkpoint) -> int:
    """Number of shared ids. SpecError names the first id that means something else to each model."""
    return shared_ids(_vocabulary(target), _vocabulary(draft))


def draft_fact(output: Path, work: Path) -> DraftFact:
    """What the target records of the draft's bundle, which is still in `work`."""
    return DraftFact(folder_beside(output, DRAFT).name, _digest(work))


def fallback_fact(output: Path, work: Path) -> FallbackFact:
    """What the target records of its fallback, which is still in `work`."""
    manifest = schema.read((work / MANIFEST).read_bytes())
    return FallbackFact(folder_beside(output, FALLBACK).name, _digest(work), manifest.target, manifest.precision)


def _digest(work: Path) -> str:
    return hashlib.sha256((work / MANIFEST).read_bytes()).hexdigest()


def _vocabulary(checkpoint: Checkpoint) -> Vocabulary:
    return vocabulary(checkpoint.name, checkpoint.text.tokenizer_json, checkpoint.text.tokens)
