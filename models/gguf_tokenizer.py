"""A GGUF file's tokenizer metadata enters; a Hugging Face tokenizer.json and what goes with it leave.

Byte-level BPE only (`tokenizer.ggml.model` "gpt2"). GGUF files name how text is split before BPE
(`tokenizer.ggml.pre`) but do not hold the rule, so each known name has its rule here, as the model's own
tokenizer.json states it; an unknown name is refused rather than guessed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

from spec_edge.models.checkpoint import TextFiles
from spec_edge.models.contract import SpecError
from spec_edge.models.gguf_file import Meta, integer, typed

Part = dict[str, object]

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 1, 2, 3, 4, 5
"""Values of tokenizer.ggml.token_type."""
_TURN_ENDS = frozenset({"<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"})
"""Control tokens that end a turn or a text wherever they exist, named as eos by the file or not."""
_MAX_TEMPLATE = 256 << 10


@dataclass(frozen=True)
class Splitting:
    """How text is cut before BPE. `steps`: tokenizer.json's pre-tokenizers, in order."""

    steps: tuple[Part, ...]
    nfc: bool = False
    ignore_merges: bool = False
    add_bos: bool = False


def _byte_level(use_regex: bool) -> Part:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": use_regex}


def _split(digits: str) -> tuple[Part, ...]:
    pattern = {"Regex": _WORDS.format(digits=digits)}
    return {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}, _byte_level(use_regex=False)


_GPT2 = Splitting((_byte_level(use_regex=True),))
_LLAMA3 = Splitting(_split("{1,3}"), ignore_merges=True, add_bos=True)
SPLITTINGS: Mapping[str, Splitting] = {
    "gpt-2": _GPT2,
    "smollm": Splitting(({"type": "Digits", "individual_digits": True}, _byte_level(use_regex=True))),
    "qwen2": Splitting(_split(""), nfc=True),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
}


def _splitting(meta: Meta) -> Splitting:
    model = typed(meta, "tokenizer.ggml.model", str)
    if model != "gpt2":
        raise SpecError(
            f"the GGUF file's tokenizer '{model}' is not byte-level BPE and is not supported: "
            "use the model's Hugging Face folder, which holds its tokenizer.json"
        )
    pre = typed(meta, "tokenizer.ggml.pre", str, "default")
    if pre not in SPLITTINGS:
        raise SpecError(
            f"the GGUF file says tokenizer.ggml.pre = '{pre}', whose rule for splitting text is not known "
            f"(known: {', '.join(SPLITTINGS)}): use the model's Hugging Face folder"
        )
    for key in ("add_eos_token", "add_space_prefix"):
        if typed(meta, f"tokenizer.ggml.{key}", bool, False):
            raise SpecError(f"GGUF key 'tokenizer.ggml.{key}' = true is not supported for byte-level BPE")
    return SPLITTINGS[pre]


def _types(meta: Meta, count: int) -> list[int]:
    value = meta.get("tokenizer.ggml.token_type")
    if value is None:
        raise SpecError("the GGUF file has no key 'tokenizer.ggml.token_type'")
    types = [int(t) for t in value] if not isinstance(value, int | float | str) else []
    if len(types) != count:
        raise SpecError(f"the GGUF file has {len(types)} token types for {count} tokens")
    return types


def _vocabulary(meta: Meta, vocab_size: int) -> tuple[list[str], list[int]]:
    """Tokens and their types without the unused ones at the end, which only pad the embedding."""
    tokens = list(typed(meta, "tokenizer.ggml.tokens", tuple))
    types = _types(meta, len(tokens))
    while types and types[-1] == _UNUSED:
        types.pop()
    del tokens[len(types) :]
    if not 0 < len(tokens) <= vocab_size:
        raise SpecError(f"the GGUF file has {len(tokens)} tokens for {vocab_size} embedding rows")
    if len(set(tokens)) != len(tokens):
        raise SpecError("the GGUF file's vocabulary holds the same token twice")
    return tokens, types


def _merges(meta: Meta) -> list[list[str]]:
    merges = [merge.split(" ") for merge in typed(meta, "tokenizer.ggml.merges", tuple)]
    if any(len(pair) != 2 for pair in merges):
        raise SpecError("the GGUF file's key 'tokenizer.ggml.merges' holds an entry that is not two tokens")
    return merges


def _added(tokens: Sequence[str], types: Sequence[int]) -> list[Part]:
    """Tokens that are matched before BPE. Control tokens are special: text never becomes one."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return [
        {"id": i, "content": token, **flags, "special": kind != _USER_DEFINED}
        for i, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED)
    ]


def _with_bos(bos: str, bos_id: int) -> Part:
    single = [{"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    pair = [{"Sequence": {"id": "B", "type_id": 1}}]
    special = {bos: {"id": bos, "ids": [bos_id], "tokens": [bos]}}
    return {"type": "TemplateProcessing", "single": single, "pair": single + pair, "special_tokens": special}


def _model(rule: Splitting, tokens: Sequence[str], merges: list[list[str]]) -> Part:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": rule.ignore_merges,
        "vocab": {token: i for i, token in enumerate(tokens)},
        "merges": merges,
    }


def _tokenizer_json(rule: Splitting, added: list[Part], bos: Part | None, model: Part) -> bytes:
    document: Part = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "NFC"} if rule.nfc else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": list(rule.steps)},
        "post_processor": bos,
        "decoder": _byte_level(use_regex=True),
        "model": model,
    }
    return json.dumps(document, ensure_ascii=False).encode()


def _eos_ids(meta: Meta, tokens: Sequence[str], types: Sequence[int]) -> tuple[int, ...]:
    """The ids that the file names as end of text, turn or message, and the control tokens of `_TURN_ENDS`."""
    keys = ("eos", "eot", "eom")
    named = {integer(meta, key) for k in keys if (key := f"tokenizer.ggml.{k}_token_id") in meta}
    if wrong := sorted(i for i in named if i >= len(tokens)):
        raise SpecError(f"the GGUF file's end-of-text id {wrong[0]} is outside its {len(tokens)} tokens")
    ends = {i for i, (t, kind) in enumerate(zip(tokens, types, strict=True)) if kind == _CONTROL and t in _TURN_ENDS}
    if not named | ends:
        raise SpecError("the GGUF file names no end-of-text token (tokenizer.ggml.eos_token_id)")
    return tuple(sorted(named | ends))


def _template(meta: Meta) -> str | None:
    if "tokenizer.chat_template" not in meta:
        return None
    template = typed(meta, "tokenizer.chat_template", str)
    if len(template) > _MAX_TEMPLATE:
        raise SpecError(
            f"the GGUF file's chat template has {len(template)} characters; at most {_MAX_TEMPLATE} are accepted"
        )
    return template


def text_files(meta: Meta, vocab_size: int) -> TextFiles:
    """Tokenizer and template of a GGUF file whose embedding has `vocab_size` rows; SpecError if not supported."""
    rule = _splitting(meta)
    tokens, types = _vocabulary(meta, vocab_size)
    bos_id = integer(meta, "tokenizer.ggml.bos_token_id") if "tokenizer.ggml.bos_token_id" in meta else None
    add_bos = typed(meta, "tokenizer.ggml.add_bos_token", bool, rule.add_bos)
    if (bos_id is None and add_bos) or (bos_id is not None and bos_id >= len(tokens)):
        raise SpecError(f"the GGUF file's begin-of-text id {bos_id} is not one of its {len(tokens)} tokens")
    bos = _with_bos(tokens[bos_id], bos_id) if add_bos and bos_id is not None else None
    document = _tokenizer_json(rule, _added(tokens, types), bos, _model(rule, tokens, _merges(meta)))
    try:
        Tokenizer.from_str(document.decode())
    except Exception as error:  # the library raises bare Exception
        raise SpecError(f"the GGUF file's tokenizer is not usable: {str(error)[:200]}") from error
    return TextFiles(document, _template(meta), len(tokens), bos_id, add_bos, _eos_ids(meta, tokens, types))
