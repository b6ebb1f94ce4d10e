# ruff: noqa: ARG001, ARG002, ARG005 (stand-ins for protocols take what those take)
"""Every failure of a provider that can be provoked without hardware ends in a line and the next provider.

A missing library, a silent run on the CPU, a compiler that hangs or crashes, a stale cache, wrong numerics, a failure
in the middle of a text: here, through `load`, over the tiny bundle. What is refused before a provider sees it, and what
a part does by itself, is tested beside that part: ELSEWHERE names those tests.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from spec_edge.models.contract import BadUsage, FileFact, SpecError
from spec_edge.runtime import LLM, cli, load, placing, quality
from spec_edge.runtime import manifest as schema
from spec_edge.runtime.bundle import open_bundle, sha256
from spec_edge.runtime.compiling import CompileSettings, compiled
from spec_edge.runtime.providers import cpu
from spec_edge.runtime.providers import provider as providers
from spec_edge.runtime.providers.opening import on_cpu
from spec_edge.runtime.providers.provider import Found, Job, Provider, ProviderFailed, ProviderMissing
from spec_edge.runtime.sessions.static import StaticSession
from spec_edge.targets.target import Provider as Named
from spec_edge.targets.target import Target

ROOT = Path(__file__).resolve().parents[1]
ELSEWHERE = {
    "dynamic dimension, zero points, negative Gather": "export/test_rules.py::test_every_npu_refuses_the_common_traps",
    "known-bad pair at find": "runtime/test_providers_plugin.py::test_known_bad_pairs",
    "known-bad pair in doctor": "runtime/test_doctor.py::test_known_bad_pairs",
    "silent CPU run of ONNX Runtime": "runtime/test_providers_plugin.py::test_nodes_that_went_to_the_cpu",
    "missing compiler library": "runtime/test_providers_openvino.py::test_what_is_missing_is_said",
    "stale cache by driver": "runtime/test_compiling.py::test_another_driver_device_or_version_is_another_artefact",
    "compile hang": "runtime/test_compiling.py::test_a_hang_ends_with_all_that_it_started",
    "compile crash": "runtime/test_compiling.py::test_a_crash_names_its_signal",
    "wrong numerics": "runtime/test_smoke.py::test_a_lie_is_found_out",
    "death at any call": "runtime/test_failover.py::test_the_text_is_an_undisturbed_ones",
    "death of a drafter": "runtime/test_failover_drafting.py::test_a_drafter_that_dies_ends_no_text",
}


@pytest.mark.parametrize("failure", ELSEWHERE)
def test_each_failure_has_its_test(failure: str) -> None:
    file, _, name = ELSEWHERE[failure].partition("::")
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


FAKES = Path(__file__).parent / "fakes" / "compile_child.py"
FOUND = Found("NPU 3720", "32.0.1", {"openvino": "2026.4.1"})
PROMPT, NEW = "hello hello hello", 12


class Opened:
    """A graph on the CPU that passes each run through `after(outputs)`."""

    def __init__(self, job: Job, after: Callable[[Mapping[str, np.ndarray]], None]) -> None:
        self._inner, self._after = cpu.PROVIDER.open(dataclasses.replace(job, artefact=None)), after
        self.placement = {"npu": 15}

    def bind(self, inputs: Any, outputs: Any) -> Callable[[], None]:
        call = self._inner.bind(inputs, outputs)

        def run() -> None:
            call()
            self._after(outputs)

        return run

    def close(self) -> None:
        self._inner.close()


def npu(after: Callable[[Mapping[str, np.ndarray]], None] = lambda outputs: None, **changes: Any) -> Provider:
    """A provider of static graphs, which computes what the CPU does unless `after` says otherwise."""
    base = Provider("npu", "npu", False, "nothing", find=lambda _: FOUND, open=lambda job: Opened(job, after))
    return dataclasses.replace(base, **changes)


def stands_in(name: str, faster: str = "; a bundle made for it is faster") -> str:
    return f"running on {name}, same graph and weights{faster}"


def missing(reason: str) -> Callable[[Mapping[str, str]], Found]:
    def find(_: Mapping[str, str]) -> Found:
        raise ProviderMissing(reason)

    return find


@pytest.fixture(scope="module")
def sound(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny bundle with its own law on a check text as reference."""
    folder = tmp_path_factory.mktemp("sound") / "bundle"
    shutil.copytree(tiny, folder)
    bundle = open_bundle(folder)
    ids = np.random.default_rng(0).integers(0, 200, 60).astype(np.int32)
    session = StaticSession(bundle, on_cpu(bundle, 1))
    law = quality.top_law(np.concatenate([rows.copy() for rows in quality.rows(session, ids)]))
    file = folder / "reference.npz"
    quality.write(quality.Reference(("prose",), np.array([0, 60]), ids, *law), file)
    fact = FileFact(file.name, file.stat().st_size, sha256(file))
    changed = dataclasses.replace(bundle.manifest, reference=fact)
    (folder / "bundle.json").write_bytes(schema.write(changed))
    return folder


Opening = Callable[..., LLM]


@pytest.fixture
def opening(sound: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Opening:
    """load(), where the bundle's target is served by these providers in this order, then by the CPU."""

    def open_(*chain: Provider, asked: Callable[[str], None] = lambda _: None, **options: Any) -> LLM:
        names = [f"{one.name}{i}" for i, one in enumerate(chain)]
        known = {name: dataclasses.replace(one, name=name) for name, one in zip(names, chain, strict=True)}

        def named(name: str) -> Provider:
            if name in known:
                return known[name]
            if name == "cpu":  # the same graphs as the others, so that a text stays the same to the last bit
                return dataclasses.replace(cpu.PROVIDER, fused=False, symbolic=False)
            raise BadUsage(f"unknown provider '{name}'")

        profile = Target("fake", "d", "npu", tuple(Named(name) for name in [*names, "cpu"]), "p", precisions=("fp32",))
        monkeypatch.setattr(providers, "provider", named)
        monkeypatch.setattr(placing, "target", lambda _: profile)
        monkeypatch.setattr(placing, "ask_first", asked)
        return load(sound, threads=1, **options)

    return open_


def text(llm: LLM, **options: Any) -> tuple[int, ...]:
    return llm.generate(PROMPT, chat=False, max_new_tokens=NEW, **options).tokens


@pytest.fixture
def undisturbed(opening: Opening) -> tuple[int, ...]:
    with opening() as llm:
        return text(llm, method="plain")


# Where it cannot be used


def test_a_provider_that_works_says_nothing(opening: Opening, undisturbed: tuple[int, ...]) -> None:
    with opening(npu()) as llm:
        assert llm.provider == "npu0" and text(llm, method="plain") == undisturbed
        assert llm.notes == ()


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (npu(find=missing("no NPU compiler: install libnpu")), "npu0 skipped: no NPU compiler: install libnpu"),
        (npu(find=lambda _: 1 // 0), "npu0 skipped: npu0 cannot be asked what it finds: "),
        (
            npu(open=lambda job: (_ for _ in ()).throw(ProviderFailed(f"npu0: all of {job.graph.name} on the CPU"))),
            "npu0 skipped: all of prefill_16_64 on the CPU",
        ),
    ],
    ids=["missing library", "crash in find", "silent CPU run"],
)
def test_the_next_one_runs(opening: Opening, undisturbed: tuple[int, ...], broken: Provider, said: str) -> None:
    heard: list[str] = []
    with opening(broken, npu(), on_note=heard.append) as llm:
        assert llm.provider == "npu1"
        result = llm.generate(PROMPT, chat=False, max_new_tokens=NEW, method="plain")
        assert result.tokens == undisturbed and result.provider == "npu1"
        assert len(heard) == 2 and heard[0].startswith(said) and heard[1] == stands_in("npu1")
        assert result.notes == llm.notes == tuple(heard)


def test_a_driver_that_crashes_when_it_is_loaded(opening: Opening, undisturbed: tuple[int, ...]) -> None:
    """It is asked in a child process first (test_doctor.py), and is then not loaded here."""

    def asked(name: str) -> None:
        if name == "npu0":
            raise ProviderMissing("it crashed (signal SIGSEGV) when it was asked")

    found = npu(find=lambda _: pytest.fail("loaded"))
    with opening(found, asked=asked) as llm:
        assert llm.notes == ("npu0 skipped: it crashed (signal SIGSEGV) when it was asked", stands_in("cpu"))
        assert text(llm, method="plain") == undisturbed


def test_strict_fails_instead(opening: Opening) -> None:
    with pytest.raises(SpecError, match=r"npu0 cannot be used: no driver; 'spec-edge doctor'") as error:
        opening(npu(find=missing("no driver")), npu(), strict=True)
    assert error.value.exit_code == 1


def test_a_named_one_comes_first_and_the_chain_behind_it(opening: Opening) -> None:
    with opening(npu(), npu(find=missing("no driver")), provider="npu1") as llm:
        assert llm.provider == "npu0" and llm.notes == ("npu1 skipped: no driver", stands_in("npu0", ""))
    with opening(npu(), npu(), provider="npu1") as llm:
        assert llm.provider == "npu1" and not llm.notes


def test_nobody_is_left(opening: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "PROVIDER", dataclasses.replace(cpu.PROVIDER, find=missing("no CPU")))
    with pytest.raises(SpecError, match="no provider is left: npu0 skipped: no driver; cpu skipped: no CPU"):
        opening(npu(find=missing("no driver")))


# Compilers


@pytest.fixture
def compilers(own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real child and cache, over providers that hang, crash and refuse (fakes/compile_child.py)."""
    aside = tmp_path / "graphs"  # a fake writes beside the graph that it is given
    aside.mkdir()

    def in_child(
        job: Job, on: Provider, found: Found, settings: Any = None, progress: Any = None, say: Any = None
    ) -> Any:
        again = settings is not None and settings.again
        command = (sys.executable, str(FAKES))
        job = dataclasses.replace(job, model=Path(shutil.copy(job.model, aside)))
        fake = dataclasses.replace(on, name=on.install)
        return compiled(job, fake, found, CompileSettings(2.5, again=again, command=command), progress, say)

    monkeypatch.setattr(placing, "compiled", in_child)


def never(job: Job, file: Path) -> None:
    raise AssertionError("compiled in the parent")


@pytest.mark.parametrize(
    ("fake", "said"),
    [
        ("sleeps", "did not finish within 2.5 s"),
        ("aborts", "the compiler died on prefill_16_64"),
        ("refuses", "is not for this NPU"),
        ("is_missing", "the compiler library is missing"),
    ],
)
def test_a_compiler_that_fails_is_a_line(
    opening: Opening, compilers: None, undisturbed: tuple[int, ...], fake: str, said: str
) -> None:
    with opening(npu(compile=never, install=fake)) as llm:
        assert llm.provider == "cpu" and text(llm, method="plain") == undisturbed
        *slow, note, other = llm.notes
        assert other == stands_in("cpu")
        assert note.startswith("npu0 skipped: ") and said in note
        assert [line for line in slow if "npu0 compiles prefill_16_64" in line] == slow
    if fake in ("sleeps", "aborts"):  # it is not waited for again
        with opening(npu(compile=never, install=fake)) as llm:
            assert "not tried again for three days" in llm.notes[0]


def test_a_compiled_graph_is_opened(opening: Opening, compilers: None, undisturbed: tuple[int, ...]) -> None:
    artefacts: list[Path | None] = []

    def open_(job: Job) -> Opened:
        artefacts.append(job.artefact)
        return Opened(job, lambda outputs: None)

    with opening(npu(compile=never, install="works", open=open_)) as llm:
        assert llm.provider == "npu0" and text(llm, method="plain") == undisturbed and not llm.notes
    assert artefacts and all(path is not None and path.is_file() for path in artefacts)


def test_a_stale_compiled_graph_is_compiled_again_once(
    opening: Opening, compilers: None, undisturbed: tuple[int, ...]
) -> None:
    """The key names driver and versions; a device that refuses the blob all the same gets a fresh one."""
    opened: list[str] = []

    def open_(job: Job) -> Opened:
        opened.append(job.graph.name)
        if opened.count(job.graph.name) == 1:
            raise ProviderFailed("this blob was serialized with a different version")
        return Opened(job, lambda outputs: None)

    with opening(npu(compile=never, install="works", open=open_)) as llm:
        assert llm.provider == "npu0" and text(llm, method="plain") == undisturbed
        assert "npu0 does not take the compiled prefill_16_64 (this blob was" in llm.notes[0]
        assert llm.notes[0].endswith("it is compiled again")
    assert all(opened.count(name) == 2 for name in opened)


# Numerics


def noise(outputs: Mapping[str, np.ndarray]) -> None:
    outputs["logits"][...] += np.random.default_rng(0).normal(size=outputs["logits"].shape) * 3


def nothing(outputs: Mapping[str, np.ndarray]) -> None:
    outputs["logits"][...] = 0


def nan(outputs: Mapping[str, np.ndarray]) -> None:
    outputs["logits"][..., 5] = np.nan


@pytest.mark.parametrize("lie", [noise, nothing, nan])
def test_a_provider_that_lies_is_disqualified(
    opening: Opening, undisturbed: tuple[int, ...], lie: Callable[[Mapping[str, np.ndarray]], None]
) -> None:
    for said in ("its logits are wrong on the bundle's check text: ", "found before: "):
        with opening(npu(lie)) as llm:
            assert llm.provider == "cpu" and text(llm, method="plain") == undisturbed
            assert len(llm.notes) == 2 and llm.notes[0].startswith("npu0 skipped: its logits are wrong")
            assert said in llm.notes[0] and llm.notes[1] == stands_in("cpu")


def test_the_reference_is_not_looked_at(opening: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing.smoke, "check", lambda *_: pytest.fail("looked at"))
    with opening() as llm:
        assert llm.provider == "cpu"


# In the middle of a text


class Life:
    """Ends after so many runs past the first look."""

    def __init__(self, runs: int, reason: str = "the driver was reset") -> None:
        self.left, self.reason = runs, reason

    def __call__(self, outputs: Mapping[str, np.ndarray]) -> None:
        self.left -= 1
        if self.left < 0:
            raise ProviderFailed(self.reason)


def runs_of_a_look(opening: Opening) -> int:
    """How many runs the look at a provider takes."""
    life = Life(10**6)
    with opening(npu(life)):
        return 10**6 - life.left


@pytest.mark.parametrize("method", ["plain", "suffix", "lookahead", "auto"])
@pytest.mark.parametrize("after", [0, 1, 5])
def test_a_text_goes_on_unbroken(
    opening: Opening, undisturbed: tuple[int, ...], own_cache: Path, method: str, after: int
) -> None:
    """The look's result is kept, so the second opening takes no run of it: the device dies in the text."""
    runs_of_a_look(opening)
    heard: list[str] = []
    with opening(npu(Life(after)), on_note=heard.append) as llm:
        result = llm.generate(PROMPT, chat=False, max_new_tokens=NEW, method=method)
        assert result.tokens == undisturbed and result.finish_reason in ("length", "stop")
        assert (result.provider, llm.provider) == ("cpu", "cpu")
        assert len(heard) == 1 and heard[0].startswith("npu0 failed at token ")
        assert heard[0].endswith("(the driver was reset); continuing on cpu, same graph and weights")
        assert text(llm, method=method) == undisturbed and len(llm.notes) == 1


def test_a_lost_device_is_opened_again(opening: Opening, undisturbed: tuple[int, ...]) -> None:
    runs_of_a_look(opening)
    lives = iter([Life(4, "ZE_RESULT_ERROR_DEVICE_LOST"), *[Life(10**6)] * 20])
    held = [next(lives)]

    def find(_: Mapping[str, str]) -> Found:
        held[0] = next(lives) if held[0].left < 0 else held[0]
        return FOUND

    with opening(npu(lambda outputs: held[0](outputs), find=find)) as llm:
        assert text(llm, method="plain") == undisturbed and llm.provider == "npu0"
        assert llm.notes == ("npu0 failed at token 17 (ZE_RESULT_ERROR_DEVICE_LOST); opened again",) or llm.notes[
            0
        ].endswith("opened again")


def test_strict_ends_the_text_with_what_there_is(opening: Opening, undisturbed: tuple[int, ...]) -> None:
    runs_of_a_look(opening)
    with opening(npu(Life(4)), strict=True) as llm:
        stream = llm.stream(PROMPT, chat=False, max_new_tokens=NEW, method="plain")
        with pytest.raises(SpecError, match=r"npu0 failed at token .*the driver was reset"):
            for _ in stream:
                pass
        got = stream.result.tokens
        assert got == undisturbed[: len(got)]


# What the user sees


def test_the_command_says_it(opening: Opening, sound: Path) -> None:
    with opening(npu(find=missing("no driver"))):
        pass  # the stand-ins stay
    args = [
        "run",
        "-m",
        str(sound),
        "--threads",
        "1",
        "--no-chat",
        "--max-new-tokens",
        "4",
        "--method",
        "plain",
        "hello",
    ]
    result = CliRunner().invoke(cli.main, args)
    assert result.exit_code == 0 and result.stderr == f"note: npu0 skipped: no driver\nnote: {stands_in('cpu')}\n"
    told = json.loads(CliRunner().invoke(cli.main, [*args, "--json"]).stdout)
    assert told["notes"] == ["npu0 skipped: no driver", stands_in("cpu")] and told["provider"] == "cpu"
    assert {row["provider"] for row in told["placement"]} == {"cpu"}
    result = CliRunner().invoke(cli.main, [*args, "--strict"])
    assert result.exit_code == 1 and result.stdout == ""
    assert result.stderr == "Error: npu0 cannot be used: no driver; 'spec-edge doctor' says what there is here\n"


def test_placement_counts_what_is_where(opening: Opening) -> None:
    with opening(npu()) as llm:
        text(llm, method="plain")
        rows = llm.placement()
        assert len(rows) >= 2 and {row.provider for row in rows} == {"npu0"}
        verify = next(row for row in rows if row.width == 1)
        assert verify.nodes == {"npu": 15} and verify.operations["npu0"] > 0


def test_a_fallback_bundle_is_another_models_text(
    opening: Opening, sound: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bundle = open_bundle(sound)
    weights = dataclasses.replace(bundle.manifest.weights, sha256="1" * 64)
    beside = dataclasses.replace(bundle, manifest=dataclasses.replace(bundle.manifest, weights=weights, target="cpu"))
    monkeypatch.setattr(placing, "fallback", lambda found: beside if found.digest == bundle.digest else None)
    with opening(npu()):
        pass
    own, other = placing.target, Target("cpu", "d", "cpu", (Named("cpu"),), "p", precisions=("fp32",))
    monkeypatch.setattr(placing, "target", lambda name: own(name) if beside is None or name != "cpu" else other)
    changed = dataclasses.replace(bundle, manifest=dataclasses.replace(bundle.manifest, target="fake"))
    chain = placing.steps(changed, placing.Wish())
    assert [(step.name, step.bundle is beside) for step in chain] == [("npu0", False), ("cpu", True), ("cpu", False)]


def test_what_was_skipped_limits_nothing(opening: Opening) -> None:
    with opening(npu()) as llm:
        assert (llm.session.capacity, llm.session.max_width) == (128, 8)  # the static graphs' own
    with opening(npu(find=missing("no driver")), dataclasses.replace(cpu.PROVIDER, device="gpu")) as llm:
        assert (llm.session.capacity, llm.session.max_width) == (128, 8)  # the CPU behind it has static graphs here
    wide = dataclasses.replace(cpu.PROVIDER, device="gpu")
    with opening(npu(find=missing("no driver")), wide, provider="cpu1", strict=True) as llm:
        assert (llm.session.capacity, llm.session.max_width) == (1024, 64)


@pytest.mark.parametrize(
    ("options", "heads", "draft"),
    [
        ({}, ("auto", 1), ("auto", None)),
        ({"provider": "cpu"}, ("cpu", 1), ("auto", None)),
        ({"draft_provider": "npu0", "draft_threads": 2, "strict": True}, ("npu0", 2), ("npu0", 2)),
    ],
)
def test_what_drafts_has_a_chain_of_its_own(
    opening: Opening, monkeypatch: pytest.MonkeyPatch, options: Any, heads: Any, draft: Any
) -> None:
    made: list[placing.Wish] = []
    placer = placing.Placer.__init__

    def noting(self: placing.Placer, wish: placing.Wish, *rest: Any) -> None:
        made.append(wish)
        placer(self, wish, *rest)

    monkeypatch.setattr(placing.Placer, "__init__", noting)
    with opening(npu(), **options):
        pass
    strict = options.get("strict", False)
    assert made[1:] == [placing.Wish(name, strict, threads) for name, threads in (heads, draft)]


def test_a_bundle_of_a_target_that_refuses(sound: Path) -> None:
    bundle = open_bundle(sound)
    odd = dataclasses.replace(bundle, manifest=dataclasses.replace(bundle.manifest, target="ryzen-ai-xdna1"))
    with pytest.raises(SpecError, match="target runs nothing: AMD supports neither"):
        placing.steps(odd, placing.Wish())


def test_a_bundle_of_a_target_that_nobody_knows(sound: Path) -> None:
    """The bundle is at fault, not the call."""
    bundle = open_bundle(sound)
    odd = dataclasses.replace(bundle, manifest=dataclasses.replace(bundle.manifest, target="moon-lake"))
    with pytest.raises(SpecError, match="is for target 'moon-lake', which this version of spec-edge does") as caught:
        placing.steps(odd, placing.Wish())
    assert caught.value.exit_code == 1


def test_sequences(opening: Opening) -> None:
    """Several texts, a device that dies in the second: each is what it would have been."""
    prompts: Sequence[str] = ("one two one two", "three", PROMPT)
    with opening() as llm:
        whole = [llm.generate(p, chat=False, max_new_tokens=6).tokens for p in prompts]
    runs_of_a_look(opening)
    with opening(npu(Life(12))) as llm:
        assert [llm.generate(p, chat=False, max_new_tokens=6).tokens for p in prompts] == whole
        assert llm.provider == "cpu" and len(llm.notes) == 1
