"""`spec-export compile` with compilers that work, leave nodes out, fail and are missing."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from spec_edge.export import compile as compiling
from spec_edge.export.compile import CompileOptions, CompileReport, compile_bundle, report_lines
from spec_edge.models.contract import BadUsage, SpecError
from spec_edge.runtime import compiled_store
from spec_edge.runtime.compiling import CompileSettings
from spec_edge.runtime.providers.provider import Found, Job, Provider, ProviderMissing

FAKES = Path(__file__).parent.parent / "runtime" / "fakes" / "compile_child.py"
FOUND = Found("NPU 3720, compiler only", versions={"openvino": "2026.4.1"})


@pytest.fixture(scope="module")
def bundle(bench: Any, tiny_target: Path, heads: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle") / "tiny"
    return bench.bundle(tiny_target, folder, "--medusa", heads, "--context", "128")


def _in_the_child(job: Job, file: Path) -> None:
    raise AssertionError(f"the parent compiles {job} into {file}")


def _named(fake: str, asked: list[tuple[str, dict[str, str]]] | None = None) -> Callable[[str], Provider]:
    """A provider under whatever name is asked for, which the fake child knows as `fake`."""

    def named(name: str) -> Provider:
        def find(options: Mapping[str, str]) -> Found:
            if asked is not None:
                asked.append((name, dict(options)))
            return FOUND

        return Provider(fake, "npu", False, "", find, open=None, compile=_in_the_child)  # type: ignore[arg-type]

    return named


@pytest.fixture
def run(bundle: Path, tmp_path: Path) -> Callable[..., CompileReport]:
    settings = CompileSettings(60, folder=tmp_path / "cache", command=(sys.executable, str(FAKES)))

    def compile_it(fake: str = "works", named: Callable[[str], Provider] | None = None, **more: Any) -> CompileReport:
        options = CompileOptions(bundle, "meteor-lake", **more)
        return compile_bundle(options, None, named or _named(fake), settings)

    return compile_it


def test_every_fixed_width_graph_is_compiled(run: Callable[..., CompileReport], bundle: Path) -> None:
    asked: list[tuple[str, dict[str, str]]] = []
    report = run(named=_named("works", asked))
    manifest = json.loads((bundle / "bundle.json").read_text("utf-8"))
    fixed = {g["name"] for g in manifest["graphs"] if g["width"] and g["lowering"] == "portable"}
    assert {g.graph for g in report.graphs} == fixed and len(fixed) >= 3
    assert {g.network for g in report.graphs} == {"target", "medusa"}
    assert all(g.compiled and g.on_target == g.nodes > 0 and g.bytes > 0 and g.seconds > 0 for g in report.graphs)
    assert report.complete and report.bytes == sum(g.bytes for g in report.graphs)
    assert asked == [("openvino-npu", {"NPU_PLATFORM": "3720"})]  # the profile's options and its compiler's arguments
    text = "\n".join(report_lines(report))
    assert "meteor-lake" in text and "openvino 2026.4.1" in text and "compiled, not run" in text


def test_here_is_this_machines_device(run: Callable[..., CompileReport]) -> None:
    asked: list[tuple[str, dict[str, str]]] = []
    run(named=_named("works", asked), here=True, graphs=("verify-*-s1-*",))
    assert asked == [("openvino-npu", {})]


def test_graphs_are_chosen_by_pattern(run: Callable[..., CompileReport]) -> None:
    report = run(graphs=("verify-*-s8-*", "medusa-*"))
    assert {g.graph.split("-")[0] for g in report.graphs} == {"verify", "medusa"}
    assert {g.width for g in report.graphs if g.role == "verify"} == {8}
    with pytest.raises(BadUsage, match=r"no fixed-width graph .* verify-portable-s8"):
        run(graphs=("nothing",))


def test_copies_and_a_report(run: Callable[..., CompileReport], tmp_path: Path) -> None:
    out = tmp_path / "out"
    report = run(graphs=("verify-*-s8-*",), out=out)
    written = json.loads((out / compiling.REPORT).read_text("utf-8"))
    assert written == json.loads(json.dumps(dataclasses.asdict(report)))
    folder = out / report.graphs[0].graph
    assert {p.name for p in folder.iterdir()} == {compiled_store.ARTEFACT, "weights.part"}
    assert sum(p.stat().st_size for p in folder.iterdir()) == report.graphs[0].bytes


def test_copies_go_into_no_bundle_and_no_file(run: Callable[..., CompileReport], bundle: Path, tmp_path: Path) -> None:
    before = sorted(bundle.iterdir())
    for out in (bundle, bundle / "compiled"):
        with pytest.raises(BadUsage, match="lies in the bundle"):
            run("never", out=out)
    (tmp_path / "file").touch()
    with pytest.raises(BadUsage, match="is a file; name a folder"):
        run("never", out=tmp_path / "file")
    assert sorted(bundle.iterdir()) == before


@pytest.mark.parametrize(
    ("fake", "words"), [("aborts", "died on verify"), ("refuses", "is not for this NPU"), ("lies", "wrote nothing")]
)
def test_a_failure_is_a_line_of_the_report(run: Callable[..., CompileReport], fake: str, words: str) -> None:
    report = run(fake, graphs=("verify-*-s8-*",))
    (graph,) = report.graphs
    assert not report.complete and not graph.compiled and graph.on_target == 0 and graph.nodes > 0
    assert words in graph.why_not
    assert any("not compiled: " in line and words in line for line in report_lines(report))


def test_nodes_outside_the_compiled_graph_are_counted(run: Callable[..., CompileReport]) -> None:
    (graph,) = run("leaves_nodes_out", graphs=("verify-*-s8-*",)).graphs
    assert not graph.compiled and graph.why_not == "2 nodes stay outside the compiled graph"
    assert graph.on_target == graph.nodes - 2
    (graph,) = run("takes_all_nodes", graphs=("verify-*-s8-*",)).graphs
    assert graph.compiled and graph.on_target == graph.nodes


def test_a_graph_that_breaks_a_rule_is_not_given_to_the_compiler(
    run: Callable[..., CompileReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "breaches", lambda *_args: iter(["node /x has a zero point of 3"]))
    (graph,) = run("aborts", graphs=("verify-*-s8-*",)).graphs
    assert graph.why_not == "does not suit target meteor-lake: node /x has a zero point of 3"


def test_no_compiler_here_says_what_to_install(run: Callable[..., CompileReport]) -> None:
    def find(_options: Mapping[str, str]) -> Found:
        raise ProviderMissing("no compiler library: pip install openvino")

    with pytest.raises(ProviderMissing, match="pip install openvino"):
        run(named=lambda name: dataclasses.replace(_named("works")(name), find=find))


@pytest.mark.parametrize(("name", "words"), [("ryzen-ai-xdna1", "nothing is compiled"), ("cpu", "no provider of")])
def test_targets_for_which_nothing_is_compiled(bundle: Path, name: str, words: str) -> None:
    def named(_name: str) -> Provider:
        return dataclasses.replace(_named("works")(""), compile=None)

    with pytest.raises(SpecError, match=words):
        compile_bundle(CompileOptions(bundle, name), None, named)


def test_the_command(bench: Any, bundle: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = [True]

    def fake(options: CompileOptions, _progress: object) -> CompileReport:
        assert options == CompileOptions(bundle, "meteor-lake", ("a*", "b"), 5.0, tmp_path, False, True)
        graph = compiling.CompiledGraph("a", "target", "verify", 8, 128, made[0], 9, 9, 1.0, None, 1000, "")
        return CompileReport(str(bundle), "meteor-lake", "p", "d", {}, (graph,), 1000)

    monkeypatch.setattr(compiling, "compile_bundle", fake)
    command = ["compile", bundle, "--target", "meteor-lake", "--graphs", "a*, b", "--timeout", "5", "--again"]
    command += ["--out", tmp_path]
    done = bench.export(*command)
    assert done.exit_code == 0 and "a: 9 of 9 nodes, 1.0 s, 1 kB" in done.stdout, done.output
    assert json.loads(bench.export(*command, "--json").stdout)["graphs"][0]["nodes"] == 9
    made[0] = False
    assert bench.export(*command).exit_code == 1


def test_an_unknown_target_is_refused_in_one_line(bench: Any, bundle: Path) -> None:
    assert "unknown target 'metior-lake'. Did you mean" in bench.refused(
        "compile", bundle, "--target", "metior-lake", code=2
    )


def test_intels_compiler_needs_no_npu(monkeypatch: pytest.MonkeyPatch) -> None:
    from spec_edge.runtime.providers import openvino_npu

    monkeypatch.setattr(openvino_npu, "_libraries", lambda: iter(["libopenvino_intel_npu_compiler.so"]))
    found = openvino_npu.find_here({"NPU_PLATFORM": "3720"})
    assert "3720" in found.device and "no device is used" in found.device
    monkeypatch.setattr(openvino_npu, "_libraries", lambda: iter(()))
    with pytest.raises(ProviderMissing, match=r"NPU compiler is not here; .*install"):
        openvino_npu.find_here({"NPU_PLATFORM": "3720"})
