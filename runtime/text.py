"""Text to token ids and back.

Enters: a bundle's tokenizer.json and chat template (data, checked but not trusted), plain text or messages.
Leaves: ids in which only the template, never the user's text, has special tokens; and text from ids.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer

from spec_edge.models.contract import BadUsage, FileFact, SpecError, TextFacts
from spec_edge.runtime.bundle import Bundle
from spec_edge.runtime.chat import Message, Template, check_messages
from spec_edge.runtime.deadline import in_time
from spec_edge.runtime.guard import Guard, Special

TOKENIZER_LIMIT = 64 << 20
SECONDS = 10.0
"""How long the encoding of a text may take."""

_FIX = "export the model again with its own tokenizer"
_FIRST = re.compile(rb'"prepend_scheme"\s*:\s*"first"')
CHARACTERS_PER_TOKEN = 16
"""A prompt with more characters than this for every token of the context is refused before it is encoded."""


class Text:
    """Tokenizer and template of one bundle. Reading it is safe from several threads."""

    def __init__(self, bundle: Bundle) -> None:
        facts = bundle.manifest.text
        raw = _read(bundle, facts.tokenizer, TOKENIZER_LIMIT)
        source = _read(bundle, facts.chat_template, 1 << 20).decode("utf-8", "replace") if facts.chat_template else None
        self._set(facts, raw, source, bundle.manifest.model.context)

    @classmethod
    def of(cls, facts: TextFacts, raw: bytes, source: str | None, context: int) -> Text:
        """The same from a tokenizer.json and a template that are no bundle's yet."""
        text = cls.__new__(cls)
        text._set(facts, raw, source, context)
        return text

    def _set(self, facts: TextFacts, raw: bytes, source: str | None, context: int) -> None:
        self._facts, self._context = facts, context
        self._tokenizer = _load(raw, facts.tokenizer.file)
        if self._tokenizer.get_vocab_size() > facts.tokens:
            raise SpecError(
                f"{facts.tokenizer.file} has {self._tokenizer.get_vocab_size()} tokens and the model {facts.tokens}; "
                f"{_FIX}"
            )
        self.template = Template(source) if source is not None else None
        specials = _specials(self._tokenizer, {*facts.eos_ids, facts.bos_id}, source or "")
        self._guard = Guard(specials)
        self._first, self._later = _encoders(self._tokenizer, raw, specials)

    def encode(self, text: str) -> list[int]:
        """Ids of plain text: no special token comes out, whatever it says, and none is added."""
        self._check([text])
        return _encode(self._first, text)

    def encode_prompt(self, text: str) -> list[int]:
        """The same after the begin-of-sequence token, for a model that has been trained with one."""
        bos = [self._facts.bos_id] if self._facts.add_bos and self._facts.bos_id is not None else []
        return bos + self.encode(text)

    def encode_chat(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> list[int]:
        """Ids of the rendered messages. Nothing is added: the template writes its own begin of sequence."""
        if self.template is None:
            raise BadUsage("this model has no chat template; use --no-chat (chat=False) and write the prompt yourself")
        checked = check_messages(messages)
        self._check([m["content"] for m in checked])
        hidden, restore = self._guard.hide(checked, self.template.source)
        ids: list[int] = []
        rendered = self.template.render(hidden, add_generation_prompt, self._named_tokens())
        for i, part in enumerate(self._guard.split(rendered)):
            if isinstance(part, Special):
                ids.append(part.id)
            else:
                ids += _encode(self._later if i else self._first, restore(part))
        return ids

    def spellings(self, word: str) -> list[list[int]]:
        """Ids of a word at the beginning of a text and after a space, each once."""
        found = [self.encode(form) for form in (word, f" {word}") if word]
        return [ids for i, ids in enumerate(found) if ids and ids not in found[:i]]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens left out."""
        try:
            return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise _failure(error) from None

    def _named_tokens(self) -> dict[str, str]:
        """What templates know by name. The first end-of-sequence id is the tokenizer's own."""
        ids = {"bos_token": self._facts.bos_id, "eos_token": next(iter(self._facts.eos_ids), None)}
        return {name: self._tokenizer.id_to_token(i) for name, i in ids.items() if i is not None}

    def _check(self, texts: Sequence[str]) -> None:
        characters = sum(map(len, texts))
        if characters > self._context * CHARACTERS_PER_TOKEN:
            raise BadUsage(
                f"the prompt has {characters} characters, far more than the context of {self._context} tokens holds; "
                "shorten it or export with a larger --context"
            )
        try:
            "".join(texts).encode()
        except UnicodeEncodeError:
            raise BadUsage(
                "the prompt is not valid text: it holds a part of a UTF-16 pair or bytes that are not UTF-8"
            ) from None


def _read(bundle: Bundle, fact: FileFact, limit: int) -> bytes:
    if fact.bytes > limit:
        raise SpecError(f"{fact.file} has {fact.bytes} bytes, more than {limit}; it is not what it claims to be")
    return bundle.path(fact).read_bytes()


def _load(raw: bytes, name: str) -> Any:
    try:
        return Tokenizer.from_buffer(raw)
    except Exception as error:  # the library raises plain Exception
        raise SpecError(f"{name} is not a tokenizer ({str(error)[:200]}); export the model again") from None


def _specials(tokenizer: Any, named: set[int | None], template: str) -> list[Special]:
    """Tokens with a role: flagged, named by the bundle, or written by the template."""
    return [
        Special(i, token)
        for i, token in tokenizer.get_added_tokens_decoder().items()
        if token.special or i in named or (token.content and token.content in template)
    ]


def _encoders(tokenizer: Any, raw: bytes, specials: list[Special]) -> tuple[Any, Any]:
    """Tokenizers that give no special token: for the beginning of a text, and for a piece further on.

    They differ where a word's mark (Metaspace) is put before the very first character of a text only.
    """
    ids = {s.id for s in specials if not s.token.special}
    first = _load(json.dumps(_flagged(json.loads(raw), ids)).encode(), "tokenizer.json") if ids else tokenizer
    later = first
    if _FIRST.search(raw):
        later = _load(json.dumps(_without_prefix(_flagged(json.loads(raw), ids))).encode(), "tokenizer.json")
    for encoder in (first, later):
        encoder.encode_special_tokens = True
    return first, later


def _flagged(tree: Any, ids: set[int]) -> Any:
    """tokenizer.json with these added tokens marked special, so that plain text does not give them."""
    for token in tree["added_tokens"]:
        token["special"] = token["special"] or token["id"] in ids
    return tree


def _without_prefix(tree: Any) -> Any:
    if isinstance(tree, dict):
        first = tree.get("type") == "Metaspace" and tree.get("prepend_scheme") == "first"
        return {k: "never" if first and k == "prepend_scheme" else _without_prefix(v) for k, v in tree.items()}
    return [_without_prefix(v) for v in tree] if isinstance(tree, list) else tree


def _encode(tokenizer: Any, text: str) -> list[int]:
    """In time: the patterns of a tokenizer.json are data, and a bad one backtracks for hours."""
    try:
        ids: list[int] = in_time(lambda: tokenizer.encode(text, add_special_tokens=False).ids, SECONDS)
    except KeyboardInterrupt:
        raise
    except TimeoutError:
        raise SpecError(f"the tokenizer took more than {SECONDS:g} s; give a shorter prompt, or {_FIX}") from None
    except BaseException as error:
        raise _failure(error) from None
    return ids


def _failure(error: BaseException) -> SpecError:
    """The library panics, with an exception that is no `Exception`, where one of its patterns fails."""
    return SpecError(f"the tokenizer failed ({' '.join(str(error).split())[:200]}); {_FIX}")
