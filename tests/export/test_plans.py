"""`spec-export build --dry-run`: what an export would make, from configurations alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from spec_edge.runtime.bundle import open_bundle


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8", "int4"])
def test_a_plan_is_what_an_export_makes(
    bench: Any, tiny_target: Path, heads: Path, tmp_path: Path, precision: str
) -> None:
    """From config.json files alone: the weights to the byte (but for alignment), the graphs within 3 %."""
    made = open_bundle(bench.bundle(tiny_target, tmp_path / "out", "--medusa", heads, precision=precision)).manifest
    for name, folder in (("t", tiny_target), ("m", heads)):
        (tmp_path / name).mkdir()
        shutil.copy(folder / "config.json", tmp_path / name)
    options = ("--medusa", tmp_path / "m", "--precision", precision, "--widths", "8", "--dry-run", "--json")
    result = bench.export("build", tmp_path / "t", *options)
    assert result.exit_code == 0, result.output
    plan = json.loads(result.stdout)
    files = {f["file"]: f for f in plan["files"]}
    assert files.keys() == {"weights.bin", *(g.file.file for g in made.graphs)}
    assert 0 <= files["weights.bin"]["bytes"] - made.weights.bytes < 128
    for graph in made.graphs:
        assert files[graph.file.file]["bytes"] == pytest.approx(graph.file.bytes, rel=0.03)
    medusa = next(row for row in plan["memory"] if row["name"] == "medusa")
    assert medusa["weights"] == pytest.approx(made.drafters[0].bytes, abs=64)
    assert not (tmp_path / "t" / "model.safetensors").exists()


LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_attention_heads": 32,
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "eos_token_id": 2,
}
VICUNA = LLAMA | {"vocab_size": 32000, "intermediate_size": 11008, "max_position_embeddings": 4096}
SCALING = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SCALING |= {"original_max_position_embeddings": 8192, "rope_type": "llama3"}
LLAMA31 = LLAMA | {"vocab_size": 128256, "intermediate_size": 14336, "num_key_value_heads": 8, "rope_theta": 500000.0}
LLAMA31 |= {"max_position_embeddings": 131072, "rope_scaling": SCALING}
ONE_LAYER = {k: v for k, v in LLAMA31.items() if k not in ("rope_scaling", "rope_theta")} | {"num_hidden_layers": 1}
PUBLISHED = [
    ("medusa", VICUNA, {"medusa_num_heads": 5, "medusa_num_layers": 1}, 5 * (4096**2 + 32000 * 4096), ()),
    ("eagle", LLAMA31, ONE_LAYER | {"bias": True}, 2 * 4096**2 + 2 * 4096 * 5120 + 3 * 4096 * 14336, ()),
    (
        "eagle",
        LLAMA31,
        ONE_LAYER | {"draft_vocab_size": 32000, "max_position_embeddings": 2048},
        3 * 4096**2 + 2 * 4096**2 + 2 * 8192 * 1024 + 4096**2 + 3 * 4096 * 14336 + 32000 * 4096,
        (2, 16, 29),
    ),
]


@pytest.mark.parametrize(
    ("method", "target", "drafter", "parameters", "taps"),
    PUBLISHED,
    ids=["vicuna-medusa", "llama-eagle", "llama-eagle3"],
)
def test_a_plan_of_seven_billion_weights(
    bench: Any, tmp_path: Path, method: str, target: Any, drafter: Any, parameters: int, taps: tuple[int, ...]
) -> None:
    """Published configurations without a tensor: nothing of 14 GB is read or written."""
    for name, config in (("target", target), ("drafter", drafter)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config), "utf-8")
    args = ("build", tmp_path / "target", f"--{method}", tmp_path / "drafter", "--widths", "16", "--context", "512")
    plan = json.loads(bench.export(*args, "--dry-run", "--json").stdout)
    rows = {row["name"]: row for row in plan["memory"]}
    assert plan["precision"] == "int4" and 4e9 < rows["target"]["weights"] < 6e9
    # four bits each, a float32 scale for every 32, and the odd vector
    assert rows[method]["weights"] == pytest.approx(parameters * (1 / 2 + 4 / 32), rel=0.03)
    (found,) = plan["drafters"]
    assert tuple(found["taps"]) == taps and found["reads"] == ("taps" if taps else "hidden")
    verify = next(f for f in plan["files"] if f["file"].startswith("verify-portable-s16"))
    assert ("taps[1,16,12288]" in verify["shapes"]) == bool(taps)
    text = bench.export(*args, "--dry-run").stdout
    assert "a plan, nothing is written" in text and f"  {method} " in text and len(list(tmp_path.iterdir())) == 2


def test_plans_that_no_export_would_make(bench: Any, tiny_target: Path, heads: Path, tmp_path: Path) -> None:
    plan = ("build", tiny_target, "--dry-run")
    assert "hidden size" in bench.refused(
        *plan, "--medusa", bench.drafter(tmp_path / "w", {}, {"medusa_num_heads": 2, "hidden_size": 9}, "x.bin")
    )
    assert "--dry-run knows auto" in bench.refused(*plan, "--precision", "keep")
    assert "more than the 256 tokens" in bench.refused(*plan, "--context", "512", code=2)
    assert "Missing option '-o'" in bench.refused(tiny_target, "--medusa", heads, code=2)
