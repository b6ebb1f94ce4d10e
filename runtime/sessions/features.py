"""What drafters read of the target besides logits: its last hidden state and the residual stream at tapped layers.

Enters: a model's facts, or the outputs of runs. Leaves: sizes and arrays by the names of `Output`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from spec_edge.models.contract import ModelFacts
from spec_edge.runtime.draft import Output

Features = dict[str, NDArray[np.float32]]


def widths(model: ModelFacts) -> dict[str, int]:
    """Numbers per row of each feature that this model's graphs give."""
    taps = len(model.taps) * model.hidden_size
    return {"hidden": model.hidden_size} | ({"taps": taps} if taps else {})


def features(output: Output) -> Features:
    """Those that a run gave."""
    named = {"hidden": output.hidden, "taps": output.taps}
    return {name: array for name, array in named.items() if array is not None}


def joined(parts: Sequence[Features]) -> Features:
    """The rows of consecutive runs, one after the other."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
