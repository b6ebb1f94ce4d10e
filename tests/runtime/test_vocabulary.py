"""Whether a draft model's ids mean what the target's do, by the content of their tokenizers."""

from __future__ import annotations

import pytest
from tokenizers import AddedToken, Tokenizer, models

from spec_edge.models.contract import SpecError
from spec_edge.runtime.vocabulary import Vocabulary, shared_ids, vocabulary

WORDS = [f"w{i}" for i in range(20)]


def made(model: str, words: list[str], specials: list[str], tokens: int | None = None) -> Vocabulary:
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token=words[0]))
    tokenizer.add_special_tokens([AddedToken(s, special=True) for s in specials])
    return vocabulary(model, tokenizer.to_str().encode(), tokens or len(words) + len(specials))


def test_the_same_tokens() -> None:
    one, other = (made(name, WORDS, ["<s>", "</s>"]) for name in ("big", "small"))
    assert one.strings == (*WORDS, "<s>", "</s>")
    assert shared_ids(one, other) == 22


def test_sizes_do_not_matter() -> None:
    """Padded ids, and a vocabulary that goes on where the other ends."""
    target = made("big", WORDS, ["<s>"])
    assert shared_ids(target, made("small", WORDS, ["<s>"], tokens=64)) == 21
    assert shared_ids(made("big", WORDS, ["<s>"], tokens=64), made("small", WORDS, ["<s>"], tokens=32)) == 32
    assert shared_ids(target, made("small", WORDS, ["<s>", "</s>", "<x>"])) == 21
    assert shared_ids(target, made("small", WORDS, [])) == 20


@pytest.mark.parametrize(
    ("words", "specials", "message"),
    [
        ([*WORDS[:7], "other", *WORDS[8:]], ["<s>"], "token 7 is 'other' there and 'w7' in the target"),
        (WORDS, ["<bos>"], "token 20 is '<bos>' there and '<s>' in the target"),
        (WORDS[::-1], ["<s>"], "token 0 is 'w19' there and 'w0' in the target"),
        ([*WORDS[:3], "\u675f\n" * 100, *WORDS[4:]], ["<s>"], "token 3 is '\\\\u675f"),
    ],
)
def test_a_foreign_tokenizer_is_refused(words: list[str], specials: list[str], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        shared_ids(made("big", WORDS, ["<s>"]), made("small", words, specials))
    text = caught.value.message
    assert message.replace("\\\\", "\\") in text and text.startswith("small cannot draft for big")
    assert "\n" not in text and len(text) < 400


def test_what_is_no_tokenizer() -> None:
    with pytest.raises(SpecError, match="the tokenizer of small cannot be read"):
        vocabulary("small", b"{}", 4)
