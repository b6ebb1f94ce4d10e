"""The target on spec-edge's own kernels: many texts in one run, each row with the bits that plain decoding gives it.

Enters: a checkpoint, a precision, the tapped layers. Leaves: a `KernelTarget`, whose runs give logits and features of
rows of any texts over one cache.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from spec_edge.export.candidate import rope_facts
from spec_edge.export.train.prompts import LONGEST
from spec_edge.models.checkpoint import Checkpoint, ModelConfig
from spec_edge.models.contract import FileFact, SpecError
from spec_edge.models.decoder import build
from spec_edge.models.forms import Form
from spec_edge.models.schemes.scheme import scheme
from spec_edge.models.store import WeightStore
from spec_edge.models.stored import store_model
from spec_edge.runtime.bench.machine import physical_cores
from spec_edge.runtime.native.library import library
from spec_edge.runtime.native.opened import NativeOpened
from spec_edge.runtime.providers.provider import Array

F32: TypeAlias = NDArray[np.float32]
F16: TypeAlias = NDArray[np.float16]
I64: TypeAlias = NDArray[np.int64]
Folder: TypeAlias = tempfile.TemporaryDirectory[str]
SUITED = ("keep", "int4", "int8")
MOST_ROWS = 128
SHUT = np.float32(-np.inf)
HIGHEST = 65504.0
CACHE_BYTES, MOST_SLOTS = 1_500_000_000, 1 << 16


@dataclass(frozen=True)
class Rows:
    """logits [asked, V]; features float16 [rows, T * H + H]: what entered the tapped layers, then the last hidden
    state. Logits are a view, valid until the next run."""

    logits: F32
    features: F16


class Cache:
    """arrays: of every layer, [1, KV, slots, D]. `bias` [MOST_ROWS, slots]: what each row of the next run sees: 0, or
    SHUT."""

    def __init__(self, config: ModelConfig, slots: int) -> None:
        self.slots = slots
        shape = (1, config.kv_heads, slots, config.head_dim)
        names = [f"{part}.{layer}" for layer in range(config.layers) for part in ("key", "value")]
        self.arrays = {name: np.zeros(shape, np.float32) for name in names}
        self.bias = np.full((MOST_ROWS, slots), SHUT, np.float32)

    def keep(self, slots: I64) -> None:
        """The rows in these slots become the first ones, in this order."""
        for array in self.arrays.values():
            array[0, :, : len(slots)] = array[0][:, slots]

    def take(self, other: Cache, first: int, last: int, at: int) -> None:
        """Rows [first, last) of another cache into the slots from `at` on."""
        for name, array in self.arrays.items():
            array[0, :, at : at + last - first] = other.arrays[name][0, :, first:last]


class KernelTarget:
    """A run takes up to MOST_ROWS rows of one cache and writes their keys and values behind all others.

    all    the cache of every text. width: H
    one    a cache where a single text is read from its beginning on: rows that see the same first slots share what is
           read of them
    """

    def __init__(self, opened: NativeOpened, config: ModelConfig, taps: int, slots: int, folder: Folder) -> None:
        self.width = config.hidden_size
        self._opened, self._folder = opened, folder
        self.all, self.one = Cache(config, slots), Cache(config, min(config.context, LONGEST))
        self._hidden = np.empty((MOST_ROWS, config.hidden_size), np.float32)
        self._taps = np.empty((MOST_ROWS, taps * config.hidden_size), np.float32)
        self._logits = np.empty((MOST_ROWS, config.vocab_size), np.float32)
        self._ids, self._rows = np.empty(MOST_ROWS, np.int32), np.empty(MOST_ROWS, np.int32)
        self._positions, self._last = np.empty(MOST_ROWS, np.int64), np.empty(1, np.int32)
        self._bound: dict[tuple[int, int, int], Callable[[], None]] = {}

    def run(self, cache: Cache, ids: Sequence[int], positions: I64, before: int, asked: Sequence[int]) -> Rows:
        """Rows [n] into the slots from `before` on; the cache's bias is theirs. Logits of the rows in `asked`."""
        n, wanted = len(ids), len(asked)
        self._ids[:n], self._positions[:n], self._rows[:wanted] = ids, positions, asked
        self._last[0] = before + n - 1
        key = cache.slots, n, wanted
        if key not in self._bound:
            self._bound[key] = self._bind(cache, n, wanted)
        self._bound[key]()
        features = np.concatenate([self._taps[:n], self._hidden[:n]], 1)
        return Rows(self._logits[:wanted], features.clip(-HIGHEST, HIGHEST).astype(np.float16))

    def __enter__(self) -> KernelTarget:
        return self

    def __exit__(self, *_: object) -> None:
        """Its memory and its files go."""
        self._opened.close()
        self._bound.clear()
        self.all.arrays.clear()
        self.one.arrays.clear()
        self._folder.cleanup()

    def _bind(self, cache: Cache, n: int, asked: int) -> Callable[[], None]:
        inputs: dict[str, Array] = {f"past_{name}": array for name, array in cache.arrays.items()}
        outputs: dict[str, Array] = {f"present_{name}": array for name, array in cache.arrays.items()}
        inputs |= {
            "input_ids": self._ids[None, :n],
            "rows": self._rows[:asked],
            "position_ids": self._positions[None, :n],
            "seqlens_k": self._last,
            "bias": cache.bias[None, None, :n],
        }
        outputs |= {"logits": self._logits[None, :asked], "hidden": self._hidden[None, :n]}
        outputs |= {"taps": self._taps[None, :n]} if self._taps.size else {}
        return self._opened.bind(inputs, outputs)


def open_kernels(checkpoint: Checkpoint, precision: str, taps: Sequence[int], slots: int | None = None) -> KernelTarget:
    """precision: "auto" is the file's own values. slots: None: what CACHE_BYTES hold, and at least two whole texts.

    SpecError: this processor, these weights or this precision have no kernels.
    """
    name, config = "keep" if precision == "auto" else precision, checkpoint.config
    library()
    if name not in SUITED:
        raise SpecError(f"precision {name} has no kernels")
    scheme(name).check(checkpoint.weights)
    folder = tempfile.TemporaryDirectory(prefix="spec-edge-train-", ignore_cleanup_errors=True)
    try:
        opened = _opened(checkpoint, name, tuple(taps), Path(folder.name))
    except BaseException:
        folder.cleanup()
        raise
    row = 2 * 4 * config.layers * config.kv_heads * config.head_dim
    slots = slots or max(min(CACHE_BYTES // row, MOST_SLOTS), 2 * min(config.context, LONGEST))
    return KernelTarget(opened, config, len(taps), slots, folder)


def _opened(checkpoint: Checkpoint, precision: str, taps: tuple[int, ...], folder: Path) -> NativeOpened:
    config = checkpoint.config
    form = Form("step", "fused", None, None, config.context, taps=taps)
    with WeightStore(folder / "weights.bin") as store:
        stored = store_model(
            config, rope_facts(config), checkpoint.weights, scheme(precision), store, form.context, ("float32",)
        )
    model, signature = build(config, stored, form)
    file = folder / f"{form.name}.onnx"
    file.write_bytes(model.SerializeToString())
    spec = signature.spec("target", FileFact(file.name, 0, ""))
    return NativeOpened(file, folder / "weights.bin", spec, physical_cores())
