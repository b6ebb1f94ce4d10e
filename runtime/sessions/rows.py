"""What a row of a run needs besides its token: the rotation of its position.

Enters: positions. Leaves: cos and sin.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from spec_edge.models.contract import RopeFacts

Array = NDArray[Any]


def rotary(rope: RopeFacts, positions: Array) -> tuple[Array, Array]:
    """cos and sin, float64 [rows, D], of half-split rotary embedding at `positions`."""
    angle = np.multiply.outer(positions, np.array(rope.inv_freq))
    both = np.concatenate([angle, angle], axis=-1)
    return np.cos(both) * rope.scale, np.sin(both) * rope.scale
