"""Into how many graphs a network is cut.

Enters: what was asked for, a model's shape, the bytes of its weights, and what one graph may hold. Leaves: a number.
"""

from __future__ import annotations

from math import prod

from spec_edge.export.options import BuildOptions
from spec_edge.models.checkpoint import ModelConfig
from spec_edge.models.contract import BadUsage, layers_of
from spec_edge.models.family import tensor_shapes

TABLE, HEAD, LAYER = "model.embed_tokens.weight", "lm_head.weight", "model.layers.0."


def parts_of(options: BuildOptions, config: ModelConfig) -> int | None:
    """What was asked for. BadUsage: more than the network has layers."""
    if options.parts is not None and options.parts > config.layers:
        raise BadUsage(f"--parts {options.parts} is more than the {config.layers} layers of the model")
    return options.parts


def parts_needed(config: ModelConfig, weights: int, most: int | None) -> int:
    """The fewest parts of which each holds at most `most` bytes; one for each layer where even those do not.

    weights: bytes of the whole network, of which every tensor has its share by its size
    """
    if most is None or weights <= most:
        return 1
    counts = {name: prod(shape) for name, shape in tensor_shapes(config).items()}
    scale = weights / sum(counts.values())
    layer = scale * sum(count for name, count in counts.items() if name.startswith(LAYER))
    table, head = scale * counts[TABLE], scale * counts.get(HEAD, counts[TABLE])
    for parts in range(2, config.layers):
        sizes = [layer * len(layers_of(config.layers, part, parts)) for part in range(parts)]
        if max(sizes[0] + table, sizes[-1] + head, *sizes) <= most:
            return parts
    return config.layers
