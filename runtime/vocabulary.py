"""Do a target and a draft model mean the same by an id?

Enters: two tokenizer.json and how many real ids each model has. Leaves: the ids that they share, or one line that says
where they part. Strings are compared, special tokens with them; sizes are not: vocabularies padded to different sizes,
or one that goes on where the other ends, are fine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from spec_edge.models.contract import SpecError
from spec_edge.runtime.bundle import Bundle

SHOWN = 40
"""Most characters of a token in a message."""


@dataclass(frozen=True)
class Vocabulary:
    """A model's name, its number of real ids, and its tokens by id (None: an id without a token)."""

    model: str
    tokens: int
    strings: tuple[str | None, ...]


def vocabulary(model: str, tokenizer_json: bytes, tokens: int) -> Vocabulary:
    """SpecError where the tokenizer cannot be read."""
    try:
        tokenizer: Any = Tokenizer.from_buffer(tokenizer_json)
    except Exception as error:  # the library raises plain Exception
        raise SpecError(f"the tokenizer of {model} cannot be read ({str(error)[:200]})") from None
    strings: list[str | None] = [None] * tokens
    for string, at in tokenizer.get_vocab(with_added_tokens=True).items():
        if at < tokens:
            strings[at] = string
    return Vocabulary(model, tokens, tuple(strings))


def shared_by(target: Bundle, draft: Bundle) -> int:
    """`shared_ids` of two bundles; the same file needs no reading."""
    ours, theirs = target.manifest.text, draft.manifest.text
    if ours.tokenizer.sha256 == theirs.tokenizer.sha256:
        return min(ours.tokens, theirs.tokens)
    return shared_ids(_of_bundle(target), _of_bundle(draft))


def _of_bundle(bundle: Bundle) -> Vocabulary:
    manifest = bundle.manifest
    text = bundle.path(manifest.text.tokenizer).read_bytes()
    return vocabulary(manifest.model.name, text, manifest.text.tokens)


def shared_ids(target: Vocabulary, draft: Vocabulary) -> int:
    """Number of ids, from 0 on, that mean the same to both. SpecError names the first that differs."""
    shared = min(target.tokens, draft.tokens)
    for at, (wanted, found) in enumerate(zip(target.strings[:shared], draft.strings[:shared], strict=True)):
        if wanted != found and None not in (wanted, found):
            raise SpecError(
                f"{draft.model} cannot draft for {target.model}: token {at} is {_show(found)} there and "
                f"{_show(wanted)} in the target; take a draft model of the same family"
            )
    return shared


def _show(token: str | None) -> str:
    token = token or ""
    return ascii(token if len(token) <= SHOWN else token[:SHOWN] + "...")
