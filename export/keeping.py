"""The cache's own graph, in bundles for a provider that holds the cache in its memory.

Enters: a model's shape, a target and a precision. Leaves: the graph's file as bytes, with its inputs and outputs.
"""

from __future__ import annotations

from spec_edge.export.rules import Place
from spec_edge.export.suited import suited
from spec_edge.models.checkpoint import ModelConfig
from spec_edge.models.forms import step_activation
from spec_edge.models.keep_graph import NAME, NETWORK, ROLE, Tensors, keep_graph
from spec_edge.targets.target import Target

LOWERING = "portable"


def keep_file(config: ModelConfig, target: Target, precision: str) -> tuple[bytes, Tensors, Tensors] | None:
    """(file, inputs, outputs); None where the target's cache lies on the CPU."""
    if not target.resident:
        return None
    model, inputs, outputs = keep_graph(config, step_activation(target, precision))
    return suited(model, Place(NAME, NETWORK, ROLE, None, None), target, precision), inputs, outputs
