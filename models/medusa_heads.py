"""The tensors of Medusa heads, whatever they are called: names and shapes enter, one layout of heads leaves.

| dialect | tensors of head i | what gives its logits |
|---|---|---|
| Medusa 0.1 (A)  | {i}.{l}.linear.weight, .bias, {i}.{L}.weight | its own matrix |
| Medusa 2 (B)    | {i}.{l}.linear.weight, .bias | the target's lm_head |
| Medusa 1.0 (C)  | as A or B behind `medusa_head.`, in the target's own checkpoint | as A or B |
| vLLM            | blocks.{i}.layers.{l}.weight, .bias | lm_heads.{i}.weight, lm_head.weight, or the target's |
| MLP             | heads.{i}.0.weight, .bias, heads.{i}.2.weight, .bias | its own second layer |

Residual heads compute x + SiLU(W x + b), L times; MLP heads W2 GELU(W1 x + b1) + b2. Head i of all but MLP predicts
token t + 2 + i from the target's last normed hidden state of token t; MLP heads begin at t + 1, which the target itself
gives, so their head 0 is left out. Blocks that a file leaves out because they share one module are repeated. vLLM's
tensor `token_map` names the ids of a reduced vocabulary.
Sources: Cai et al. 2024 (arXiv 2401.10774), FasterDecoding/Medusa, vLLM's medusa.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from spec_edge.models.contract import SpecError
from spec_edge.models.drafter import DrafterFiles, Shapes, check_architectures
from spec_edge.models.family import Json


@dataclass(frozen=True)
class Block:
    """Names of the file's tensors of one hidden layer. bias: None where there is none."""

    weight: str
    bias: str | None


@dataclass(frozen=True)
class HeadNames:
    """blocks, and the matrix that gives the logits (None: the target's) with its bias."""

    blocks: tuple[Block, ...]
    output: str | None
    output_bias: str | None = None


@dataclass(frozen=True)
class Layout:
    """All heads of a checkpoint. residual: x + SiLU(.), else GELU(.). token_map: tensor of the reduced vocabulary.
    always_biased: layers without a bias are incomplete."""

    dialect: str
    residual: bool
    heads: tuple[HeadNames, ...]
    token_map: str | None = None
    always_biased: bool = False

    @property
    def names(self) -> frozenset[str]:
        """Every tensor that is read."""
        parts = {name for head in self.heads for block in head.blocks for name in (block.weight, block.bias)}
        parts |= {name for head in self.heads for name in (head.output, head.output_bias)}
        return frozenset(name for name in (*parts, self.token_map) if name)


Found = Mapping[int, Mapping[str, str]]
"""head -> part ("0.linear.weight", "1.weight") -> the file's name."""

_RESIDUAL = re.compile(r"(?:medusa_head\.)?(\d{1,3})\.(\d{1,3}(?:\.linear)?\.(?:weight|bias))")
_VLLM = re.compile(r"(?:medusa_heads\.)?blocks\.(\d{1,3})\.layers\.(\d{1,3}\.(?:weight|bias))")
_VLLM_OUTPUT = re.compile(r"(?:medusa_heads\.)?lm_heads\.(\d{1,3})\.weight")
_VLLM_SHARED = ("lm_head.weight", "medusa_heads.lm_head.weight")
_MLP = re.compile(r"heads\.(\d{1,3})\.(\d{1,3}\.(?:weight|bias))")
INSIDE = "medusa_head."
"""Before the names of heads that lie in the target's own checkpoint."""


MOST = 1 << 24
"""Numbers of a config.json are below this."""


def claims(files: DrafterFiles) -> bool:
    """Medusa's tensors, or the keys of its config where there are none."""
    if files.tensors:
        return any(pattern.fullmatch(name) for pattern in (_RESIDUAL, _VLLM, _MLP) for name in files.tensors)
    return "medusa_num_heads" in files.config or files.config.get("model_type") == "medusa"


def layout(files: DrafterFiles, shapes: Shapes) -> Layout:
    """The heads of these tensors, the file's or `planned`. SpecError: one is incomplete or not understood."""
    check_architectures(files.config, files.name)
    dialects: tuple[tuple[re.Pattern[str], Callable[[DrafterFiles, Shapes, Found], Layout]], ...] = (
        (_RESIDUAL, _residual),
        (_VLLM, _vllm),
        (_MLP, _mlp),
    )
    for pattern, read in dialects:
        if found := _matched(pattern, shapes):
            made = read(files, shapes, _whole(files, found))
            return _checked(files, shapes, made)
    raise SpecError(f"{files.name} holds no Medusa heads")


def number(config: Json, key: str, default: int, least: int = 1) -> int:
    """A small whole number of config.json; `default` where it is absent."""
    value = config.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < MOST:
        raise SpecError(
            f"config.json: '{key}' must be a whole number from {least} to {MOST - 1}, not {str(value)[:40]!r}"
        )
    return value


def _matched(pattern: re.Pattern[str], shapes: Shapes) -> dict[int, dict[str, str]]:
    found: dict[int, dict[str, str]] = {}
    for name in shapes:
        if match := pattern.fullmatch(name):
            found.setdefault(int(match[1]), {})[match[2]] = name
    return found


def _whole(files: DrafterFiles, found: Found) -> Found:
    """Heads 0, 1, 2 ... without a gap."""
    if absent := sorted(set(range(max(found) + 1)) - found.keys()):
        raise SpecError(f"{files.name} has no tensors of head {absent[0]}, but some of head {max(found)}")
    return dict(sorted(found.items()))


def _blocks(files: DrafterFiles, head: int, parts: Mapping[str, str], middle: str, count: int) -> tuple[Block, ...]:
    """Blocks 0 .. count - 1; those that the file leaves out are the one before."""
    blocks: list[Block] = []
    for at in range(count):
        weight = parts.get(f"{at}{middle}.weight")
        if weight is not None:
            blocks.append(Block(weight, parts.get(f"{at}{middle}.bias")))
        elif blocks:
            blocks.append(blocks[-1])
        else:
            raise SpecError(f"{files.name} has no first layer of head {head}; the file is incomplete")
    return tuple(blocks)


def _residual(files: DrafterFiles, shapes: Shapes, found: Found) -> Layout:
    """Dialects A, B and C."""
    heads = []
    for head, parts in found.items():
        outputs = sorted(int(part.split(".")[0]) for part in parts if part.count(".") == 1)
        if len(outputs) > 1 or any(part.endswith(".bias") and part.count(".") == 1 for part in parts):
            raise SpecError(f"{files.name}: head {head} has layers that are not understood: {', '.join(sorted(parts))}")
        stored = 1 + max((int(part.split(".")[0]) for part in parts if ".linear." in part), default=-1)
        asked = number(files.config, "medusa_num_layers", stored or 1)
        count = outputs[0] if outputs else max(stored, asked)
        output = parts[f"{outputs[0]}.weight"] if outputs else None
        heads.append(HeadNames(_blocks(files, head, parts, ".linear", count), output))
    inside = any(name.startswith(INSIDE) for name in shapes)
    own = any(head.output for head in heads)
    dialect = "C, Medusa 1.0 (heads inside a model)" if inside else "A, Medusa 0.1" if own else "B, Medusa 2 / TGI"
    return Layout(dialect, True, tuple(heads), always_biased=True)


def _vllm(files: DrafterFiles, shapes: Shapes, found: Found) -> Layout:
    scale = files.config.get("logit_scale", 1.0)
    if scale not in (None, 1, 1.0):
        raise SpecError(f"config.json: 'logit_scale' = {str(scale)[:40]} is not supported; only 1 is")
    outputs = {head: parts["weight"] for head, parts in _matched_outputs(shapes).items()}
    shared = next((name for name in _VLLM_SHARED if name in shapes), None)
    if files.config.get("original_lm_head") and shared is None:
        shared = outputs.get(0)
    stored = {head: 1 + max(int(part.split(".")[0]) for part in parts) for head, parts in found.items()}
    heads = []
    for head, parts in found.items():
        if shared is None and outputs and head not in outputs:
            raise SpecError(f"{files.name} has no output matrix of head {head}; the file is incomplete")
        count = max(stored[head], number(files.config, "num_hidden_layers", stored[head]))
        heads.append(HeadNames(_blocks(files, head, parts, "", count), shared or outputs.get(head)))
    return Layout("vLLM", True, tuple(heads), _token_map(files, shapes))


def _matched_outputs(shapes: Shapes) -> dict[int, dict[str, str]]:
    found: dict[int, dict[str, str]] = {}
    for name in shapes:
        if match := _VLLM_OUTPUT.fullmatch(name):
            found.setdefault(int(match[1]), {})["weight"] = name
    return found


def _token_map(files: DrafterFiles, shapes: Shapes) -> str | None:
    """The tensor of the reduced vocabulary. SpecError where the config has one and the file no map."""
    found = next((name for name in ("token_map", "medusa_heads.token_map") if name in shapes), None)
    whole = files.config.get("vocab_size")
    reduced = files.config.get("truncated_vocab_size")
    if found is None and reduced is not None and reduced != whole:
        raise SpecError(
            f"{files.name} has no tensor 'token_map', and config.json says truncated_vocab_size = {reduced} of {whole}"
        )
    return found


def _mlp(files: DrafterFiles, shapes: Shapes, found: Found) -> Layout:
    """Linear, GELU, Linear. Head 0 gives what the target itself gives, and is left out."""
    del shapes
    heads = []
    for head, parts in found.items():
        if parts.keys() - {"0.weight", "0.bias", "2.weight", "2.bias"} or not {"0.weight", "2.weight"} <= parts.keys():
            raise SpecError(f"{files.name}: head {head} is no Linear, GELU, Linear: {', '.join(sorted(parts))}")
        hidden = Block(parts["0.weight"], parts.get("0.bias"))
        heads.append(HeadNames((hidden,), parts["2.weight"], parts.get("2.bias")))
    if len(heads) < 2:
        raise SpecError(
            f"{files.name} has one head, which predicts the next token as the target itself does; 2 are needed"
        )
    return Layout("MLP (Linear, GELU, Linear; head 0 predicts the next token)", False, tuple(heads[1:]))


def _checked(files: DrafterFiles, shapes: Shapes, made: Layout) -> Layout:
    """Every tensor is read, or belongs to the target around the heads or to the head that is left out."""
    inside = any(name.startswith(INSIDE) for name in shapes)
    strange = [
        name
        for name in sorted(shapes.keys() - made.names)
        if not (inside and not name.startswith(INSIDE)) and not (_MLP.fullmatch(name) or _VLLM_OUTPUT.fullmatch(name))
    ]
    if strange:
        raise SpecError(f"{files.name} holds a tensor that no Medusa head reads: '{strange[0]}'")
    if len({(len(head.blocks), head.output is None) for head in made.heads}) > 1:
        raise SpecError(f"{files.name}: the heads differ in their layers; heads of one kind are supported")
    return _biased(files, made)


def _biased(files: DrafterFiles, made: Layout) -> Layout:
    """A residual layer of the original always has a bias; elsewhere all have one or none. SpecError: it is missing."""
    blocks = {(block.weight, block.bias) for head in made.heads for block in head.blocks}
    outputs = {(head.output, head.output_bias) for head in made.heads if head.output}
    for pairs, always in ((blocks, made.always_biased), (outputs, False)):
        lost = sorted(f"{weight.removesuffix('weight')}bias" for weight, bias in pairs if bias is None)
        if lost and (always or len(lost) < len(pairs)):
            raise SpecError(f"{files.name} has no tensor '{lost[0]}'; the file is incomplete")
    return made


def planned(config: Json, hidden: int, vocab: int) -> Shapes:
    """Shapes that a config promises, where no tensors are at hand. hidden, vocab: where it leaves them out."""
    hidden, vocab = number(config, "hidden_size", hidden), number(config, "vocab_size", vocab)
    if config.get("model_type") == "medusa":
        heads, layers = number(config, "num_heads", 5), number(config, "num_hidden_layers", 1)
        reduced = number(config, "truncated_vocab_size", vocab)
        shapes: dict[str, tuple[int, ...]] = {}
        for i in range(heads):
            shapes |= {f"blocks.{i}.layers.{at}.weight": (hidden, hidden) for at in range(layers)}
            if not config.get("original_lm_head"):
                shapes[f"lm_heads.{i}.weight"] = (reduced, hidden)
        if config.get("original_lm_head"):
            shapes["lm_head.weight"] = (reduced, hidden)
        return shapes if reduced == vocab else shapes | {"token_map": (reduced,)}
    heads, layers = number(config, "medusa_num_heads", 5), number(config, "medusa_num_layers", 1)
    own = str(config.get("version")) != "2"
    shapes = {}
    for i in range(heads):
        shapes |= {f"{i}.{at}.linear.weight": (hidden, hidden) for at in range(layers)}
        shapes |= {f"{i}.{at}.linear.bias": (hidden,) for at in range(layers)}
        if own:
            shapes[f"{i}.{layers}.weight"] = (vocab, hidden)
    return shapes
