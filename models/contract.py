"""The contract between export and runtime: what a bundle says about itself.

Enters: nothing but the standard library and click (a desktop app imports this module).
Leaves: frozen records (`Manifest` and its parts), the one error type, and the strict reader and
writer of `bundle.json`.
"""

from __future__ import annotations

from dataclasses import dataclass

import click

FORMAT = 1
"""Version of the bundle format. A runtime refuses any other."""

MANIFEST = "bundle.json"
Dim = int | str


class SpecError(click.ClickException):
    """What went wrong and what to do, in one line. `exit_code` 1: a failure.

    What a message quotes may hold anything: line ends become spaces, other characters that do not print are escaped.
    """

    def __init__(self, message: str) -> None:
        super().__init__("".join(_shown(c) for c in message))


class BadUsage(SpecError):
    """The call itself is wrong (an empty prompt, an unknown name). `exit_code` 2."""

    exit_code = 2


def _shown(character: str) -> str:
    if character.isprintable():
        return character
    return " " if character.isspace() else character.encode("unicode_escape").decode()


@dataclass(frozen=True)
class FileFact:
    """A file of the bundle: one path component inside the folder, its size in bytes and SHA-256 (hex)."""

    file: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class TensorSpec:
    """A graph input or output. `dtype` is numpy's name; a `str` dimension is symbolic."""

    name: str
    dtype: str
    shape: tuple[Dim, ...]


@dataclass(frozen=True)
class GraphSpec:
    """One ONNX graph of the bundle.

    network   "target", the name of the drafter whose graph it is, or "cache"
    role      "step": any width, `rows` chooses which rows get logits;
              "verify": fixed width S, logits of all rows; "prefill": fixed width, logits of the last row;
              "keep" of the cache: see models/keep_graph.py;
              a drafter's own roles are in the file of its network (models/medusa.py, models/eagle_graph.py)
    lowering  "portable": plain opset-17 ops, only the S new K/V rows come out;
              "fused": GroupQueryAttention over one past = present buffer of M slots
    width     S, or None where it is symbolic
    past      P (portable) or M (fused), or None where it is symbolic
    borrows   target tensors that a drafter's graph uses from the shared weights file
    part      of `parts` graphs, run one after the other, that are one network cut between layers. Part i reads
              `residual.i` [1, S, H], the residual stream, and writes `residual.i+1`; the first one reads input_ids, the
              last one gives logits and `hidden`. Each has the K/V of its own layers and the taps that lie in them
    """

    name: str
    network: str
    role: str
    lowering: str
    width: int | None
    past: int | None
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    file: FileFact
    borrows: tuple[str, ...] = ()
    part: int = 0
    parts: int = 1


def layers_of(count: int, part: int, parts: int) -> range:
    """The layers of a network of `count` that this part runs: as many as the others, give or take one."""
    return range(count * part // parts, count * (part + 1) // parts)


def taps_of(taps: tuple[int, ...], count: int, part: int, parts: int) -> tuple[int, ...]:
    """The tapped layers that this part gives, in the order of `taps`: what enters its layers, and in the last part
    what leaves them."""
    own = layers_of(count, part, parts)
    return tuple(tap for tap in taps if tap in own or (tap == count and part + 1 == parts))


@dataclass(frozen=True)
class RopeFacts:
    """Rotary embedding, half-split pairing: angle = position * inv_freq[D/2]; cos and sin times `scale`."""

    inv_freq: tuple[float, ...]
    scale: float


@dataclass(frozen=True)
class ModelFacts:
    """Shape of the target. `context`: most positions of this bundle; `trained_context`: of the checkpoint.

    taps  layers whose input (the residual stream, not normed) the graphs give as output `taps` [1, S, T * H];
          `layers` itself stands for what the final norm reads. (): there is no such output
    """

    name: str
    family: str
    vocab_size: int
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int
    trained_context: int
    rope: RopeFacts
    taps: tuple[int, ...] = ()


@dataclass(frozen=True)
class TextFacts:
    """Tokenizer and template. `tokens`: number of real token ids; logits at or past it are padding."""

    tokenizer: FileFact
    chat_template: FileFact | None
    tokens: int
    bos_id: int | None
    add_bos: bool
    eos_ids: tuple[int, ...]


@dataclass(frozen=True)
class Source:
    """Where the weights came from: `kind` "gguf" or "safetensors", a display name, bytes and SHA-256."""

    kind: str
    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Parity:
    """Export's own check: largest absolute logit error of the fp32 graph against the numpy reference."""

    max_abs_error: float
    tokens: int


@dataclass(frozen=True)
class KindQuality:
    """KL divergence (nats, mean per position) and top-1 agreement against fp32 on one kind of text."""

    kind: str
    kl: float
    top1: float
    tokens: int


@dataclass(frozen=True)
class Quality:
    """The same over the whole check text; `kinds` holds every kind, `worst` names the one with the largest KL."""

    kl: float
    top1: float
    tokens: int
    worst: str
    kinds: tuple[KindQuality, ...]


@dataclass(frozen=True)
class DraftFact:
    """The draft model's bundle: the name of its folder, which lies beside this one, and SHA-256 of its bundle.json."""

    folder: str
    sha256: str


@dataclass(frozen=True)
class FallbackFact:
    """The same model exported for another target, in a bundle beside this one: what runs where no provider of this
    one's target does. Its weights are its own, so its text is another model's, and is labelled so.

    folder, sha256  as in `DraftFact`
    target, precision  of that bundle
    """

    folder: str
    sha256: str
    target: str
    precision: str


@dataclass(frozen=True)
class CacheFacts:
    """Shape and positions of a drafter's own K/V cache. `scratch`: rows past the context that its graphs allow for."""

    layers: int
    kv_heads: int
    head_dim: int
    rope: RopeFacts
    scratch: int = 0


@dataclass(frozen=True)
class DrafterFact:
    """A drafter whose weights lie in this bundle. Its graphs are those whose `network` is `name`.

    name        the method that runs it: "medusa" or "eagle"
    kind        "medusa", "eagle" (EAGLE-1 and 2: one network) or "eagle3"
    reads       "hidden" or "taps": the target's output that it starts from
    bytes       of its own weights in the weights file
    source      where its weights came from
    heads       medusa: number of heads; 1 for the others
    accuracy    [head][rank]: how often a head's token of that rank is the target's, measured; (): not known
    cache       None: it keeps none
    vocabulary  file of little-endian int32, the target's id of each drafted id; None: the target's own ids
    """

    name: str
    kind: str
    reads: str
    bytes: int
    source: Source
    heads: int = 1
    accuracy: tuple[tuple[float, ...], ...] = ()
    cache: CacheFacts | None = None
    vocabulary: FileFact | None = None


@dataclass(frozen=True)
class Manifest:
    """All of `bundle.json`.

    versions  of what made it: spec-edge, onnx, onnxruntime
    draft, fallback  bundles that were exported with it and lie beside it
    """

    format: int
    model: ModelFacts
    text: TextFacts
    target: str
    precision: str
    source: Source
    weights: FileFact
    reference: FileFact
    graphs: tuple[GraphSpec, ...]
    drafters: tuple[DrafterFact, ...]
    versions: dict[str, str]
    quality: Quality
    parity: Parity | None
    draft: DraftFact | None = None
    fallback: FallbackFact | None = None
