"""A quantised weight: as a GGUF file holds it (one form carries every block type exactly), or scaled per channel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class BlockTensor:
    """w[n, b * block + j] = scale[n, b] * (q[n, b, j] - zero) + offset[n, b], zero = 2 ** (bits - 1).

    bits    4 or 8
    block   weights that share a scale (16, 32, 64, 128), along the input axis
    q       uint8 [N, K / block, block], values in [0, 2 ** bits), unpacked
    scale   float32 [N, K / block]
    offset  float32 [N, K / block], or None where every block is symmetric
    """

    bits: int
    block: int
    q: NDArray[np.uint8]
    scale: NDArray[np.float32]
    offset: NDArray[np.float32] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """[N, K]: output and input features."""
        return self.q.shape[0], self.q.shape[1] * self.q.shape[2]

    def rows(self, order: NDArray[np.intp]) -> BlockTensor:
        """The same tensor with its output rows in `order`."""
        offset = None if self.offset is None else self.offset[order]
        return BlockTensor(self.bits, self.block, self.q[order], self.scale[order], offset)

    def dense(self) -> NDArray[np.float32]:
        """float32 [N, K]."""
        w: NDArray[np.float32] = (self.q.astype(np.float32) - np.float32(1 << (self.bits - 1))) * self.scale[..., None]
        if self.offset is not None:
            w += self.offset[..., None]
        return w.reshape(self.shape)


@dataclass(frozen=True)
class ChannelTensor:
    """w[n, k] = scale[n, k // group] * q[n, k]: symmetric, the form of ONNX's DequantizeLinear.

    bits    4 or 8
    q       int8 [N, K], values in [-2 ** (bits - 1), 2 ** (bits - 1))
    scale   float32 [N, K / group]; one group is one scale per output channel
    """

    bits: int
    q: NDArray[np.int8]
    scale: NDArray[np.float32]

    @property
    def shape(self) -> tuple[int, int]:
        """[N, K]: output and input features."""
        return self.q.shape[0], self.q.shape[1]

    @property
    def group(self) -> int:
        """Inputs that share a scale."""
        return int(self.q.shape[1] // self.scale.shape[1])

    def dense(self) -> NDArray[np.float32]:
        """float32 [N, K]."""
        groups = self.q.reshape(*self.scale.shape, self.group).astype(np.float32)
        groups *= self.scale[..., None]
        return groups.reshape(self.shape)
