"""What a bundle's networks take in memory: records enter, lines for people leave.

Weights count as they lie in the bundle, caches at a full context in float32, as the any-width sessions hold them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spec_edge.models.contract import CacheFacts, Manifest

FLOAT = 4


@dataclass(frozen=True)
class Memory:
    """One network. weights, cache: bytes; share: of the target's weights and cache together."""

    name: str
    kind: str
    weights: int
    cache: int
    share: float


def cache_bytes(layers: int, kv_heads: int, head_dim: int, positions: int) -> int:
    """Keys and values of every layer."""
    return 2 * layers * kv_heads * head_dim * positions * FLOAT


def drafter_cache(cache: CacheFacts | None, context: int) -> int:
    """Of a drafter that keeps one; its rows of drafted tokens lie behind the context."""
    if cache is None:
        return 0
    return cache_bytes(cache.layers, cache.kv_heads, cache.head_dim, context + cache.scratch)


def memory(manifest: Manifest, draft: Manifest | None = None) -> tuple[Memory, ...]:
    """The target, its drafters, and the draft model in the bundle beside it."""
    context = manifest.model.context
    rows = [(d.name, d.kind, d.bytes, drafter_cache(d.cache, context)) for d in manifest.drafters]
    own = manifest.weights.bytes - sum(d.bytes for d in manifest.drafters)
    if draft is not None:
        rows.append(("draft", draft.model.name, draft.weights.bytes, _cache(draft)))
    return side_by_side((manifest.model.name, own, _cache(manifest)), rows)


def _cache(manifest: Manifest) -> int:
    m = manifest.model
    return cache_bytes(m.layers, m.kv_heads, m.head_dim, m.context)


def side_by_side(target: tuple[str, int, int], drafters: Sequence[tuple[str, str, int, int]]) -> tuple[Memory, ...]:
    """(name, weights, cache) of the target, then (name, kind, weights, cache) of each drafter."""
    name, weights, cache = target
    whole = weights + cache
    rows = [("target", name, weights, cache), *drafters]
    return tuple(Memory(n, kind, w, c, (w + c) / whole) for n, kind, w, c in rows)


def memory_lines(rows: Sequence[Memory]) -> list[str]:
    """A small table; nothing where there is only a target."""
    if len(rows) < 2:
        return []
    lines = [f"  {'memory':<8} {'':<24} {'weights':>10} {'cache':>10} {'of target':>10}"]
    for row in rows:
        sizes = f"{megabytes(row.weights):>10} {megabytes(row.cache):>10} {100 * row.share:>8.1f} %"
        lines.append(f"  {row.name:<8} {row.kind[:24]:<24} {sizes}")
    return lines


def megabytes(size: int) -> str:
    """Three digits or so: 0.027 MB, 6.91 MB, 13477 MB."""
    return f"{size / 1e6:.{3 if size < 1e6 else 2 if size < 1e7 else 0}f} MB"
