"""Values of the command line that are empty or hold characters that do not print."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from spec_edge.export.cli import main as spec_export
from spec_edge.models.contract import BadUsage
from spec_edge.runtime import load
from spec_edge.runtime.cli import main as spec_edge


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (["bench", "-m", "x", "--out", ""], "--out"),
        (["bench", "-m", "x", "--questions", " "], "--questions"),
        (["doctor", "-m", ""], "--model"),
    ],
)
def test_an_empty_path_is_not_the_current_folder(command: list[str], option: str) -> None:
    done = CliRunner().invoke(spec_edge, command)
    assert done.exit_code == 2
    assert done.output == f"Error: {option} needs the path of a folder or file, not an empty text\n"


@pytest.mark.parametrize(
    ("command", "what"),
    [
        (["compile", "x", "--target", "meteor-lake", "--out", ""], "--out"),
        (["compile", "", "--target", "meteor-lake"], "BUNDLE"),
        (["build", "x", "-o", ""], "--output"),
    ],
)
def test_nor_for_an_export(command: list[str], what: str) -> None:
    done = CliRunner().invoke(spec_export, command)
    assert done.exit_code == 2
    assert done.output == f"Error: {what} needs the path of a folder or file, not an empty text\n"


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[31mb", "a\x00b", "a\u2028b"])
def test_a_message_is_one_line_whatever_it_quotes(name: str) -> None:
    done = CliRunner().invoke(spec_edge, ["run", "-m", "smollm2-135m", "--method", name, "hi"])
    assert done.exit_code == 2
    assert done.output.startswith("Error: ")
    assert done.output.endswith("\n")
    assert done.output[:-1].isprintable()


@pytest.mark.parametrize("option", ["provider", "draft_provider"])
def test_a_provider_is_a_name(option: str) -> None:
    with pytest.raises(BadUsage, match=option.replace("_", "-")):
        load("smollm2-135m", **{option: None})  # type: ignore[arg-type]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a full disk that every Linux has")
@pytest.mark.parametrize("command", [[], ["run"], ["bench"]])
def test_a_help_text_that_cannot_be_printed_is_one_line(command: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        call = [sys.executable, "-m", "spec_edge.runtime", *command, "--help"]
        done = subprocess.run(call, stdout=full, stderr=subprocess.PIPE, encoding="utf-8", check=False)
    assert done.returncode == 1
    assert done.stderr == "Error: standard output cannot be written (No space left on device)\n"
