"""keep-head4: the file's own values, and a head of its own in 4 bits: for a model that drafts.

Much of a small model's step is its head: Qwen2.5 0.5B has 136 of 494 million weights there. What it drafts is checked
by the target, so that a coarser head costs no quality. On 717 tokens of code that Qwen2.5 Coder 1.5B wrote to training
prompts, its 0.5B names the next one in 0.9135 of the cases with either head; on 359 of prose in 0.847 and 0.850
(by a scratch form of .ci/slow/draft_agreement.py; SmolLM2-135M is too small for it, see DRAFT_LIMITS).
"""

from __future__ import annotations

from spec_edge.models.schemes import int4_all, keep
from spec_edge.models.schemes.scheme import Scheme

SCHEME = Scheme("keep-head4", keep.pack, keep.check, head=int4_all.pack)
