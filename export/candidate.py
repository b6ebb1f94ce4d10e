"""One precision of a model on disk: its weights file and graphs, before it is known whether they are good enough.

Enters: a `Plan`. Leaves: a `Candidate`, first with the graphs that measuring needs, then complete.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

from spec_edge.export.drafters import Attached, Placed, place, taps, write_graphs
from spec_edge.export.keeping import LOWERING, keep_file
from spec_edge.export.parts import parts_needed
from spec_edge.export.reference_law import ReferenceLaw
from spec_edge.export.rules import Place
from spec_edge.export.suited import suited
from spec_edge.export.written import file_fact
from spec_edge.models.checkpoint import Checkpoint, ModelConfig, TextFiles
from spec_edge.models.contract import (
    FORMAT,
    FileFact,
    GraphSpec,
    Manifest,
    ModelFacts,
    Parity,
    Quality,
    RopeFacts,
    TextFacts,
)
from spec_edge.models.decoder import build
from spec_edge.models.drafter import Room
from spec_edge.models.forms import Form, forms
from spec_edge.models.keep_graph import NAME, NETWORK, ROLE
from spec_edge.models.reference import inv_freq
from spec_edge.models.schemes.scheme import scheme
from spec_edge.models.store import WeightStore
from spec_edge.models.stored import Stored, store_model
from spec_edge.runtime.quality import Reference, write
from spec_edge.targets.target import Target

WEIGHTS = "weights.bin"
TOKENIZER = "tokenizer.json"
TEMPLATE = "chat_template.jinja"
REFERENCE = "reference.npz"
UNMEASURED = Quality(0.0, 0.0, 0, "", ())


@dataclass(frozen=True)
class Plan:
    """What every candidate of one export shares."""

    checkpoint: Checkpoint
    target: Target
    context: int
    widths: tuple[int, ...]
    drafters: tuple[Attached, ...] = ()
    parts: int | None = None

    def forms(self, precision: str, weights: int = 0) -> tuple[Form, ...]:
        """Every graph of the target, whose weights have so many bytes."""
        parts = self.parts or parts_needed(self.checkpoint.config, weights, self.target.most_weights)
        return forms(self.target, precision, self.context, self.widths, taps(self.drafters), parts)

    def measured(self, wanted: tuple[Form, ...]) -> tuple[Form, ...]:
        """The graphs that quality is measured on: any-width ones where the target runs them, else also the fixed-width
        ones of the largest bucket, which are what it runs."""
        largest = max(form.past or 0 for form in wanted)
        return tuple(f for f in wanted if f.width is None or (not self.target.symbolic and f.past == largest))

    def room(self, precision: str) -> Room:
        """What the drafters' graphs are made for."""
        return Room(self.target, precision, self.context, self.widths)


@dataclass(frozen=True)
class Candidate:
    """`folder` holds what `manifest` lists; graphs of `waiting` are still to be written."""

    folder: Path
    stored: Stored
    manifest: Manifest
    waiting: tuple[Form, ...]
    drafters: tuple[Placed, ...] = ()


def start(plan: Plan, precision: str, folder: Path, peaks: Mapping[str, float]) -> Candidate:
    """Write the packed weights, the tokenizer files and the graphs that are measured."""
    folder.mkdir()
    wanted = plan.forms(precision)
    dtypes = tuple(dict.fromkeys(form.activation for form in wanted))
    checkpoint, rope = plan.checkpoint, rope_facts(plan.checkpoint.config)
    table = max(form.context for form in wanted)
    with WeightStore(folder / WEIGHTS) as store:
        stored = store_model(
            checkpoint.config, rope, checkpoint.weights, scheme(precision), store, table, dtypes, peaks
        )
        room = plan.room(precision)
        placed = place(plan.drafters, store, dtypes, room, checkpoint.weights, folder)
        weights = store.fact()
    wanted = plan.forms(precision, weights.bytes)
    first = plan.measured(wanted)
    manifest = Manifest(
        format=FORMAT,
        model=_model_facts(plan, rope),
        text=_text_facts(checkpoint.text, folder),
        target=plan.target.name,
        precision=precision,
        source=checkpoint.source,
        weights=weights,
        reference=FileFact(REFERENCE, 0, ""),
        graphs=tuple(_graph(plan, precision, stored, form, folder) for form in first),
        drafters=tuple(p.fact for p in placed),
        versions={name: version(name) for name in ("spec-edge", "onnx", "onnxruntime")},
        quality=UNMEASURED,
        parity=None,
    )
    waiting = tuple(form for form in wanted if form not in first)
    return Candidate(folder, stored, manifest, waiting, placed)


def finish(candidate: Candidate, plan: Plan, law: ReferenceLaw, quality: Quality, parity: Parity | None) -> Candidate:
    """Write the fixed-width graphs, those of the drafters, and the reference."""
    precision = candidate.manifest.precision
    room = plan.room(precision)
    drafting = write_graphs(candidate.drafters, candidate.stored, room, plan.target, candidate.folder)
    graphs = (_graph(plan, precision, candidate.stored, form, candidate.folder) for form in candidate.waiting)
    manifest = replace(
        candidate.manifest,
        graphs=(*candidate.manifest.graphs, *graphs, *_keep(candidate, plan), *drafting),
        reference=_reference(law.reference, candidate.folder),
        quality=quality,
        parity=parity,
    )
    return replace(candidate, manifest=manifest, waiting=())


def _graph(plan: Plan, precision: str, stored: Stored, form: Form, folder: Path) -> GraphSpec:
    model, signature = build(plan.checkpoint.config, stored, form)
    data = suited(model, Place(form.name, "target", form.role, form.width, form.past), plan.target, precision)
    return signature.spec("target", file_fact(folder, f"{form.name}.onnx", data))


def _keep(candidate: Candidate, plan: Plan) -> tuple[GraphSpec, ...]:
    """Of a target whose provider holds the cache: the graph that writes to it."""
    kept = keep_file(plan.checkpoint.config, plan.target, candidate.manifest.precision)
    if kept is None:
        return ()
    data, inputs, outputs = kept
    file = file_fact(candidate.folder, f"{NAME}.onnx", data)
    return (GraphSpec(NAME, NETWORK, ROLE, LOWERING, None, None, inputs, outputs, file),)


def _reference(reference: Reference, folder: Path) -> FileFact:
    path = folder / REFERENCE
    write(reference, path)
    return _fact(path)


def rope_facts(config: ModelConfig) -> RopeFacts:
    """Of the bundle's record, and of its tables."""
    frequencies, scale = inv_freq(config)
    return RopeFacts(tuple(float(f) for f in frequencies), scale)


def _model_facts(plan: Plan, rope: RopeFacts) -> ModelFacts:
    config = plan.checkpoint.config
    return ModelFacts(
        name=plan.checkpoint.name,
        family=config.family,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        layers=config.layers,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        context=plan.context,
        trained_context=config.context,
        rope=rope,
        taps=taps(plan.drafters),
    )


def _text_facts(text: TextFiles, folder: Path) -> TextFacts:
    template = None if text.chat_template is None else file_fact(folder, TEMPLATE, text.chat_template.encode("utf-8"))
    return TextFacts(
        tokenizer=file_fact(folder, TOKENIZER, text.tokenizer_json),
        chat_template=template,
        tokens=text.tokens,
        bos_id=text.bos_id,
        add_bos=text.add_bos,
        eos_ids=tuple(sorted(text.eos_ids)),
    )


def _fact(path: Path) -> FileFact:
    return FileFact(path.name, path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())
