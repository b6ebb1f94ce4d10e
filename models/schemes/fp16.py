"""fp16: every matrix dense in float16."""

from __future__ import annotations

import numpy as np

from spec_edge.models.checkpoint import Weights
from spec_edge.models.contract import SpecError
from spec_edge.models.schemes.scheme import Packed, Scheme, zeros


def pack(weights: Weights, name: str) -> Packed:
    """float16 [N, K]; SpecError where a weight is beyond float16's range."""
    w = weights.dense(name)
    if max(w.max(initial=0), -w.min(initial=0)) > np.finfo(np.float16).max:
        raise SpecError(f"{name} holds values beyond float16's 65504: use --precision fp32")
    return w.astype(np.float16)


def plan(name: str, shape: tuple[int, ...]) -> Packed:
    """The same of a shape."""
    del name
    return zeros(shape, np.float16)


SCHEME = Scheme("fp16", pack, plan=plan)
