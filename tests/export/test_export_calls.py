"""Wrong calls of `spec-export`: one line, exit code 2, nothing written, and no weights read for nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from spec_edge.export.cli import main
from spec_edge.models import gguf_model, hf_folder

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "eos_token_id": 1,
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a model's settings and no weights: reading those would be another error."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIG), "utf-8")
    (tmp_path / "empty").mkdir()
    for module in (hf_folder, gguf_model):
        monkeypatch.setattr(module, "sha256", lambda *_: pytest.fail("read the weights"))
    return tmp_path


def export(*args: str) -> Result:
    return CliRunner().invoke(main, args)


def refused(result: Result, message: str, place: Path) -> None:
    assert result.exit_code == 2, result.output
    assert message in result.stderr and "Traceback" not in result.output and result.stdout == ""
    assert len([line for line in result.stderr.splitlines() if line.startswith("Error")]) == 1
    assert sorted(path.name for path in place.iterdir()) == ["empty", "model"]


@pytest.mark.parametrize("output", [".", "./", "model/..", "..", "../..", "/"])
@pytest.mark.parametrize("force", [[], ["--force"]])
def test_a_folder_that_cannot_be_replaced_as_a_whole(place: Path, output: str, force: list[str]) -> None:
    """The current folder, or one around it, would go from under the user's feet."""
    refused(export("model", "-o", output, *force), "which is or holds the folder you are in", place)


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_an_empty_name_is_no_folder(place: Path, force: list[str]) -> None:
    """It would be the current one."""
    refused(export("model", "-o", "", *force), "--output needs the path of a folder or file, not an empty text", place)


def test_an_option_in_the_place_of_a_folder(place: Path) -> None:
    refused(export("model", "-o", "--force"), "'--force', which looks like an option", place)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("empty", "'empty' is not a model folder: it has no config.json"),
        ("nowhere", "'nowhere' is no file, no folder, no known model"),
        ("", "'' is no file, no folder"),
    ],
)
def test_a_model_that_is_none(place: Path, name: str, message: str) -> None:
    """The same exit code as `spec-edge run -m`: what is named is no model, so the call is wrong."""
    refused(export(name, "-o", "out"), message, place)
    refused(export("model", "-o", "out", "--draft", name), message, place)


def test_a_drafter_that_is_not_there(place: Path) -> None:
    refused(export("model", "-o", "out", "--medusa", "none"), "there is no file or folder 'none'", place)


def test_a_context_past_the_models(place: Path) -> None:
    result = export("model", "-o", "out", "--context", "1000000")
    refused(result, "--context 1000000 is more than the 256 tokens that the model was trained for", place)
