"""Quality beside speed: how far each program's text model is from the fp32 target it stands for.

Enters: whatever gives logits for ids. Leaves: KL divergence and top-1 agreement on the bundle's reference text, and
perplexity on a text that ships with the package. A faster model that is another model shows here.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spec_edge.models.contract import SpecError
from spec_edge.runtime import quality
from spec_edge.runtime.api import LLM
from spec_edge.runtime.bench.process import Child
from spec_edge.runtime.bench.questions import shipped
from spec_edge.runtime.bench.runs import Failed
from spec_edge.runtime.quality import KL_LIMIT, TOP1_LIMIT, Reference, log_softmax

TEXT = "perplexity.txt"
Ids = NDArray[np.int32]
Logits = Callable[[Ids], Iterator[NDArray[np.float32]]]


def own_logits(llm: LLM) -> Logits:
    """Of our session."""
    return lambda ids: quality.rows(llm.session, ids)


def peer_logits(child: Child, vocab: int) -> Logits:
    """Of a peer's child, by way of a file: a text's logits are tens of megabytes."""

    def run(ids: Ids) -> Iterator[NDArray[np.float32]]:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "logits.npy"
            rows = child.ask("logits", ids=[int(i) for i in ids], file=str(file))["rows"]
            if not rows:
                raise Failed("it gives no logits")
            found = np.load(file, allow_pickle=False)
        if found.shape[0] != len(ids) or found.shape[1] < vocab:
            raise Failed(f"its logits have the shape {found.shape}, for {len(ids)} ids of {vocab}")
        yield found[:, :vocab]

    return run


def perplexity(ids: Sequence[int], run: Logits) -> float:
    """exp of the mean negative log-likelihood of ids[1:]."""
    array = np.asarray(ids, np.int32)
    lost, at = 0.0, 0
    for logits in run(array):
        rows = logits[: max(0, len(array) - 1 - at)]
        target = array[at + 1 : at + 1 + len(rows)]
        if len(rows):
            lost -= float(np.take_along_axis(log_softmax(rows), target[:, None].astype(np.int64), 1).sum())
        at += len(logits)
    return math.exp(lost / (len(array) - 1))


def text_ids(llm: LLM) -> list[int]:
    """The shipped text, cut to what the context holds."""
    return llm.text.encode_prompt(shipped(TEXT))[: llm.session.capacity - 1]


def reference(llm: LLM) -> Reference:
    """The bundle's own. SpecError: it cannot be read."""
    return quality.read(llm.bundle.path(llm.bundle.manifest.reference).read_bytes())


def measure(stated: Reference, ids: Sequence[int], run: Logits) -> dict[str, Any]:
    """What the report says; {"absent": why} where the program gives no logits."""
    try:
        found = quality.compare(stated, run)
        assert found is not None
        within = found.kl <= KL_LIMIT and found.top1 >= TOP1_LIMIT
        return {"kl": found.kl, "top1": found.top1, "within": within, "perplexity": perplexity(ids, run)}
    except SpecError as error:
        return {"absent": error.message}
