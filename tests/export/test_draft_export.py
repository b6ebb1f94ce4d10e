"""`spec-export --draft`: two complete bundles or none, and the target knows its draft model."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from spec_edge.export import build, staging
from spec_edge.export.cli import main
from spec_edge.export.draft import DRAFT, folder_beside
from spec_edge.export.options import build_options
from spec_edge.models.contract import SpecError
from spec_edge.runtime import load
from spec_edge.runtime.bundle import open_bundle
from spec_edge.targets.target import target

Limits = tuple[float, float] | None
Found = tuple[Any, None] | None


@dataclass(frozen=True)
class Size:
    hidden: int = 64
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    padded: int = 0
    context: int = 256


def tokenizer(special: str = "<|end|>", swap: bool = False) -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    if swap:
        alphabet[5], alphabet[6] = alphabet[6], alphabet[5]
    made = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.add_special_tokens([AddedToken(special, special=True, normalized=False)])
    return made


def model(folder: Path, size: Size = Size(), text: Tokenizer | None = None, seed: int = 0) -> Path:
    """A Llama folder with random weights."""
    folder.mkdir()
    text = text or tokenizer()
    vocab, dim, rng = text.get_vocab_size() + size.padded, size.hidden // size.heads, np.random.default_rng(seed)
    shapes = {"model.embed_tokens": (vocab, size.hidden), "model.norm": (size.hidden,), "lm_head": (vocab, size.hidden)}
    for i in range(size.layers):
        layer = f"model.layers.{i}."
        shapes |= {f"{layer}{n}": (size.hidden,) for n in ("input_layernorm", "post_attention_layernorm")}
        shapes |= {f"{layer}self_attn.{n}_proj": (size.hidden, size.hidden) for n in "qo"}
        shapes |= {f"{layer}self_attn.{n}_proj": (size.kv_heads * dim, size.hidden) for n in "kv"}
        shapes |= {f"{layer}mlp.{n}_proj": (2 * size.hidden, size.hidden) for n in ("gate", "up")}
        shapes[f"{layer}mlp.down_proj"] = (size.hidden, 2 * size.hidden)
    tensors = {
        f"{name}.weight": (rng.normal(size=shape) / 8 if len(shape) > 1 else np.ones(shape)).astype(np.float32)
        for name, shape in shapes.items()
    }
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": vocab,
        "hidden_size": size.hidden,
        "intermediate_size": 2 * size.hidden,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads,
        "max_position_embeddings": size.context,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "eos_token_id": 256,
    }
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    text.save(str(folder / "tokenizer.json"))
    return folder


def export(*args: object) -> Result:
    return CliRunner().invoke(main, [*map(str, args), "--precision", "fp32", "--widths", "2"])


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Target and draft folders of models; the draft's vocabulary is padded further and its context is shorter."""
    folder = tmp_path_factory.mktemp("models")
    small = Size(hidden=32, layers=1, heads=2, kv_heads=1, padded=7, context=128)
    return model(folder / "big"), model(folder / "small", small, seed=1)


def test_two_bundles(pair: tuple[Path, Path], tmp_path: Path) -> None:
    output = tmp_path / "out"
    result = export(pair[0], "-o", output, "--draft", pair[1], "--context", "200", "--json")
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    assert (summary["context"], summary["draft"]["context"], summary["draft"]["draft"]) == (200, 128, None)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "out-draft"]
    target, draft = open_bundle(output), open_bundle(tmp_path / "out-draft")
    assert target.manifest.draft is not None and draft.manifest.draft is None
    assert target.manifest.draft.folder == "out-draft"
    digest = hashlib.sha256((tmp_path / "out-draft" / "bundle.json").read_bytes()).hexdigest()
    assert target.manifest.draft.sha256 == digest == draft.digest
    with load(output, threads=1) as llm:
        plain, drafted = (
            llm.generate("hello", chat=False, max_new_tokens=150, method=m, draft_confidence=least)
            for m, least in (("plain", None), ("draft", 0.0))
        )
    assert plain.tokens == drafted.tokens
    assert drafted.stats.drafted > 0


@pytest.mark.parametrize(("kl", "taken"), [(0.049, "keep-head4"), (0.051, "int4")])
def test_a_quantised_draft_gets_a_smaller_head_within_its_own_bounds(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kl: float, taken: str
) -> None:
    """Where nobody names a precision; measured, and passed over where it is worse than a draft model may be."""
    tried: list[str] = []

    def measured(candidate: SimpleNamespace, _target: object, _law: object, limits: Limits, _tick: object) -> Found:
        tried.append(candidate.manifest)
        quality = kl if candidate.manifest == "keep-head4" else 0.019
        return (quality, None) if limits is None or quality <= limits[0] else None

    def begun(_plan: object, name: str, folder: Path, _peaks: object) -> SimpleNamespace:
        folder.mkdir(exist_ok=True)
        return SimpleNamespace(manifest=name, folder=folder)

    monkeypatch.setattr(build, "_suits", lambda *_: None)
    monkeypatch.setattr(build, "start", begun)
    monkeypatch.setattr(build, "measured", measured)
    plan: Any = SimpleNamespace(target=target("cpu"), checkpoint=None)
    law: Any = SimpleNamespace(peaks={}, reference=SimpleNamespace(ids=()))
    asked = build_options(str(pair[0]), tmp_path / "out")
    silent: Any = SimpleNamespace(stage=lambda *_: None)

    def chosen(**options: Any) -> str:
        name: Any = build._choose(replace(asked, **options), plan, law, tmp_path, silent).candidate.manifest
        return str(name)

    assert chosen(drafts=True) == taken and tried[0] == "keep-head4"
    assert chosen() == "int4"  # a model that drafts for nobody
    assert chosen(drafts=True, precision="int8") == "int8"


def test_a_folder_of_any_name(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """Weights outside the graph are found from a path with spaces, CJK and emoji."""
    output = tmp_path / "my models ✓ 束 🙂" / "bundle é"
    assert export(pair[1], "-o", output).exit_code == 0
    with load(output, threads=1) as llm:
        assert llm.generate("hello", chat=False, max_new_tokens=3, method="plain").tokens


def test_text_names_both(pair: tuple[Path, Path], tmp_path: Path) -> None:
    result = export(pair[0], "-o", tmp_path / "out", "--draft", pair[1])
    assert result.exit_code == 0 and f"big -> {tmp_path / 'out'}" in result.stdout
    assert f"small -> {tmp_path / 'out-draft'}" in result.stdout


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"swap": True}, "small cannot draft for big: token 5 is"),
        ({"special": "<|stop|>"}, "token 256 is '<|stop|>' there and '<|end|>' in the target"),
    ],
)
def test_a_foreign_vocabulary(pair: tuple[Path, Path], tmp_path: Path, other: dict[str, object], message: str) -> None:
    small = model(tmp_path / "small", Size(layers=1), tokenizer(**other))  # type: ignore[arg-type]
    result = export(pair[0], "-o", tmp_path / "out", "--draft", small)
    assert result.exit_code == 1 and message in result.stderr
    assert len([line for line in result.stderr.splitlines() if line.startswith("Error")]) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["small"]


@pytest.mark.parametrize("fails", ["draft", "target", "publish"])
def test_both_or_neither(pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    """A failure at any place leaves what was there before, bytes and all."""
    assert export(pair[0], "-o", tmp_path / "out", "--draft", pair[1]).exit_code == 0
    before = {p: p.read_bytes() for p in sorted(tmp_path.rglob("*")) if p.is_file()}
    calls: list[Path] = []
    if fails == "publish":
        rename = staging._rename

        def failing(source: Path, goal: Path, done: list[tuple[Path, Path]]) -> None:
            calls.append(goal)
            if len(calls) == 4:
                raise OSError(13, "Permission denied")
            rename(source, goal, done)

        monkeypatch.setattr(staging, "_rename", failing)
    else:
        settle = build._settle

        def stopping(candidate: object, work: Path) -> None:
            calls.append(work)
            if len(calls) == (1 if fails == "draft" else 2):
                raise SpecError("no")
            settle(candidate, work)  # type: ignore[arg-type]

        monkeypatch.setattr(build, "_settle", stopping)
    result = export(pair[1], "-o", tmp_path / "out", "--draft", pair[1], "--force")
    assert result.exit_code == 1 and calls, result.output
    assert {p: p.read_bytes() for p in sorted(tmp_path.rglob("*")) if p.is_file()} == before


def test_an_existing_draft_is_not_replaced_unasked(pair: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "out-draft").mkdir()
    (tmp_path / "out-draft" / "bundle.json").write_text("{}", "utf-8")
    result = export(pair[0], "-o", tmp_path / "out", "--draft", pair[1])
    assert result.exit_code == 1 and "out-draft already holds a bundle; add --force" in result.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["out-draft"]


@pytest.mark.parametrize(
    ("output", "name"),
    [
        ("out", "out-draft"),
        ("My Model (1)", "My-Model-1-draft"),
        ("束.x", "x-draft"),
        ("a" * 130, "a" * 100 + "-draft"),
    ],
)
def test_the_name_is_safe_everywhere(tmp_path: Path, output: str, name: str) -> None:
    assert folder_beside(tmp_path / output, DRAFT) == tmp_path / name


def test_missing_models(pair: tuple[Path, Path], tmp_path: Path) -> None:
    result = export(pair[0], "-o", tmp_path / "out", "--draft", tmp_path / "none")
    assert result.exit_code == 2 and "none" in result.stderr and list(tmp_path.iterdir()) == []
