"""Reports on the toy session: a slow and a cheating method are caught, the same arrivals give the same bytes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from spec_edge.models.contract import BadUsage, SpecError
from spec_edge.runtime import engine as engine_module
from spec_edge.runtime.bench import core, lossless, markdown, plots, rows, table, writing
from spec_edge.runtime.bench.bench import FORMAT
from spec_edge.runtime.bench.figures import DEFINITIONS
from spec_edge.runtime.bench.order import measure
from spec_edge.runtime.bench.own import EngineContender
from spec_edge.runtime.bench.ratios import paired
from spec_edge.runtime.bench.runs import Failed, Item, Run
from spec_edge.runtime.drafters.options import DrafterOptions
from spec_edge.runtime.engine import Engine, Limits
from spec_edge.runtime.hybrid import create
from spec_edge.runtime.sessions.toy import ToySession

README = Path(__file__).resolve().parents[2] / "README.md"
TOKENS, QUESTIONS = 24, 8


class Clock:
    """Time that moves a little at each look."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


@dataclass
class Timed:
    """A session on which a verify run costs a second, whatever its width."""

    inner: ToySession
    clock: Clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def verify(self, *args: Any) -> Any:
        self.clock.now += 1.0
        return self.inner.verify(*args)


class Slow:
    """Writes plain decoding's text and takes twice the time."""

    name = "slow"

    def __init__(self, plain: EngineContender) -> None:
        self._plain = plain

    def generate(self, item: Item) -> Run:
        run = self._plain.generate(item)
        return replace(run, arrivals=tuple((2 * at, n) for at, n in run.arrivals))


class Cheat:
    """Three times as fast, by writing something else in the middle of the third question."""

    name = "cheat"

    def __init__(self, plain: EngineContender, change: Callable[[tuple[int, ...]], tuple[int, ...]]) -> None:
        self._plain, self._change = plain, change

    def generate(self, item: Item) -> Run:
        run = self._plain.generate(item)
        tokens = self._change(run.tokens) if item.question == "2" else run.tokens
        return replace(run, tokens=tokens, arrivals=tuple((at / 3, n) for at, n in run.arrivals))


def other_token(tokens: tuple[int, ...]) -> tuple[int, ...]:
    return (*tokens[:5], (tokens[5] + 1) % 16, *tokens[6:])


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    """The engine's clock too: its own shares enter the report."""
    ticking = Clock()
    monkeypatch.setattr(engine_module, "perf_counter", ticking)
    yield ticking


def contender(method: str, clock: Clock) -> EngineContender:
    session: Any = Timed(ToySession(vocab_size=16, capacity=128), clock)
    limits = Limits(max_new_tokens=TOKENS)
    return EngineContender(method, lambda _: Engine(session, create(method, DrafterOptions()), limits=limits), clock)


def items(clock: Clock) -> list[Item]:
    plain = contender("plain", clock)
    found = []
    for number in range(QUESTIONS):
        asked = Item(str(number), ("qa", "code")[number % 2], 0, (number, 3, 5, 3, 5), (0,) * TOKENS)
        found.append(replace(asked, plain=plain.generate(asked).tokens))
    return found


def core_report(clock: Clock, change: Callable[[tuple[int, ...]], tuple[int, ...]] = other_token) -> dict[str, Any]:
    plain = contender("plain", clock)
    everybody = [plain, contender("prompt-lookup", clock), Slow(plain), Cheat(plain, change)]
    judge = lossless.against(ToySession(vocab_size=16, capacity=128))
    return core.report(measure(everybody, items(clock), 3), items(clock), judge)


def whole(found: dict[str, Any]) -> dict[str, Any]:
    """A report around the part that runs gave."""
    machine = {"processor": "toy", "logical_cores": 2, "physical_cores": 2, "system": "none", "python": "3"}
    found = dict(found)
    failed = found.pop("failed")
    return {
        "format": FORMAT,
        "settings": {
            "questions": "toy",
            "count": QUESTIONS,
            "max_new_tokens": TOKENS,
            "temperature": 0.0,
            "repeat": 3,
            "threads": 1,
            "provider": "none",
        },
        "machine": machine | {"versions": {"spec-edge": "0"}, "load": None},
        "model": {"name": "toy", "precision": "fp64"},
        "definitions": DEFINITIONS,
        "contenders": {n: {"kind": "own"} for n in found["figures"]} | {n: {"absent": w} for n, w in failed.items()},
        "questions": [{"question": str(i), "task": ("qa", "code")[i % 2]} for i in range(QUESTIONS)],
        **found,
        "quality": {"plain": {"kl": 0.001, "top1": 0.99, "within": True, "perplexity": 9.0}},
        "memory": {"plain": {"peak_rss": 3 << 20, "pss": None}},
        "curve": {"widths": [1, 2], "ms": [1.0, 1.5]},
    }


def test_a_slow_method_is_caught(clock: Clock) -> None:
    found = core_report(clock)
    slow = found["ratios"]["slow"]["decode"]["overall"]
    assert slow["ratio"] == pytest.approx(0.5, rel=1e-6) and slow["resolved"]
    assert found["lossless"]["slow"]["divergences"] == []
    again = paired(found["speeds"]["plain"], found["speeds"]["slow"])
    assert again is not None and again.ratio == pytest.approx(slow["ratio"], rel=1e-2)
    text = markdown.whole(whole(found), [])
    assert "| slow |" in text and "| 0.50 (0.50-0.50) |" in text


def test_a_cheating_method_is_caught(clock: Clock) -> None:
    found = core_report(clock)
    assert found["ratios"]["cheat"]["decode"]["overall"]["ratio"] == pytest.approx(3.0, rel=1e-6)  # it looks good
    text = found["lossless"]["cheat"]
    assert text["faults"] == 1 and text["answers"] == QUESTIONS
    (row,) = text["divergences"]
    assert row["question"] == "2" and row["at"] == 5 and row["fault"] and not row["near_tie"] and row["margin"] > 0
    shown = markdown.whole(whole(found), [])
    assert "**1 faults**, 1 of 8 differ" in shown and "cheat, question 2, turn 1, token 6: margin" in shown
    assert found["lossless"]["prompt-lookup"]["divergences"] == []


def test_a_method_that_stops_early_is_caught(clock: Clock) -> None:
    """It differs in no token, only in how many there are."""
    text = core_report(clock, lambda tokens: tokens[:7])["lossless"]["cheat"]
    assert text["faults"] == 1 and text["divergences"][0]["lengths"] == [TOKENS, 7]


def test_speculation_shows_as_what_it_is(clock: Clock) -> None:
    """On this machine a run costs the same at any width, so the ratio is the acceptance length."""
    found = core_report(clock)
    figures = found["figures"]["prompt-lookup"]["overall"]
    assert figures["acceptance_length"] > 1.05
    ratio = found["ratios"]["prompt-lookup"]["decode"]["overall"]["ratio"]
    assert ratio == pytest.approx(figures["acceptance_length"], rel=0.25)
    assert found["figures"]["plain"]["overall"]["acceptance_length"] == pytest.approx(1.0)
    assert figures["time_in"]["verify"] > 0.9
    assert set(found["figures"]["plain"]) == {"overall", "qa", "code"}


def test_the_same_runs_give_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = []
    for _ in range(2):
        ticking = Clock()
        monkeypatch.setattr(engine_module, "perf_counter", ticking)
        report = whole(core_report(ticking))
        texts.append((writing.dumped(report), markdown.whole(report, ["a.png"])))
    assert texts[0] == texts[1]
    assert json.loads(texts[0][0]) == json.loads(texts[1][0])


def test_without_plain_decoding_there_is_no_report(clock: Clock) -> None:
    class Broken:
        name = "plain"

        def generate(self, item: Item) -> Run:  # noqa: ARG002
            raise Failed("out of memory")

    with pytest.raises(SpecError, match="plain decoding failed"):
        core.report(measure([Broken()], items(clock), 1), items(clock), None)


def test_a_ratio_compares_runs_of_one_sitting(clock: Clock) -> None:
    """The machine is three times as slow in the second one: each peer still takes twice plain decoding's time there."""
    plain, asked = contender("plain", clock), items(clock)

    class Later:
        """Someone's runs in a slower hour."""

        def __init__(self, name: str, times: float) -> None:
            self.name, self._times = name, times

        def generate(self, item: Item) -> Run:
            run = plain.generate(item)
            return replace(run, arrivals=tuple((self._times * at, n) for at, n in run.arrivals))

    first = measure([plain, Later("p/plain", 2)], asked, 2)
    both = first.and_then(measure([Later("plain", 3), Later("q/plain", 6)], asked, 2, first=2))
    found = core.report(both, asked, None)
    assert both.names == ["plain", "p/plain", "q/plain"]
    for name in ("p/plain", "q/plain"):
        for kind in ("decode", "end_to_end"):
            assert found["ratios"][name][kind]["overall"]["ratio"] == pytest.approx(0.5, rel=1e-6)
    assert len(found["speeds"]["plain"]["0"]) == 4 and len(found["speeds"]["q/plain"]["0"]) == 2
    assert found["figures"]["plain"]["overall"]["tokens"] == found["figures"]["q/plain"]["overall"]["tokens"]


def test_who_fails_in_a_later_sitting_is_out(clock: Clock) -> None:
    class Broken:
        name = "suffix"

        def generate(self, item: Item) -> Run:  # noqa: ARG002
            raise Failed("out of memory")

    plain, asked = contender("plain", clock), items(clock)
    first = measure([plain, contender("suffix", clock)], asked, 1)
    both = first.and_then(measure([plain, Broken()], asked, 1, first=1))
    assert both.names == ["plain"] and {r.contender for r in both.records} == {"plain"}
    assert both.failures == {"suffix": "out of memory"}


class Peer:
    """A peer's method that writes what it is told to."""

    def __init__(self, name: str, clock: Clock, change: Callable[[tuple[int, ...]], tuple[int, ...]] = tuple) -> None:
        self.name, self._plain, self._change = name, contender("plain", clock), change

    def generate(self, item: Item) -> Run:
        run = self._plain.generate(item)
        return replace(run, tokens=self._change(run.tokens), steps=None, inside=None)


def test_a_peer_is_held_to_its_own_plain_decoding(clock: Clock) -> None:
    judge = lossless.against(ToySession(vocab_size=16, capacity=128))
    peers = [Peer("p:int4/plain", clock, other_token), Peer("p:int4/draft", clock, other_token)]
    peers.append(Peer("p:int4/prompt-lookup", clock))
    asked = items(clock)
    found = core.report(measure([contender("plain", clock), *peers], asked, 1), asked, judge)
    text = found["lossless"]
    assert len(text["p:int4/draft"]["divergences"]) == 0 and text["p:int4/draft"]["as_ours"] == 0
    assert len(text["p:int4/prompt-lookup"]["divergences"]) == QUESTIONS
    assert text["p:int4/prompt-lookup"]["as_ours"] == QUESTIONS
    assert "to_own_plain" in found["ratios"]["p:int4/draft"] and "to_own_plain" not in found["ratios"]["p:int4/plain"]
    assert rows.side("p:int4/draft") == "p:int4" and rows.side("suffix") == "plain"
    assert "differ from its own plain" in markdown.whole(whole_of_peers(found), [])


def whole_of_peers(found: dict[str, Any]) -> dict[str, Any]:
    report = whole(found)
    for name, state in report["contenders"].items():
        if "/" in name:
            state |= {"kind": "peer", "version": "1", "settings": {"k": 4}, "precision": "int4"}
    report["contenders"]["q"] = {"kind": "peer", "absent": "not installed"}
    return report


def test_what_is_not_known_is_a_dash(clock: Clock) -> None:
    both = measure([contender("plain", clock), Peer("p/plain", clock)], items(clock), 1)
    report = whole_of_peers(core.report(both, items(clock), None))
    header, body = rows.overall(report)
    cells = dict(zip(header, body[1], strict=True))
    assert cells["KL"] == cells["accept length"] == cells["text"] == "-"
    text = markdown.whole(report, [])
    assert "- q: not measured, not installed" in text and "Sampled text has the target's law" in text


def test_plots(clock: Clock, tmp_path: Path) -> None:
    names = plots.draw(whole(core_report(clock)), tmp_path)
    assert names == ["ratio-by-task.png", "cost-curve.png", "acceptance-by-depth.png", "speed-and-quality.png"]
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in names)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


def test_files_are_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    writing.write_text(path, "old\n")

    def half(file: Path) -> None:
        file.write_text("new", encoding="utf-8")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        writing.write(path, half)
    assert path.read_text("utf-8") == "old\n" and list(tmp_path.iterdir()) == [path]
    with pytest.raises(ValueError, match="not JSON compliant"):
        writing.dumped({"a": float("nan")})


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ('could not open "/home/ada/m/x.gguf/model.xml" here', 'could not open "model.xml" here'),
        ("src/inference/core.cpp:84: a/b", "src/inference/core.cpp:84: a/b"),
        (r"no C:\Users\ada\x.gguf.", "no x.gguf."),
        ("24.5 tokens / second, 1/2", "24.5 tokens / second, 1/2"),
    ],
)
def test_a_report_names_no_folder_of_the_machine(said: str, shown: str) -> None:
    assert writing.without_folders({"peer": {"absent": said, "k": 4}}) == {"peer": {"absent": shown, "k": 4}}


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(BadUsage, match="cannot write into"), writing.ready(tmp_path / "file"):
        pass


def test_the_table_goes_between_the_markers(clock: Clock, tmp_path: Path) -> None:
    report, readme = tmp_path / "report.json", tmp_path / "README.md"
    report.write_text(writing.dumped(whole(core_report(clock))), encoding="utf-8")
    readme.write_text(f"# a\n\n{table.BEGIN}\nold\n{table.END}\n\nafter\n", encoding="utf-8")
    args = [str(report), str(readme)]
    assert CliRunner().invoke(table.main, [*args, "--check"]).exit_code == 1
    assert CliRunner().invoke(table.main, args).exit_code == 0
    text = readme.read_text("utf-8")
    assert text.startswith(f"# a\n\n{table.BEGIN}\n\ntoy (fp64)") and text.endswith(f"{table.END}\n\nafter\n")
    assert "old" not in text and "| cheat |" in text
    assert CliRunner().invoke(table.main, [*args, "--check"]).exit_code == 0
    readme.write_text(text.replace("| slow |", "| quick |"), encoding="utf-8")
    assert CliRunner().invoke(table.main, [*args, "--check"]).exit_code == 1


@pytest.mark.parametrize(("report", "readme", "said"), [("{}", "", "no report"), (None, "", "no report")])
def test_the_table_refuses_what_is_none(tmp_path: Path, report: str | None, readme: str, said: str) -> None:
    if report is not None:
        (tmp_path / "r.json").write_text(report, encoding="utf-8")
    (tmp_path / "R.md").write_text(readme, encoding="utf-8")
    result = CliRunner().invoke(table.main, [str(tmp_path / "r.json"), str(tmp_path / "R.md")])
    assert result.exit_code == 2 and said in result.stderr
    with pytest.raises(BadUsage, match="no place for the table"):
        table.filled("text", "table", "README.md")


def test_the_readme_shows_the_committed_report() -> None:
    """The README cannot drift from docs/: rewrite it with python -m spec_edge.runtime.bench.table REPORT README.md."""
    text = README.read_text("utf-8")
    reports = sorted((README.parent / "docs").glob("**/report.json"))
    if table.BEGIN not in text:
        assert not reports, "a report is committed, but the README has no markers for its table"
        return
    assert reports, "the README has a measured table, but no report is committed under docs/"
    assert any(table.filled(text, table.block(report), "README.md") == text for report in reports)
