"""fused: ONNX Runtime's own decoder operators over one past = present buffer of M slots.

Operators: com.microsoft's GroupQueryAttention (which also rotates q and k and writes the new rows into the buffer) and
SkipSimplifiedLayerNormalization, ONNX Runtime's SimplifiedLayerNormalization, and Unsqueeze and Squeeze for the batch
axis that GroupQueryAttention wants.

    qkv --> GroupQueryAttention <-- past_key.i, past_value.i [1, KVH, M, D], bias [1, 1, S, M]
                |-> attention output          |-> present_key.i, present_value.i (bound to the same memory)

total_len is M always: the kernel then takes the mask with M columns, and its cost still follows seqlens_k.
"""

from __future__ import annotations

from spec_edge.models.contract import Dim, TensorSpec
from spec_edge.models.graph import CONTRIB
from spec_edge.models.lowerings.lowering import Build, Lowering
from spec_edge.models.stored import Norm


def _slots(build: Build) -> Dim:
    return "M" if build.form.past is None else build.form.past


def _cache(build: Build, prefix: str) -> tuple[TensorSpec, ...]:
    shape = (1, build.config.kv_heads, _slots(build), build.config.head_dim)
    layers = range(build.config.layers)
    return tuple(build.tensor(f"{prefix}_{kind}.{i}", *shape) for i in layers for kind in ("key", "value"))


def inputs(build: Build) -> tuple[TensorSpec, ...]:
    """seqlens_k = past + S - 1; total_len = M; bias is finite; the past buffer of each layer."""
    s = build.width
    return (
        TensorSpec("position_ids", "int64", (1, s)),
        TensorSpec("seqlens_k", "int32", (1,)),
        TensorSpec("total_len", "int32", (1,)),
        build.tensor("bias", 1, 1, s, _slots(build)),
        *_cache(build, "past"),
    )


def outputs(build: Build) -> tuple[TensorSpec, ...]:
    """The buffer of each layer with S rows more."""
    return _cache(build, "present")


def norm(build: Build, x: str, weight: Norm, path: str) -> str:
    """SimplifiedLayerNormalization, which ONNX Runtime registers in the standard domain."""
    site = build.site
    attributes = {"axis": -1, "epsilon": build.config.norm_eps, "stash_type": 1}
    gamma = site.graph.stored(weight.gamma[site.dtype])
    return site.graph.op("SimplifiedLayerNormalization", (x, gamma), path, attributes)


def add_norm(build: Build, x: str, y: str, weight: Norm, path: str) -> tuple[str, str]:
    """The sum and its norm in one operator."""
    site = build.site
    total, normed = f"{path}/sum", f"{path}/normed"
    site.graph.ops(
        "SkipSimplifiedLayerNormalization",
        (x, y, site.graph.stored(weight.gamma[site.dtype])),
        path,
        (normed, "", "", total),
        {"epsilon": build.config.norm_eps},
        CONTRIB,
    )
    return total, normed


def attend(build: Build, projections: tuple[str, ...], layer: int) -> str:
    """Rotation, cache and attention in one operator."""
    site, config, path = build.site, build.config, f"/layers.{layer}/attn/GroupQueryAttention"
    batched = [site.graph.op("Unsqueeze", (x, site.ints(0)), f"{x}/Unsqueeze") for x in projections]
    qkv = batched if len(batched) == 3 else (batched[0], "", "")
    tables = (site.graph.stored(build.stored.cos[site.dtype]), site.graph.stored(build.stored.sin[site.dtype]))
    cache = (f"past_key.{layer}", f"past_value.{layer}")
    attributes = {
        "num_heads": config.heads,
        "kv_num_heads": config.kv_heads,
        "do_rotary": 1,
        "rotary_interleaved": 0,
        "scale": config.head_dim**-0.5,
    }
    y = site.graph.ops(
        "GroupQueryAttention",
        (*qkv, *cache, "seqlens_k", "total_len", *tables, "position_ids", "bias"),
        path,
        (path, f"present_key.{layer}", f"present_value.{layer}"),
        attributes,
        CONTRIB,
    )[0]
    return site.graph.op("Squeeze", (y, site.ints(0)), f"{path}/Squeeze")


LOWERING = Lowering(inputs, outputs, norm, add_norm, attend)
