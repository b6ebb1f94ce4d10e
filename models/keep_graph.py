"""The graph that keeps accepted rows in a device's memory, so that the cache never crosses to the CPU and back.

    rows [R], at [1, KVH, R, 3], past_* [1, KVH, P, D], new_* [1, KVH, S, D] -> kept_* [1, KVH, P, D]

Row rows[i] of each `new` is written to the slot of `past` that at[0, h, i] = (0, h, slot) names. A runtime that binds
`kept` to the buffer of `past` writes those rows and nothing else: ScatterND copies its data only where its output is
another buffer (ONNX Runtime's kernels for CPU and CUDA).
"""

from __future__ import annotations

import onnx

from spec_edge.models.checkpoint import ModelConfig
from spec_edge.models.contract import Dim, TensorSpec
from spec_edge.models.graph import Graph

NAME, NETWORK, ROLE = "cache-keep", "cache", "keep"
"""As in `GraphSpec`."""

Tensors = tuple[TensorSpec, ...]


def keep_graph(config: ModelConfig, dtype: str) -> tuple[onnx.ModelProto, Tensors, Tensors]:
    """The graph for a cache of the portable lowering in `dtype`: model, inputs, outputs."""
    graph, slots = Graph(""), [f"{kind}.{i}" for i in range(config.layers) for kind in ("key", "value")]
    for slot in slots:
        chosen = graph.op("Gather", (f"new_{slot}", "rows"), f"/{slot}/Gather", {"axis": 2})
        kept = graph.op("ScatterND", (f"past_{slot}", "at", chosen), f"/{slot}/ScatterND")
        graph.rename({kept: f"kept_{slot}"})

    def side(prefix: str, rows: Dim) -> Tensors:
        shape = (1, config.kv_heads, rows, config.head_dim)
        return tuple(TensorSpec(f"{prefix}_{slot}", dtype, shape) for slot in slots)

    where = (TensorSpec("rows", "int64", ("R",)), TensorSpec("at", "int64", (1, config.kv_heads, "R", 3)))
    inputs, outputs = (*where, *side("past", "P"), *side("new", "S")), side("kept", "P")
    return graph.model(NAME, inputs, outputs), inputs, outputs
