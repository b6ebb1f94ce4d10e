"""The text side of a Hugging Face folder: tokenizer.json, chat template, begin and end tokens."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer

from spec_edge.models.checkpoint import TextFiles
from spec_edge.models.contract import SpecError
from spec_edge.models.family import Json

_MAX_JSON = 64 << 20
_MAX_TEMPLATE = 256 << 10


def _read(path: Path, most: int) -> bytes:
    try:
        if (size := path.stat().st_size) > most:
            raise SpecError(f"{path} has {size} bytes; at most {most} are accepted")
        return path.read_bytes()
    except OSError as error:
        raise SpecError(f"cannot read {path}: {error.strerror or error}") from error


def read_json(path: Path) -> Json:
    """A JSON object; SpecError if the file is not one."""
    try:
        value = json.loads(_read(path, _MAX_JSON))
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise SpecError(f"{path} must hold a JSON object")
    return value


def _optional(path: Path) -> Json:
    return read_json(path) if path.is_file() else {}


def _tokenizer(folder: Path) -> tuple[bytes, Tokenizer]:
    path = folder / "tokenizer.json"
    if not path.is_file():
        what = "only a SentencePiece tokenizer.model" if (folder / "tokenizer.model").is_file() else "no tokenizer"
        raise SpecError(f"{folder} has {what}; tokenizer.json is needed: save it with AutoTokenizer.save_pretrained")
    document = _read(path, _MAX_JSON)
    try:
        return document, Tokenizer.from_str(document.decode())
    except Exception as error:  # the library raises bare Exception
        raise SpecError(f"{path} is not usable: {str(error)[:200]}") from error


def _content(token: object) -> str | None:
    """The text of a special token, which tokenizer_config.json writes as a string or as an object."""
    found = token.get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) else None


def _ids(value: object) -> set[int]:
    """`eos_token_id` of a config: one id, a list of ids or nothing."""
    values = value if isinstance(value, list) else [] if value is None else [value]
    if any(isinstance(v, bool) or not isinstance(v, int) for v in values):
        raise SpecError(f"'eos_token_id' must be a token id or a list of them, not {str(value)[:80]}")
    return set(values)


def _eos_ids(folder: Path, settings: Json, tokenizer: Tokenizer, tokens: int) -> tuple[int, ...]:
    """Every end id that config.json, generation_config.json and tokenizer_config.json name."""
    found = _ids(read_json(folder / "config.json").get("eos_token_id"))
    found |= _ids(_optional(folder / "generation_config.json").get("eos_token_id"))
    if (content := _content(settings.get("eos_token"))) is not None:
        found |= {i for i in [tokenizer.token_to_id(content)] if i is not None}
    if wrong := sorted(i for i in found if not 0 <= i < tokens):
        raise SpecError(f"{folder}: end-of-text id {wrong[0]} is not one of the {tokens} tokens")
    if not found:
        raise SpecError(f"{folder} names no end-of-text token (eos_token_id in config.json)")
    return tuple(sorted(found))


def _template(folder: Path, settings: Json) -> str | None:
    """chat_template.jinja, or the key of tokenizer_config.json: a template, or a list with one called default."""
    if (folder / "chat_template.jinja").is_file():
        try:
            return _read(folder / "chat_template.jinja", _MAX_TEMPLATE).decode()
        except UnicodeDecodeError as error:
            raise SpecError(f"{folder / 'chat_template.jinja'} is not UTF-8") from error
    found = settings.get("chat_template")
    if isinstance(found, list):
        found = {t.get("name"): t.get("template") for t in found if isinstance(t, dict)}.get("default")
    if found is not None and not isinstance(found, str):
        raise SpecError(f"{folder / 'tokenizer_config.json'}: 'chat_template' must be text")
    if found is not None and len(found) > _MAX_TEMPLATE:
        raise SpecError(f"{folder}: the chat template has {len(found)} characters, more than {_MAX_TEMPLATE}")
    return found


def text_files(folder: Path, vocab_size: int) -> TextFiles:
    """Tokenizer and template of a folder whose embedding has `vocab_size` rows; SpecError if they are not usable."""
    settings = _optional(folder / "tokenizer_config.json")
    document, tokenizer = _tokenizer(folder)
    tokens = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    if not 0 < tokens <= vocab_size:
        raise SpecError(f"{folder}: tokenizer.json has {tokens} tokens, the embedding has {vocab_size} rows")
    bos = _content(settings.get("bos_token"))
    bos_id = None if bos is None else tokenizer.token_to_id(bos)
    add_bos = bos_id is not None and tokenizer.encode("a").ids[:1] == [bos_id]
    eos_ids = _eos_ids(folder, settings, tokenizer, tokens)
    return TextFiles(document, _template(folder, settings), tokens, bos_id, add_bos, eos_ids)
