"""`spec-edge bench` on the tiny bundle: a whole report, and one line for everything that is wrong."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from click.testing import CliRunner, Result

from spec_edge.models.contract import SpecError
from spec_edge.runtime import cli
from spec_edge.runtime.bench import command, markdown

pytestmark = pytest.mark.usefixtures("own_cache")
GOLDEN = Path(__file__).parent / "goldens" / "help_bench.txt"
FAST = ("--limit", "2", "--max-new-tokens", "6", "--repeat", "2", "--threads", "1")


@pytest.fixture
def short(tmp_path: Path) -> Path:
    """Questions that fit the tiny model's context."""
    path = tmp_path / "short.jsonl"
    rows: list[dict[str, Any]] = [{"question_id": 1, "task": "chat", "turns": ["ab", "cd"]}]
    rows += [{"question_id": 2, "category": "qa", "turns": ["aba aba"]}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def bench(*args: object) -> Result:
    return CliRunner().invoke(cli.main, ["bench", *map(str, args)])


def test_a_whole_report(tiny: Path, short: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    methods = "prompt-lookup,suffix"
    result = bench("-m", tiny, "--questions", short, *FAST, "--methods", methods, "--out", out)
    assert result.exit_code == 0, result.output
    report = json.loads((out / "report.json").read_text("utf-8"))
    assert list(report["figures"]) == ["plain", "prompt-lookup", "suffix"]
    assert [(q["question"], q["turn"]) for q in report["questions"]] == [("1", 0), ("1", 1), ("2", 0)]
    assert report["questions"][1]["prompt_tokens"] > report["questions"][0]["prompt_tokens"] + 6
    assert all(found["faults"] == 0 and found["answers"] == 3 for found in report["lossless"].values())
    assert all(report["memory"][name]["peak_rss"] > 1 << 20 for name in report["figures"])
    assert all(0 < report["memory"][name]["startup_s"] < 600 for name in report["figures"])
    assert "reference.npz cannot be read" in report["quality"]["plain"]["absent"]
    assert report["settings"]["threads"] == 1 and report["curve"]["widths"][0] == 1
    text = (out / "report.md").read_text("utf-8")
    assert (
        "## In a process of its own" in text
        and "not resolved" in text
        and "## qa" in text
        and str(tmp_path) not in text
    )
    assert not [path for path in out.iterdir() if path.name.startswith(".")]
    assert "plain" in result.stdout and "suffix" in result.stdout


def test_all_methods_and_a_peer_that_is_not_there(
    tiny: Path, short: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot run is listed with its reason; nothing of it becomes a number."""
    weights = tmp_path / "weights"
    weights.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(_empty_packages(tmp_path)))
    peers = ("--peers", "optimum,llama-cpp", "--weights", weights)
    result = bench("-m", tiny, "--questions", short, *FAST, *peers, "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert "second bundle" in report["contenders"]["draft"]["absent"]
    for name in ("optimum", "llama-cpp"):
        assert "not installed" in report["contenders"][name]["absent"]
        assert report["contenders"][name]["status"] == "not installed"
    assert not any("/" in name or name == "draft" for name in report["figures"])
    assert {"plain", "auto", "lookahead", "suffix"} <= set(report["figures"])


def _empty_packages(tmp_path: Path) -> Path:
    """A folder in which the peers' packages raise what a missing one raises, whatever this Python has."""
    folder = tmp_path / "packages"
    folder.mkdir()
    for name in ("optimum", "llama_cpp"):
        (folder / f"{name}.py").write_text(f"raise ModuleNotFoundError('none', name='{name}')\n", encoding="utf-8")
    return folder


def test_sampled_text_is_not_compared(tiny: Path, short: Path) -> None:
    args = ("--temperature", "0.8", "--methods", "suffix", "--json")
    result = bench("-m", tiny, "--questions", short, *FAST, *args)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["lossless"] == {}


def test_the_curve_of_every_graph(tiny: Path, tmp_path: Path) -> None:
    result = bench("-m", tiny, "--curve", "--out", tmp_path / "c", "--threads", "1")
    assert result.exit_code == 0, result.output
    rows = json.loads((tmp_path / "c" / "curve.json").read_text("utf-8"))["curve"]
    graphs = json.loads((tiny / "bundle.json").read_text("utf-8"))["graphs"]
    assert [row["graph"] for row in rows if row["provider"] == "cpu"] == [graph["name"] for graph in graphs]
    cpu = [row for row in rows if row["provider"] == "cpu"]
    assert all(row["ms"] and min(row["ms"]) > 0 for row in cpu)
    assert next(row for row in cpu if row["role"] == "step")["widths"][:3] == [1, 2, 4]


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["--questions", "nowhere.jsonl"], 2, "cannot read the questions"),
        (["--methods", "lookahed"], 2, "unknown method 'lookahed'. Did you mean 'lookahead'"),
        (["--methods", "draft"], 2, "draft"),
        (["--methods", ""], 2, "method"),
        (["--peers", "lama-cpp"], 2, "unknown peer 'lama-cpp'. Did you mean 'llama-cpp'"),
        (["--peers", "llama-cpp"], 2, "--weights"),
        (["--peers", "llama-cpp", "--weights", "nowhere.gguf"], 2, "weights: there is no file or folder"),
        (["--peers", "llama-cpp", "--weights", "README.md"], 1, "not the file that the bundle was made from"),
        (["--peers", "llama-cpp", "--weights", "w", "--temperature", "1"], 2, "greedy"),
        (["--peers", "llama-cpp", "--peer-python", "llama-cpp"], 2, "NAME=PATH"),
        (["--repeat", "0"], 2, "repeat must be 1 to 100"),
        (["--repeat", "101"], 2, "repeat must be 1 to 100"),
        (["--limit", "0"], 2, "limit must be at least 1"),
        (["--max-new-tokens", "1"], 2, "max-new-tokens must be at least 2"),
        (["--threads", "0"], 2, "threads must be at least 1"),
        (["--temperature", "-1"], 2, "temperature"),
        (["--provider", "npu"], 2, "unknown provider 'npu'"),
        (["--out", "README.md"], 2, "cannot write into"),
        (["-m", "nowhere"], 2, "nowhere"),
        (["-m", "nowhere", "--temperature", "-1"], 2, "temperature must be between 0"),
        (["-m", "nowhere", "--temperature", "nan"], 2, "temperature must be between 0"),
        (["--out", "new/deep", "--questions", "nowhere.jsonl"], 2, "cannot read the questions"),
        (["--weights", "w"], 2, "only peers read --weights; name some with --peers"),
        (["--draft-weights", "w"], 2, "only peers read --draft-weights"),
        (["--peer-python", "llama-cpp=x"], 2, "only peers read --peer-python"),
        (["--peers-at-once", "1"], 2, "only peers read --peers-at-once"),
        (["--peers", "llama-cpp", "--weights", "w", "--peers-at-once", "0"], 2, "peers-at-once must be at least 1"),
    ],
)
def test_bad_calls_get_one_line(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], code: int, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "README.md").write_text("a file", encoding="utf-8")
    result = bench("-m", tiny, *FAST, *args)
    assert result.exit_code == code, result.output
    assert said in result.stderr
    lines = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert len(lines) == 1 and "Traceback" not in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) in (["README.md"], ["README.md", "cache"])


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--methods", "suffix"], "--methods"),
        (["--limit", "2", "--repeat", "1"], "--repeat, --limit"),
        (["--peers", "llama-cpp"], "--peers"),
        (["--temperature", "-1"], "--temperature"),
        (["--questions", "q.jsonl"], "--questions"),
        (["--provider", "npu"], "--provider"),
        (["--threads", "0"], "threads must be at least 1"),
    ],
)
def test_the_curve_refuses_what_it_does_not_read(tmp_path: Path, args: list[str], said: str) -> None:
    result = bench("-m", "nowhere", "--curve", "--out", tmp_path / "c", *args)
    assert result.exit_code == 2 and said in result.stderr, result.output
    assert len([line for line in result.stderr.splitlines() if line.startswith("Error: ")]) == 1
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("curve", [False, True])
def test_an_interrupted_run_leaves_no_empty_folder(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, curve: bool
) -> None:
    module, name = (command.curve, "every_graph") if curve else (command.bench, "run")
    monkeypatch.setattr(module, name, lambda *_: signal.raise_signal(number))
    before = signal.signal(signal.SIGINT, _ctrl_c)  # a background job ignores it
    (tmp_path / "old").mkdir()
    try:
        for out in ("new/deep", "old"):
            result = bench("-m", tiny, *(["--curve"] if curve else []), "--out", tmp_path / out)
            assert result.exit_code == 130 and "interrupted" in result.stderr, result.output
    finally:
        signal.signal(signal.SIGINT, before)
    assert [path.name for path in tmp_path.iterdir() if path.name != "cache"] == ["old"]


def test_the_runs_are_kept_when_the_end_of_the_benchmark_fails(
    tiny: Path, short: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hour of runs must not be lost to what comes after them."""

    def full(*_: object) -> None:
        raise SpecError("no memory left")

    monkeypatch.setattr(command.bench, "_quality", full)
    out = tmp_path / "out"
    result = bench("-m", tiny, "--questions", short, *FAST, "--methods", "suffix", "--out", out)
    assert result.exit_code == 1 and "no memory left" in result.stderr, result.output
    assert [path.name for path in out.iterdir()] == ["report.json"]
    report = json.loads((out / "report.json").read_text("utf-8"))
    assert list(report["ratios"]) == ["suffix"] and "ended before" in report["quality"]["plain"]["absent"]
    assert "ended before" in markdown.whole(report, [])


def _ctrl_c(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def test_help_is_the_golden_one() -> None:
    """Write it anew with SPEC_EDGE_GOLDENS=1 and read the diff."""
    text = CliRunner().invoke(cli.main, ["bench", "--help"], terminal_width=100, prog_name="spec-edge").stdout
    if os.environ.get("SPEC_EDGE_GOLDENS"):
        GOLDEN.write_text(text, encoding="utf-8", newline="\n")
    assert text == GOLDEN.read_text(encoding="utf-8")
