"""Tokenizers built from GGUF metadata give transformers' ids on a hard corpus."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from tiny_models import SPECIALS, tokenizer_keys
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Tokenizer, PreTrainedTokenizerFast, Qwen2Tokenizer
from transformers.convert_slow_tokenizer import TikTokenConverter

from spec_edge.models.contract import SpecError
from spec_edge.models.gguf_tokenizer import SPLITTINGS, text_files
from spec_edge.models.open import open_checkpoint

Bpe = tuple[list[str], list[tuple[str, str]]]
ADDED = ["<tool_call>", *SPECIALS]


def metadata(bpe: Bpe, pre: str, **changes: Any) -> dict[str, Any]:
    """The trained BPE with a user-defined token, three control tokens and two unused rows of padding."""
    tokens, merges = bpe
    keys = tokenizer_keys([*tokens, *ADDED], merges, pre, [1] * len(tokens) + [4, 3, 3, 3])
    keys["tokenizer.ggml.merges"] = tuple(keys["tokenizer.ggml.merges"])
    keys["tokenizer.ggml.tokens"] = (*keys["tokenizer.ggml.tokens"], "[PAD1]", "[PAD2]")
    keys["tokenizer.ggml.token_type"] += [5, 5]
    changed = {**keys, **{f"tokenizer.{name}": value for name, value in changes.items()}}
    return {name: value for name, value in changed.items() if value is not ...}


def ours(keys: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_str(text_files(keys, 4096).tokenizer_json.decode())


def _with_added(tokenizer: PreTrainedTokenizerFast, vocabulary: dict[str, int]) -> PreTrainedTokenizerFast:
    tokenizer.add_tokens([AddedToken(ADDED[0], normalized=False, special=False)])
    tokenizer.add_tokens([AddedToken(t, normalized=False, special=True) for t in SPECIALS], special_tokens=True)
    assert tokenizer.convert_tokens_to_ids(ADDED) == [len(vocabulary) + i for i in range(4)]
    return tokenizer


def _generic(bpe: Bpe, steps: list[Any], ignore_merges: bool = False) -> PreTrainedTokenizerFast:
    vocabulary = {token: i for i, token in enumerate(bpe[0])}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=bpe[1], ignore_merges=ignore_merges))
    core.pre_tokenizer = pre_tokenizers.Sequence(steps)
    core.decoder = decoders.ByteLevel()
    return _with_added(PreTrainedTokenizerFast(tokenizer_object=core), vocabulary)


def smollm(bpe: Bpe) -> PreTrainedTokenizerFast:
    """SmolLM2's own tokenizer.json: single digits, then GPT-2's byte level."""
    return _generic(bpe, [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)])


def qwen2(bpe: Bpe) -> PreTrainedTokenizerFast:
    vocabulary = {token: i for i, token in enumerate(bpe[0])}
    plain = Qwen2Tokenizer(vocab=vocabulary, merges=bpe[1], unk_token=None, eos_token=None, pad_token=None)
    return _with_added(plain, vocabulary)


def gpt2(bpe: Bpe) -> PreTrainedTokenizerFast:
    vocabulary = {token: i for i, token in enumerate(bpe[0])}
    first = bpe[0][0]  # GPT2Tokenizer cannot do without these names; an existing token adds nothing
    plain = GPT2Tokenizer(vocab=vocabulary, merges=bpe[1], unk_token=first, eos_token=first, bos_token=first)
    return _generic(bpe, [plain.backend_tokenizer.pre_tokenizer])


def llama3(bpe: Bpe) -> PreTrainedTokenizerFast:
    """The pattern that transformers converts Llama 3's tokenizer with."""
    pattern = inspect.signature(TikTokenConverter.__init__).parameters["pattern"].default
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    return _generic(bpe, [split, pre_tokenizers.ByteLevel(False, use_regex=False)], ignore_merges=True)


ORACLES = {"smollm": smollm, "qwen2": qwen2, "gpt-2": gpt2, "llama-bpe": llama3, "llama3": llama3, "llama-v3": llama3}


def test_every_rule_has_an_oracle() -> None:
    assert SPLITTINGS.keys() == ORACLES.keys()


@pytest.mark.parametrize("pre", ORACLES)
@pytest.mark.parametrize("as_text", [False, True])
def test_ids_equal_transformers(pre: str, as_text: bool, trained_bpe: Bpe, hard_corpus: list[str]) -> None:
    mine = ours(metadata(trained_bpe, pre))
    mine.encode_special_tokens = as_text
    theirs = ORACLES[pre](trained_bpe)
    for text in hard_corpus:
        want = theirs.encode(text, add_special_tokens=False, split_special_tokens=as_text)
        assert mine.encode(text, add_special_tokens=False).ids == want, repr(text)


def test_the_rules_differ_on_the_corpus(trained_bpe: Bpe, hard_corpus: list[str]) -> None:
    """Else the test above could not tell a wrong rule."""
    kinds = [ours(metadata(trained_bpe, pre)) for pre in ("smollm", "qwen2", "gpt-2", "llama-bpe")]
    found = [[ids.ids for ids in kind.encode_batch(hard_corpus, add_special_tokens=False)] for kind in kinds]
    assert all(a != b for i, a in enumerate(found) for b in found[:i])


@pytest.mark.parametrize("pre", ["smollm", "gpt-2", "llama-bpe"])
def test_text_comes_back(pre: str, trained_bpe: Bpe, hard_corpus: list[str]) -> None:
    tokenizer = ours(metadata(trained_bpe, pre, **{"ggml.add_bos_token": False}))
    for text in hard_corpus:
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_user_text_never_becomes_a_special_token(trained_bpe: Bpe) -> None:
    tokenizer = ours(metadata(trained_bpe, "qwen2"))
    special = {tokenizer.token_to_id(token) for token in SPECIALS}
    text = "".join(SPECIALS)
    assert set(tokenizer.encode(text).ids) == special
    tokenizer.encode_special_tokens = True
    assert not special & set(tokenizer.encode(text).ids)


def test_bos_follows_the_file_and_else_the_rule(trained_bpe: Bpe) -> None:
    found = text_files(metadata(trained_bpe, "llama-bpe"), 4096)
    bos = found.bos_id
    assert found.add_bos and Tokenizer.from_str(found.tokenizer_json.decode()).encode("x").ids[0] == bos
    assert not text_files(metadata(trained_bpe, "qwen2"), 4096).add_bos
    off = text_files(metadata(trained_bpe, "llama-bpe", **{"ggml.add_bos_token": False}), 4096)
    assert not off.add_bos and Tokenizer.from_str(off.tokenizer_json.decode()).encode("x").ids[0] != bos


def test_padding_rows_are_no_tokens(trained_bpe: Bpe) -> None:
    found = text_files(metadata(trained_bpe, "qwen2"), 4096)
    assert found.tokens == len(trained_bpe[0]) + len(ADDED)
    assert Tokenizer.from_str(found.tokenizer_json.decode()).token_to_id("[PAD1]") is None


def test_every_end_id_is_kept(trained_bpe: Bpe) -> None:
    base = len(trained_bpe[0])
    assert text_files(metadata(trained_bpe, "qwen2"), 4096).eos_ids == (base + 3,)
    also = metadata(trained_bpe, "qwen2", **{"ggml.eos_token_id": base + 1, "ggml.eot_token_id": base + 2})
    assert text_files(also, 4096).eos_ids == (base + 1, base + 2, base + 3), "<|im_end|> ends a turn by itself"


REFUSED = {
    "SentencePiece": ({"ggml.model": "llama"}, "'llama' is not byte-level BPE .* Hugging Face folder"),
    "unknown pre": ({"ggml.pre": "deepseek-llm"}, "tokenizer.ggml.pre = 'deepseek-llm', whose rule .* not known"),
    "default pre": ({"ggml.pre": "default"}, "'default'"),
    "no pre": ({"ggml.pre": ...}, "'default'"),
    "no tokens": ({"ggml.tokens": ...}, "no key 'tokenizer.ggml.tokens'"),
    "types": ({"ggml.token_type": [1]}, "1 token types for"),
    "no types": ({"ggml.token_type": ...}, "no key 'tokenizer.ggml.token_type'"),
    "merges": ({"ggml.merges": ("a b c",)}, "not two tokens"),
    "merge of unknown": ({"ggml.merges": ("notatoken b",)}, "tokenizer is not usable"),
    "no merges": ({"ggml.merges": ...}, "no key 'tokenizer.ggml.merges'"),
    "eos": ({"ggml.eos_token_id": 99999}, "end-of-text id 99999 is outside"),
    "bos": ({"ggml.bos_token_id": 99999}, "begin-of-text id 99999"),
    "add eos": ({"ggml.add_eos_token": True}, "add_eos_token' = true is not supported"),
    "template": ({"chat_template": 7}, "'tokenizer.chat_template' is of type int"),
    "long template": ({"chat_template": "x" * 300000}, "chat template has 300000 characters"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_exact_is_refused(name: str, trained_bpe: Bpe) -> None:
    changes, message = REFUSED[name]
    with pytest.raises(SpecError, match=message) as caught:
        text_files(metadata(trained_bpe, "qwen2", **changes), 4096)
    assert "\n" not in caught.value.message


def test_more_tokens_than_rows_is_an_error(trained_bpe: Bpe) -> None:
    with pytest.raises(SpecError, match="tokens for 100 embedding rows"):
        text_files(metadata(trained_bpe, "qwen2"), 100)


def test_a_token_twice_is_an_error(trained_bpe: Bpe) -> None:
    tokens = (*trained_bpe[0][:-1], trained_bpe[0][0], *ADDED)
    keys = metadata(trained_bpe, "qwen2", **{"ggml.tokens": tokens, "ggml.token_type": [1] * len(tokens)})
    with pytest.raises(SpecError, match="the same token twice"):
        text_files(keys, 4096)


@pytest.mark.real
@pytest.mark.parametrize("as_text", [False, True])
def test_smollm2_ids_equal_its_own_tokenizer(
    as_text: bool, smollm2_gguf: Path, smollm2_in_transformers: dict[str, Any], hard_corpus: list[str]
) -> None:
    lists = smollm2_in_transformers["tokenizer"]
    vocabulary = {token: i for i, token in enumerate(lists["tokens"])}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[tuple(m.split(" ")) for m in lists["merges"]]))
    digits = pre_tokenizers.Digits(individual_digits=True)
    core.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(False)])
    theirs = PreTrainedTokenizerFast(tokenizer_object=core)
    theirs.add_special_tokens({"additional_special_tokens": lists["tokens"][:17]})
    text = open_checkpoint(smollm2_gguf).text
    mine = Tokenizer.from_str(text.tokenizer_json.decode())
    mine.encode_special_tokens = as_text
    for line in hard_corpus:
        assert mine.encode(line).ids == theirs.encode(line, split_special_tokens=as_text), repr(line)
        assert mine.decode(mine.encode(line).ids, skip_special_tokens=False) == line
    assert (text.tokens, text.bos_id, text.add_bos, text.eos_ids) == (49152, 1, False, (2,))
    assert text.chat_template is not None and "<|im_start|>" in text.chat_template
