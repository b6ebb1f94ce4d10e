"""A draft model exported together with its target.

Enters: the two opened checkpoints and the target's folder. Leaves: the name of the draft's folder beside it, or one
line that says why this model cannot draft for that one.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from spec_edge.models.checkpoint import Checkpoint
from spec_edge.models.contract import MANIFEST, DraftFact
from spec_edge.runtime.vocabulary import Vocabulary, shared_ids, vocabulary

SUFFIX = "-draft"
_OTHER = re.compile(r"[^A-Za-z0-9._-]+")
LONGEST = 100
"""Characters of the target folder's name that the draft folder's keeps."""


def draft_folder(output: Path) -> Path:
    """`NAME-draft` beside the target's folder, NAME in characters that mean the same on every system."""
    name = _OTHER.sub("-", output.absolute().name).strip(".-")[:LONGEST]
    return output.absolute().with_name(f"{name}{SUFFIX}")


def check_vocabulary(target: Checkpoint, draft: Checkpoint) -> int:
    """Number of shared ids. SpecError names the first id that means something else to each model."""
    return shared_ids(_vocabulary(target), _vocabulary(draft))


def draft_fact(output: Path, work: Path) -> DraftFact:
    """What the target records of the draft's bundle, which is still in `work`."""
    return DraftFact(draft_folder(output).name, hashlib.sha256((work / MANIFEST).read_bytes()).hexdigest())


def _vocabulary(checkpoint: Checkpoint) -> Vocabulary:
    return vocabulary(checkpoint.name, checkpoint.text.tokenizer_json, checkpoint.text.tokens)
