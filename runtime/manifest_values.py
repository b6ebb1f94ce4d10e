"""Values of a manifest that have the right type and still make no sense: refused in one line, with the fix.

Enters: a `Manifest`. Leaves: nothing, or a SpecError.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping
from typing import NoReturn

from spec_edge.models.contract import (
    MANIFEST,
    CacheFacts,
    DrafterFact,
    DraftFact,
    FallbackFact,
    FileFact,
    GraphSpec,
    Manifest,
    ModelFacts,
    SpecError,
    TextFacts,
)

INT_LIMIT = 1 << 63
CONTEXT_LIMIT = 1 << 24
LAYER_LIMIT = 1 << 10
SCRATCH_LIMIT = 1 << 12
ROPE_LIMIT = 1e4
"""Largest frequency (radians per position) and scale that are believed; real ones are about 1."""
DTYPES = ("float32", "float16", "int8", "uint8", "int32", "int64", "bool")
ROLES = ("step", "verify", "prefill")
KINDS = {
    "medusa": ("medusa", ("heads",)),
    "eagle": ("eagle", ("step", "fuse", "prefill", "catchup", "expand")),
    "eagle3": ("eagle", ("step", "fuse", "prefill", "catchup", "expand")),
}
"""Kind of a drafter -> its name, and the roles of its graphs."""
HEAD_LIMIT = 64
READS = ("hidden", "taps")
LOWERINGS = ("portable", "fused")
FIX = "export the model again with this version of spec-edge"

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")
_DEVICE = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)
_SHA256 = re.compile(r"[0-9a-f]{64}")


def check(manifest: Manifest) -> None:
    """Refuse values that have the right type and still make no sense."""
    _check_model(manifest.model)
    _check_text(manifest.text, manifest.model)
    _check_files(files(manifest))
    for where, beside in (("draft", manifest.draft), ("fallback", manifest.fallback)):
        if beside is not None:
            _check_beside(beside, where)
    _unique("drafters", [d.name for d in manifest.drafters])
    for i, drafter in enumerate(manifest.drafters):
        _check_drafter(drafter, f"drafters[{i}]", manifest)
    _unique("graphs", [g.name for g in manifest.graphs])
    roles = {"target": ROLES, "cache": ("keep",)} | {d.name: KINDS[d.kind][1] for d in manifest.drafters}
    for i, graph in enumerate(manifest.graphs):
        _check_graph(graph, f"graphs[{i}]", roles)


def files(manifest: Manifest) -> tuple[FileFact, ...]:
    """Every file of the bundle but bundle.json, each once."""
    graphs = [g.file for g in manifest.graphs]
    template = [manifest.text.chat_template] if manifest.text.chat_template else []
    vocabularies = [d.vocabulary for d in manifest.drafters if d.vocabulary]
    facts = [manifest.weights, manifest.reference, manifest.text.tokenizer, *template, *vocabularies, *graphs]
    return tuple(dict.fromkeys(facts))


def check_vocabulary(manifest: Manifest, drafter: DrafterFact, data: bytes) -> None:
    """Refuse a drafter's vocabulary file that holds anything but the target's ids, each once."""
    ids = struct.unpack(f"<{len(data) // 4}i", data[: len(data) // 4 * 4])
    if len(data) % 4 or not ids or len(set(ids)) != len(ids):
        fail(f"vocabulary of drafter {drafter.name}", "is no list of different 32-bit ids")
    if not 0 <= min(ids) <= max(ids) < manifest.model.vocab_size:
        fail(f"vocabulary of drafter {drafter.name}", f"names an id outside 0..{manifest.model.vocab_size - 1}")


def _check_model(model: ModelFacts) -> None:
    for name in ("vocab_size", "hidden_size", "layers", "heads", "kv_heads", "head_dim", "context", "trained_context"):
        limit = LAYER_LIMIT if name == "layers" else CONTEXT_LIMIT
        if not 1 <= getattr(model, name) <= limit:
            fail(f"model.{name}", f"{getattr(model, name)} is not within 1..{limit}")
    if model.heads % model.kv_heads:
        fail("model.kv_heads", f"{model.kv_heads} does not divide heads {model.heads}")
    if any(tap > model.layers for tap in model.taps):
        fail("model.taps", f"names a layer past the {model.layers} of the model")
    _check_rope(model, "model")


def _check_text(text: TextFacts, model: ModelFacts) -> None:
    if not 1 <= text.tokens <= model.vocab_size:
        fail("text.tokens", f"{text.tokens} is not within 1..{model.vocab_size} (model.vocab_size)")
    for token in (*text.eos_ids, *([] if text.bos_id is None else [text.bos_id])):
        if token >= text.tokens:
            fail("text", f"token id {token} is not below text.tokens {text.tokens}")


def _check_drafter(drafter: DrafterFact, where: str, manifest: Manifest) -> None:
    _one_of(drafter.kind, KINDS, f"{where}.kind")
    _one_of(drafter.name, KINDS[drafter.kind][:1], f"{where}.name")
    _one_of(drafter.reads, READS, f"{where}.reads")
    if (drafter.kind == "medusa") != (drafter.cache is None):
        fail(f"{where}.cache", f"{'is given' if drafter.cache else 'is missing'} for kind {drafter.kind}")
    if drafter.reads == "taps" and not manifest.model.taps:
        fail(f"{where}.reads", "taps, which the target's graphs do not give")
    if not 1 <= drafter.heads <= HEAD_LIMIT:
        fail(f"{where}.heads", f"{drafter.heads} is not within 1..{HEAD_LIMIT}")
    if drafter.bytes > manifest.weights.bytes:
        fail(f"{where}.bytes", f"{drafter.bytes} is more than the weights file's {manifest.weights.bytes}")
    if any(not 0 <= rate <= 1 for head in drafter.accuracy for rate in head):
        fail(f"{where}.accuracy", "holds a rate outside 0..1")
    if len(drafter.accuracy) not in (0, drafter.heads):
        fail(f"{where}.accuracy", f"has {len(drafter.accuracy)} heads, the drafter has {drafter.heads}")
    if drafter.cache is not None:
        _check_cache(drafter.cache, f"{where}.cache")
    if drafter.vocabulary is not None and not 4 <= drafter.vocabulary.bytes <= 4 * manifest.model.vocab_size:
        fail(f"{where}.vocabulary", f"has {drafter.vocabulary.bytes} bytes for {manifest.model.vocab_size} ids at most")
    if not any(graph.network == drafter.name for graph in manifest.graphs):
        fail(where, f"drafter {drafter.name} has no graph")


def _check_cache(cache: CacheFacts, where: str) -> None:
    for name in ("layers", "kv_heads", "head_dim"):
        limit = LAYER_LIMIT if name == "layers" else CONTEXT_LIMIT
        if not 1 <= getattr(cache, name) <= limit:
            fail(f"{where}.{name}", f"{getattr(cache, name)} is not within 1..{limit}")
    if not 1 <= cache.scratch <= SCRATCH_LIMIT:
        fail(f"{where}.scratch", f"{cache.scratch} is not within 1..{SCRATCH_LIMIT}")
    _check_rope(cache, where)


def _check_rope(facts: ModelFacts | CacheFacts, where: str) -> None:
    frequencies = facts.rope.inv_freq
    if 2 * len(frequencies) != facts.head_dim:
        fail(f"{where}.rope.inv_freq", f"has {len(frequencies)} values for a head_dim of {facts.head_dim}")
    if not all(0 <= frequency <= ROPE_LIMIT for frequency in frequencies):
        fail(f"{where}.rope.inv_freq", f"has a value outside 0..{ROPE_LIMIT:g}")
    if not 0 < facts.rope.scale <= ROPE_LIMIT:
        fail(f"{where}.rope.scale", f"{facts.rope.scale:g} is not above 0 and at most {ROPE_LIMIT:g}")


def _one_of(value: str, known: Iterable[str], where: str) -> None:
    if value not in known:
        fail(where, f"{show(value)} is not one of {', '.join(known)}")


def _check_graph(graph: GraphSpec, where: str, roles: Mapping[str, tuple[str, ...]]) -> None:
    _one_of(graph.network, roles, f"{where}.network")
    _one_of(graph.role, roles[graph.network], f"{where}.role")
    _one_of(graph.lowering, LOWERINGS, f"{where}.lowering")
    if graph.width == 0 or graph.past == 0:
        fail(where, "width and past are at least 1")
    if not graph.part < graph.parts <= LAYER_LIMIT:
        fail(f"{where}.part", f"{graph.part} is none of {graph.parts} parts")
    if graph.parts > 1 and (graph.network != "target" or graph.width is None or graph.past is None):
        fail(f"{where}.parts", f"{graph.parts}: only the target's graphs of fixed width are cut into parts")
    for side in ("inputs", "outputs"):
        tensors = getattr(graph, side)
        _unique(f"{where}.{side}", [t.name for t in tensors])
        for tensor in tensors:
            if tensor.dtype not in DTYPES:
                fail(f"{where}.{side}", f"dtype {show(tensor.dtype)} is not one of {', '.join(DTYPES)}")


def _check_files(facts: Iterable[FileFact]) -> None:
    seen = {MANIFEST: MANIFEST}
    for fact in facts:
        if not file_name_is_safe(fact.file):
            fail("", f"file name {show(fact.file)} is not allowed (letters, digits, . _ -, no folder, at most 128)")
        if not _SHA256.fullmatch(fact.sha256):
            fail("", f"SHA-256 of {fact.file} is not 64 lower-case hex digits")
        if fact.file.lower() in seen:
            fail("", f"two files are called {fact.file} ({seen[fact.file.lower()]})")
        seen[fact.file.lower()] = fact.file


def _check_beside(beside: DraftFact | FallbackFact, where: str) -> None:
    if not file_name_is_safe(beside.folder):
        fail(f"{where}.folder", f"{show(beside.folder)} is not allowed (letters, digits, . _ -, no path, at most 128)")
    if not _SHA256.fullmatch(beside.sha256):
        fail(f"{where}.sha256", "is not 64 lower-case hex digits")


def file_name_is_safe(name: str) -> bool:
    """One path component that means the same file on every system."""
    return bool(_NAME.fullmatch(name)) and not name.endswith(".") and not _DEVICE.fullmatch(name)


def _unique(where: str, names: list[str]) -> None:
    if len(set(names)) != len(names):
        fail(where, f"two are called {show(next(n for n in names if names.count(n) > 1))}")


# Messages


def fail(where: str, problem: str) -> NoReturn:
    raise SpecError(f"{MANIFEST}{': ' + ascii(where)[1:-1][:200] if where else ''} {problem}; {FIX}")


def show(value: object) -> str:
    """A value for a message: ASCII, short."""
    text = ascii(value) if not isinstance(value, dict | list | int) or isinstance(value, bool) else ""
    if isinstance(value, int) and not isinstance(value, bool):
        text = str(value) if abs(value) < INT_LIMIT else f"of {value.bit_length()} bits"
    return text if len(text) <= 60 else text[:60] + "..."
