"""npu_cut_model.py MODEL OUT PRECISION LAYERS WIDTHS [P]: a model's first layers as NPU graphs, to compare lowerings.

Enters: a checkpoint, a precision, how many layers (0: all, with the whole vocabulary), widths with commas between.
Leaves: OUT/sWIDTH.onnx, verify graphs with float16 activations and the first 2,048 tokens of the vocabulary. They take
seconds to compile, whole models minutes: `ESTIMATE=1 intel_npu/compile.sh OUT/s8.onnx 3720` prints Intel's estimate.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from spec_edge.export.candidate import rope_facts
from spec_edge.models.checkpoint import Weights
from spec_edge.models.decoder import build
from spec_edge.models.forms import Form
from spec_edge.models.open import open_checkpoint
from spec_edge.models.schemes.scheme import VOCABULARY, scheme
from spec_edge.models.store import WeightStore
from spec_edge.models.stored import modules, store_model

TOKENS, PAST = 2048, 1152
PEAK = 24_245.0
"""Largest residual of SmolLM2: norms are written as in a real export."""


@dataclass(frozen=True)
class Cut:
    """Weights whose vocabulary matrices have fewer rows."""

    whole: Weights
    tokens: int

    def names(self) -> frozenset[str]:
        return self.whole.names()

    def shape(self, name: str) -> tuple[int, ...]:
        shape = self.whole.shape(name)
        return (self.tokens, *shape[1:]) if name in VOCABULARY else shape

    def dense(self, name: str) -> NDArray[np.float32]:
        w = self.whole.dense(name)
        return w[: self.tokens] if name in VOCABULARY else w

    def blocks(self, name: str) -> None:
        del name


def main() -> int:
    model, out, precision, layers = sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    past = int(sys.argv[6]) if len(sys.argv) > 6 else PAST
    opened = open_checkpoint(Path(model))
    cut = replace(opened.config, layers=layers, vocab_size=TOKENS) if layers else opened.config
    norms = (
        f"model.layers.{i}.{n}" for i in range(cut.layers) for n in ("input_layernorm", "post_attention_layernorm")
    )
    peaks = dict.fromkeys((*norms, *modules(cut)), PEAK) | {"model.norm": PEAK}
    out.mkdir(parents=True, exist_ok=True)
    weights = Cut(opened.weights, cut.vocab_size)
    with WeightStore(out / "weights.bin") as store:
        stored = store_model(cut, rope_facts(cut), weights, scheme(precision), store, past, ("float16",), peaks)
    for width in map(int, sys.argv[5].split(",")):
        graph, _ = build(cut, stored, Form("verify", "portable", width, past, past, "float16"))
        (out / f"s{width}.onnx").write_bytes(graph.SerializeToString())
    return 0


if __name__ == "__main__":
    sys.exit(main())
