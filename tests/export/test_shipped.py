"""Heads that come with the package: small, whole, and put into bundles of the very model that they were made for."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from spec_edge.export.drafter_files import open_files
from spec_edge.export.drafters import accuracy
from spec_edge.export.options import build_options
from spec_edge.export.shipped import shipped, shipped_for
from spec_edge.models.aliases import ALIASES
from spec_edge.models.checkpoint import ModelConfig
from spec_edge.models.drafter import kind_of
from spec_edge.targets.target import targets

SMOLLM2 = ModelConfig(
    "llama", 49152, 576, 1536, 30, 9, 3, 64, 1e-5, 1e5, None, None, tied=True, qkv_bias=False, context=8192
)
HASH = ALIASES["smollm2-135m"].sha256


def test_heads_are_found_by_the_hash_of_the_weights(tmp_path: Path) -> None:
    assert shipped(HASH, tmp_path) == {}
    for kind in ("eagle3", "medusa"):
        folder = tmp_path / "smollm2-135m" / kind
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
    assert shipped(HASH, tmp_path) == {
        "eagle": tmp_path / "smollm2-135m" / "eagle3",
        "medusa": tmp_path / "smollm2-135m" / "medusa",
    }
    assert shipped("0" * 64, tmp_path) == {}


def test_what_ships_fits_the_default_model_and_is_small() -> None:
    """This release ships none; whoever adds some is held to this."""
    found, size = shipped(HASH), 0
    assert shipped_for("smollm2-135m") == found
    for method, folder in found.items():
        with ExitStack() as stack:
            files = open_files(folder, stack)
            kind = kind_of(files)
            assert kind is not None and kind.method == method
            drafter = kind.open(files, SMOLLM2)
            assert drafter.taps == ((2, 15, 27) if method == "eagle" else ())
            if method == "medusa":
                assert len(accuracy(files, drafter.heads)[0]) >= 5
        size += sum(path.stat().st_size for path in folder.iterdir())
    assert size < 25e6


def test_other_models_have_none(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"x")
    assert shipped("0" * 64) == shipped_for(str(tmp_path / "model.gguf")) == shipped_for("nowhere") == {}


def test_they_can_be_left_out_or_replaced(tmp_path: Path) -> None:
    mine, heads = tmp_path / "mine", {"eagle": tmp_path / "e", "medusa": tmp_path / "m"}
    options = build_options("smollm2-135m", tmp_path / "b")
    assert options.with_shipped(heads) == heads
    assert replace(options, drafters={"eagle": mine}).with_shipped(heads) == {**heads, "eagle": mine}
    assert build_options("smollm2-135m", tmp_path / "b", heads=False).with_shipped(heads) == {}


def test_targets_of_fixed_widths_get_none_unless_asked(tmp_path: Path) -> None:
    """Each of their graphs costs minutes of compiling and holds the weights."""
    fixed = [t for t in targets() if not t.symbolic]
    options = build_options("smollm2-135m", tmp_path / "b")
    assert fixed and all(replace(options, target=t).with_shipped({"eagle": tmp_path}) == {} for t in fixed)
