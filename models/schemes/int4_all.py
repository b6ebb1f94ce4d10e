"""int4-all: as int4, with embedding and lm_head in 4 bits too: for what drafts.

The target checks what is drafted, so that coarse weights cost no quality, only acceptance, and hardly any of that: the
EAGLE-3 drafter that ships with SmolLM2-135M accepts 2.032 tokens a step with 8 bits and 2.025 with 4 (17 training
prompts, chains of 4, by .ci/slow/eagle_acceptance.py). A draft reads half as many bytes.
"""

from __future__ import annotations

from spec_edge.models.checkpoint import Weights
from spec_edge.models.schemes.int4 import least_squares
from spec_edge.models.schemes.scheme import Packed, Scheme, blocks_of, planned_blocks, rounded


def pack(weights: Weights, name: str) -> Packed:
    """4-bit blocks of 32 along the inputs."""
    return rounded(blocks_of(weights.dense(name), name), 4, least_squares)


SCHEME = Scheme("int4-all", pack, plan=lambda name, shape: planned_blocks(name, shape, 4))
