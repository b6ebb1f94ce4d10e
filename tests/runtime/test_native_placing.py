"""When the native kernels run a bundle, and what is said when they do not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from spec_edge.runtime import cli, load
from spec_edge.runtime.bundle import open_bundle
from spec_edge.runtime.native import library as module
from spec_edge.runtime.placement import Place
from spec_edge.runtime.placing import QUIET, TARGET, Placer, Step, Wish
from spec_edge.runtime.providers import native
from spec_edge.runtime.providers.provider import Found, ProviderMissing, provider

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.mark.parametrize("strict", [False, True])
def test_a_bundle_that_it_is_not_for_runs_elsewhere_without_a_word(tiny: Path, strict: bool) -> None:
    with load(tiny, strict=strict) as llm:
        assert llm.provider == "cpu" and not llm.notes


@pytest.mark.usefixtures("native_kernels")
def test_asked_for_it_says_which_node_it_lacks(tiny: Path) -> None:
    arguments = ["run", "-m", str(tiny), "--provider", "native"]
    alone = CliRunner().invoke(cli.main, [*arguments, "--strict", "hello"])
    assert alone.exit_code == 1 and "has no native form: MatMul '" in alone.stderr
    assert "Traceback" not in alone.stderr and len(alone.stderr.splitlines()) == 1
    behind = CliRunner().invoke(cli.main, [*arguments, "--max-new-tokens", "2", "hello"])
    assert behind.exit_code == 0 and "native skipped" in behind.stderr and "running on cpu" in behind.stderr


@pytest.fixture
def fresh() -> Iterator[None]:
    """The library is loaded anew in a test, and after it."""
    module.library.cache_clear()
    yield
    module.library.cache_clear()


@pytest.mark.usefixtures("fresh")
def test_a_file_that_is_no_library_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "kernels.so"
    file.write_bytes(b"no library")
    monkeypatch.setattr(module, "path", lambda: file)
    with pytest.raises(ProviderMissing, match="cannot be loaded"):
        module.library()


@pytest.mark.parametrize("machine", ["arm64", "aarch64"])
@pytest.mark.usefixtures("fresh")
def test_another_processor_is_no_news(machine: str, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    job: Any = None  # it is not looked at
    assert native.unsuited(job) == f"spec-edge's own kernels are for x86-64, not for {machine}"
    with load(tiny, strict=True) as llm:
        assert llm.provider == "cpu" and not llm.notes


def test_threads_are_at_most_the_processors_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "processors", lambda: 3)
    asked: list[int] = []
    monkeypatch.setattr(native, "library", lambda: None)
    monkeypatch.setattr(native, "NativeOpened", lambda *arguments: asked.append(arguments[-1]))
    for threads in (None, 2, 64):
        job: Any = SimpleNamespace(model=Path("x"), weights=SimpleNamespace(file="w"), graph=None, threads=threads)
        native.open_job(job)
    assert asked[1:] == [2, 3] and asked[0] <= 3


@pytest.mark.usefixtures("native_kernels", "fresh")
def test_a_library_of_another_version_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FACTS", (0, *module.FACTS[1:]))
    with pytest.raises(ProviderMissing, match="another version's"):
        module.library()


@pytest.mark.real
@pytest.mark.usefixtures("fresh")
def test_kernels_that_were_not_built_are_said(default_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "path", lambda: None)
    with load(default_bundle) as llm:
        assert llm.provider == "cpu"
        assert llm.notes[0].startswith("native skipped: spec-edge was installed without its own kernels; install a C")
        assert llm.notes[1] == "running on cpu, same graph and weights"


def test_what_drafts_on_onnx_runtime_leaves_the_cores_alone(tiny: Path) -> None:
    """Only beside a target on another backend for the CPU."""
    step = Step("cpu", open_bundle(tiny), {"a": "b"})
    for name, options in (("cpu", {}), ("native", QUIET)):
        found: Mapping[str, Place] = {TARGET: Place(provider(name), Found("x"))}
        placer = Placer(Wish(), print, dict(found))
        assert dict(placer._beside(step).options) == {"a": "b"} | options
    gpu = Place(replace(provider("cpu"), name="cuda", device="gpu"), Found("x"))
    assert Placer(Wish(), print, {TARGET: gpu})._beside(step) == step
    assert Placer(Wish(), print, {})._beside(step) == step
