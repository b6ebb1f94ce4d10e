"""The command line: help, answers, and one line for everything that goes wrong."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from spec_edge.runtime import cli
from spec_edge.runtime.sessions.ort import OrtSession

pytestmark = pytest.mark.usefixtures("own_cache")
GOLDENS = Path(__file__).parent / "goldens"
STATS = ["prompt_tokens", "new_tokens", "steps", "drafted", "accepted", "bonus", "acceptance_length"]
STATS += ["accepted_by_position", "drafted_by_position", "steps_by_drafter", "lossy"]
STATS += ["ttft_s", "decode_s", "tokens_per_s", "draft_s", "verify_s", "overhead_s"]


def run(*args: str, **options: Any) -> Result:
    return CliRunner().invoke(cli.main, args, **options)


@pytest.mark.parametrize(("name", "args"), [("main", []), ("run", ["run"])])
def test_help_is_the_golden_one(name: str, args: list[str]) -> None:
    """Write it anew with SPEC_EDGE_GOLDENS=1 and read the diff."""
    text = run(*args, "--help", terminal_width=100, prog_name="spec-edge").stdout
    path = GOLDENS / f"help_{name}.txt"
    if os.environ.get("SPEC_EDGE_GOLDENS"):
        path.write_text(text, encoding="utf-8", newline="\n")
    assert text == path.read_text(encoding="utf-8")


def test_version() -> None:
    assert run("--version").stdout == f"spec-edge, version {version('spec-edge')}\n"


def test_text(tiny: Path) -> None:
    result = run("run", "-m", str(tiny), "--max-new-tokens", "12", "hello")
    assert result.exit_code == 0 and result.stderr == ""
    assert len(result.stdout) > 1 and result.stdout.endswith("\n")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["run", "--bogus", "hi"], "No such option"),
        (["run", "--seed", "1.5", "hi"], "Invalid value for '--seed': '1.5' is not a valid integer"),
        (["run"], "Missing argument 'PROMPT'"),
        (["run", "hi", "there"], "Got unexpected extra argument (there)"),
        (["rum"], "No such command 'rum'"),
        (["--bogus"], "No such option"),
    ],
)
def test_a_wrong_call_is_one_line(args: list[str], said: str) -> None:
    result = run(*args)
    assert result.exit_code == 2 and result.stdout == ""
    assert result.stderr.startswith(f"Error: {said}") and result.stderr.endswith(" --help\n")
    assert result.stderr.count("\n") == 1


def test_the_lossy_rule_says_so(tiny: Path) -> None:
    args = ("run", "-m", str(tiny), "--max-new-tokens", "4", "--accept", "typical", "hello")
    assert run(*args).stderr == ""  # greedy text is exact under both rules
    result = run(*args, "--temperature", "1")
    assert result.exit_code == 0
    assert result.stderr == "note: --accept typical is LOSSY: this text does not have the model's own law\n"


def test_json(tiny: Path) -> None:
    args = ["run", "-m", str(tiny), "--json", "--max-new-tokens", "12", "--method", "prompt-lookup", "hello hello"]
    result = run(*args)
    assert result.exit_code == 0 and result.stderr == ""
    got = json.loads(result.stdout)
    assert list(got) == [
        "text",
        "tokens",
        "finish_reason",
        "method",
        "provider",
        "model",
        "stats",
        "notes",
        "placement",
    ]
    assert got["notes"] == [] and [row["network"] for row in got["placement"]] == ["target"]
    row = got["placement"][0]
    assert row["provider"] == "cpu" and row["nodes"]["cpu"] >= 10 and row["operations"]["cpu"] > 1000
    assert list(got["stats"]) == STATS
    assert got["method"] == "prompt-lookup" and got["provider"] == "cpu" and len(got["tokens"]) <= 12
    assert run(*args[:-1], "--no-chat", "hello hello").stdout != result.stdout


def test_stats_go_to_standard_error(tiny: Path) -> None:
    result = run("run", "-m", str(tiny), "--stats", "--max-new-tokens", "5", "hello")
    assert re.search(r"nodes\s+target: \d+ on cpu", result.stderr) and "acceptance length" in result.stderr
    assert "acceptance" not in result.stdout


def test_standard_input(tiny: Path) -> None:
    args = ["run", "-m", str(tiny), "--max-new-tokens", "5", "--method", "plain"]
    plain = run(*args, "hé 束").stdout
    assert run(*args, "-", input="hé 束\n".encode()).stdout == plain
    assert run(*args, "-", input=b"\xef\xbb\xbf" + "hé 束\r\n".encode()).stdout == plain


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["hello", "--tempo", "1"], 2, "--tempo"),
        ([""], 2, "the prompt is empty"),
        (["-"], 2, "the prompt is empty"),
        ([" \t \u3000\n"], 2, "the prompt is empty"),
        (["hello", "--method", "lookup"], 2, "unknown method 'lookup'. Did you mean 'prompt-lookup'? Known: auto"),
        (["hello", "--provider", "npu"], 2, "unknown provider 'npu'."),
        (["hello", "--threads", "0"], 2, "threads must be at least 1"),
        (["hello", "--max-new-tokens", "0"], 2, "max-new-tokens must be at least 1"),
        (["hello", "--width", "-1"], 2, "width must be at least 1"),
        (["hello", "--draft-tokens", "0"], 2, "draft-tokens must be at least 1"),
        (["hello", "--temperature", "nan"], 2, "temperature must be between"),
        (["hello", "--top-p", "2"], 2, "top-p must be between"),
        (["hello", "--stop", ""], 2, "a stop string is empty"),
        (["hello " * 1200], 2, "tokens and the context 1024"),
        (["a" * 20000], 2, "the prompt has 20000 characters"),
        (["hello", "-m", "none.gguf"], 2, "'none.gguf' does not exist"),
        (["hello", "-m", "."], 2, "neither a bundle"),
        (["bad \udcff byte"], 2, "not valid text"),
    ],
)
def test_what_is_refused(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], code: int, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("run", "-m", str(tiny), *args)
    assert result.exit_code == code, result.output
    assert message in result.stderr and "Traceback" not in result.output
    assert result.stdout == ""
    assert len([line for line in result.stderr.splitlines() if line.startswith("Error")]) == 1


def test_standard_input_that_is_no_text(tiny: Path) -> None:
    result = run("run", "-m", str(tiny), "-", input=b"\xff\xfe\x00")
    assert result.exit_code == 2 and "standard input is not UTF-8" in result.stderr


def test_ctrl_c_keeps_the_text(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run("run", "-m", str(tiny), "--method", "plain", "--max-new-tokens", "20", "hello").stdout
    _after(monkeypatch, 8, KeyboardInterrupt())
    result = run("run", "-m", str(tiny), "--method", "plain", "--max-new-tokens", "20", "hello")
    assert result.exit_code == 130 and result.stderr == "interrupted\n"
    assert len(result.stdout) > 1 and whole.startswith(result.stdout[:-1])


def test_ctrl_c_completes_the_json(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _after(monkeypatch, 8, KeyboardInterrupt())
    result = run("run", "-m", str(tiny), "--method", "plain", "--json", "hello")
    got = json.loads(result.stdout)
    assert result.exit_code == 130 and got["finish_reason"] == "interrupted" and len(got["tokens"]) == 9


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), MemoryError("no memory")])
def test_what_the_system_refuses(tiny: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    _after(monkeypatch, 3, error)
    result = run("run", "-m", str(tiny), "--method", "plain", "hello")
    assert result.exit_code == 1 and result.stderr.startswith(f"Error: {type(error).__name__}: ")
    monkeypatch.setenv("SPEC_EDGE_DEBUG", "1")
    assert isinstance(run("run", "-m", str(tiny), "--method", "plain", "hello").exception, type(error))


@pytest.mark.skipif(shutil.which("sh") is None, reason="no sh on PATH, which closes the descriptor")
@pytest.mark.parametrize(
    ("closed", "code", "said"), [("<&-", 2, "standard input is closed"), (">&-", 1, "standard output is closed")]
)
def test_descriptors_that_are_closed(tiny: Path, closed: str, code: int, said: str) -> None:
    command = f'"{sys.executable}" -m spec_edge.runtime run -m "{tiny}" - {closed}'
    done = subprocess.run(["sh", "-c", command], input="hello", capture_output=True, text=True, check=False)
    assert done.returncode == code and done.stdout == ""
    assert done.stderr.startswith(f"Error: {said}") and done.stderr.count("\n") == 1


def test_logits_that_are_nan(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verify = OrtSession.verify

    def poisoned(self: OrtSession, *args: Any) -> Any:
        output = verify(self, *args)
        output.logits[...] = np.nan
        return output

    monkeypatch.setattr(OrtSession, "verify", poisoned)
    result = run("run", "-m", str(tiny), "--method", "plain", "hello")
    assert result.exit_code == 1 and "step 1: logit" in result.stderr and len(result.stdout) > 1


def test_a_reader_that_leaves(tiny: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "spec_edge.runtime",
        "run",
        "-m",
        str(tiny),
        "--method",
        "plain",
        "--no-chat",
        "hello",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout and child.stderr
        child.stdout.close()
        assert b"Traceback" not in child.stderr.read()
    assert child.returncode == 1


def test_any_character_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    cli.utf8_output()
    print("é束", flush=True)
    assert raw.getvalue().rstrip() == ("é束".encode() if os.name == "nt" else b"??")


def _after(monkeypatch: pytest.MonkeyPatch, steps: int, error: BaseException) -> None:
    """The session fails in its verify run number `steps` + 1."""
    verify, left = OrtSession.verify, iter(range(steps))

    def failing(self: OrtSession, *args: Any) -> Any:
        if next(left, None) is None:
            raise error
        return verify(self, *args)

    monkeypatch.setattr(OrtSession, "verify", failing)
