"""The tables of docs/targets.md are made of docs/npu-rows.jsonl, and what the NPU targets' rules allow has a row."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from spec_edge.targets.target import target

ROOT = Path(__file__).resolve().parents[2]
ROWS, DOC, SLOW = ROOT / "docs" / "npu-rows.jsonl", ROOT / "docs" / "targets.md", ROOT / ".ci" / "slow"
PLATFORMS = {"meteor-lake": "3720", "lunar-lake": "4000", "panther-lake": "5010", "snapdragon-x": "qnn"}


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in ROWS.read_text("utf-8").splitlines()]


def test_the_tables_are_of_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SLOW))
    monkeypatch.delitem(sys.modules, "npu_table", raising=False)
    import npu_table

    copy = tmp_path / "targets.md"
    copy.write_text(DOC.read_text("utf-8"), "utf-8")
    monkeypatch.setattr(sys, "argv", ["npu_table.py", str(ROWS), str(copy)])
    assert npu_table.main() == 0
    assert copy.read_text("utf-8") == DOC.read_text("utf-8")


def test_no_row_names_a_path_of_the_machine_that_made_it(rows: list[dict[str, Any]]) -> None:
    assert [row["error"] for row in rows if "/" in row["error"] or "\\" in row["error"]] == []


@pytest.mark.parametrize("name", PLATFORMS)
def test_every_width_that_the_rules_allow_was_compiled(name: str, rows: list[dict[str, Any]]) -> None:
    done = {
        (row["role"], row["width"])
        for row in rows
        if row["target"] == PLATFORMS[name] and row["network"] == "target" and row["compiled"]
    }
    rules = target(name).rules
    assert rules.widths and rules.prefills
    allowed = {("verify", width) for width in rules.widths} | {("prefill", width) for width in rules.prefills}
    assert allowed <= done


@pytest.mark.parametrize("name", PLATFORMS)
def test_every_kind_of_drafters_graph_was_compiled(name: str, rows: list[dict[str, Any]]) -> None:
    done = {(r["network"], r["role"]) for r in rows if r["target"] == PLATFORMS[name] and r["compiled"]}
    eagle = {("eagle", role) for role in ("prefill", "catchup", "expand")}
    assert eagle | {("medusa", "heads")} <= done
