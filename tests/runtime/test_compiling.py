"""Compilers that work, hang, crash, lie and run out of room; the cache of what they made."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from spec_edge.models.contract import BadUsage, FileFact, GraphSpec, TensorSpec
from spec_edge.runtime import cli, compile_child, compiled_store, compiling, placing
from spec_edge.runtime.compiling import CompileSettings, compiled
from spec_edge.runtime.providers.provider import Found, Job, Provider, ProviderFailed, ProviderMissing

FAKES = Path(__file__).parent / "fakes" / "compile_child.py"
FOUND = Found("NPU 3720", driver="32.0.1", versions={"openvino": "2026.4.1"})


def _never(job: Job, file: Path) -> None:
    raise AssertionError(f"{job} was compiled into {file} in the parent")


def fake(name: str) -> Provider:
    return Provider(name, "npu", False, "", find=lambda _o: FOUND, open=None, compile=_never)  # type: ignore[arg-type]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    model = tmp_path / "bundle" / "verify.onnx"
    model.parent.mkdir()
    model.write_bytes(b"a graph")
    fact = FileFact("verify.onnx", 7, "1" * 64)
    inputs = (TensorSpec("input_ids", "int32", (1, 8)), TensorSpec("past_key.0", "float16", (1, 3, "P", 64)))
    graph = GraphSpec("verify-s8", "target", "verify", "portable", 8, 128, inputs, (), fact, ("lm_head",))
    return Job(model, graph, FileFact("weights.bin", 3, "2" * 64), options={"NPU_TURBO": "NO"})


@pytest.fixture
def settings(tmp_path: Path) -> CompileSettings:
    return CompileSettings(60, folder=tmp_path / "cache", command=(sys.executable, str(FAKES)))


def with_options(job: Job, **options: str) -> Job:
    return dataclasses.replace(job, options={**job.options, **options})


def runs(folder: Path) -> int:
    return len(list(folder.iterdir()))


def no_leftovers(settings: CompileSettings) -> bool:
    assert settings.folder is not None
    return not [p for p in settings.folder.iterdir() if p.name.startswith(compiled_store.PARTIAL)]


@pytest.fixture
def counted(job: Job, tmp_path: Path) -> tuple[Job, Path]:
    folder = tmp_path / "counts"
    folder.mkdir()
    return with_options(job, counts=str(folder)), folder


# What works


def test_an_artefact_is_made_in_a_child_and_kept(counted: tuple[Job, Path], settings: CompileSettings) -> None:
    job, counts = counted
    said: list[str] = []
    artefact = compiled(job, fake("works"), FOUND, settings, say=said.append)
    assert artefact is not None
    assert artefact.read_bytes() == b"compiled:a graph" + repr(job).encode()  # the job arrived whole
    assert (artefact.parent / "weights.part").is_file()
    assert compiled(job, fake("works"), FOUND, settings, say=said.append) == artefact
    assert (runs(counts), said) == (1, [])
    assert str(os.getpid()) not in [p.name for p in counts.iterdir()]
    assert no_leftovers(settings)
    if os.name != "nt":
        assert artefact.parent.parent.stat().st_mode & 0o777 == 0o700


def test_a_provider_that_compiles_nothing_gives_none(job: Job, settings: CompileSettings) -> None:
    assert compiled(job, dataclasses.replace(fake("works"), compile=None), FOUND, settings) is None


def test_the_entries_say_what_was_made(job: Job, settings: CompileSettings) -> None:
    artefact = compiled(with_options(job, bytes="1000"), fake("works"), FOUND, settings)
    assert artefact is not None
    (entry,) = compiled_store.entries(settings.folder)
    assert entry.path == artefact
    assert entry.bytes == artefact.stat().st_size + 1000
    assert (entry.made.provider, entry.made.device, entry.made.graph) == ("works", "NPU 3720", "verify-s8")
    assert (entry.made.graph_sha256, entry.made.weights_sha256) == ("1" * 64, "2" * 64)
    if sys.platform == "linux":
        assert entry.made.peak_bytes is not None and entry.made.peak_bytes > 1_000_000


@pytest.mark.parametrize(
    "found",
    [
        dataclasses.replace(FOUND, driver="32.0.2"),
        dataclasses.replace(FOUND, device="NPU 4000"),
        dataclasses.replace(FOUND, versions={"openvino": "2026.4.2"}),
    ],
)
def test_another_driver_device_or_version_is_another_artefact(
    counted: tuple[Job, Path], settings: CompileSettings, found: Found
) -> None:
    job, counts = counted
    first = compiled(job, fake("works"), FOUND, settings)
    assert compiled(job, fake("works"), found, settings) != first
    assert runs(counts) == 2


def test_the_key_holds_graph_weights_options_name_and_system(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = dataclasses.replace(job.graph, file=FileFact("verify.onnx", 7, "3" * 64))
    jobs = [
        job,
        dataclasses.replace(job, graph=graph),
        dataclasses.replace(job, weights=FileFact("weights.bin", 3, "4" * 64)),
        with_options(job, NPU_TURBO="YES"),
    ]
    keys = {compiled_store.cache_key(j, fake("works"), FOUND) for j in jobs}
    keys.add(compiled_store.cache_key(job, fake("other"), FOUND))
    monkeypatch.setattr("platform.version", lambda: "another build")
    keys.add(compiled_store.cache_key(job, fake("works"), FOUND))
    assert len(keys) == 6
    moved = dataclasses.replace(job, model=job.model.parent / "elsewhere.onnx", threads=3)
    assert compiled_store.cache_key(moved, fake("works"), FOUND) in keys


def test_progress_says_which_graph_and_how_long(job: Job, settings: CompileSettings) -> None:
    seen: list[tuple[str, float]] = []
    compiled(with_options(job, seconds="1"), fake("works"), FOUND, settings, lambda g, s: seen.append((g, s)))
    assert {graph for graph, _ in seen} == {"verify-s8"}
    assert [s for _, s in seen] == sorted(s for _, s in seen) and seen[-1][1] > 0


def test_a_compiler_that_crashes_after_its_work_has_worked(job: Job, settings: CompileSettings) -> None:
    assert compiled(job, fake("dies_when_unloaded"), FOUND, settings) is not None


def test_the_artefact_is_run_once_in_the_child(job: Job, settings: CompileSettings) -> None:
    ran = job.model.parent / "ran"
    job = with_options(job, ran=str(ran))
    compiled(job, fake("works"), FOUND, dataclasses.replace(settings, tried=False))
    assert not ran.exists()
    compiled(job, fake("works"), FOUND, dataclasses.replace(settings, again=True))
    assert ran.read_text() == "{'input_ids': ('int32', (1, 8)), 'past_key.0': ('float16', (1, 3, 1, 64))}"


def test_a_graph_without_a_compiled_form_is_opened_in_a_child_first(
    counted: tuple[Job, Path], settings: CompileSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for this driver; where the child dies of it, the app never opens it. It needs no room on the disk."""
    job, counts = counted
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: SimpleNamespace(free=1))
    ran = job.model.parent / "ran"
    opens = dataclasses.replace(fake("opens"), keeps=False)
    for _ in range(2):
        assert compiled(with_options(job, ran=str(ran)), opens, FOUND, settings) is not None
    assert runs(counts) == 1 and "input_ids" in ran.read_text()
    refuses = dataclasses.replace(fake("opens_and_fails_when_run"), keeps=False)
    for _ in range(2):  # the device may have been full, or reset: that is asked anew
        with pytest.raises(ProviderFailed, match=r"it does not run: the driver was reset$"):
            compiled(job, refuses, FOUND, settings)
    dies = dataclasses.replace(fake("opens_and_dies_when_run"), keeps=False)
    for said in ("died on verify-s8", "--recompile"):
        with pytest.raises(ProviderFailed, match=said):
            compiled(job, dies, FOUND, settings)


@pytest.mark.parametrize("keeps", [True, False])
def test_only_a_compiled_graph_is_opened_instead(job: Job, monkeypatch: pytest.MonkeyPatch, keeps: bool) -> None:
    made, opened = job.model.parent / "artefact", list[Job]()
    monkeypatch.setattr(placing, "compiled", lambda *_args, **_options: made)
    on = dataclasses.replace(fake("opens"), keeps=keeps, open=opened.append)  # type: ignore[arg-type]
    placing.open_compiled(on, job, FOUND, print)
    assert opened == [dataclasses.replace(job, artefact=made if keeps else None)]


def test_a_frozen_app_opens_such_a_graph_itself(
    job: Job, settings: CompileSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    opens = dataclasses.replace(fake("opens"), keeps=False)
    assert compiled(job, opens, FOUND, dataclasses.replace(settings, command=())) is None


# What fails


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("aborts", ("died on verify-s8", "LLVM ERROR: StopLocationVerifierPass")),
        ("reads_nowhere", ("died on verify-s8",)),
        ("leaves", ("died on verify-s8 (exit code 3)",)),
        ("lies", ("wrote nothing",)),
        ("refuses", ("verify-s8 was not compiled: node /layers.0/Reshape of verify-s8 is not for this NPU",)),
        ("fills_the_disk", ("No space left on device",)),
        ("unknown", ("no fake is called unknown",)),
        ("dies_when_run", ("died on verify-s8",)),
        ("fails_when_run", ("it compiles, and then does not run: the driver was reset",)),
    ],
)
def test_a_failure_is_one_line(job: Job, settings: CompileSettings, name: str, words: tuple[str, ...]) -> None:
    with pytest.raises(ProviderFailed) as failed:
        compiled(job, fake(name), FOUND, settings)
    assert all(word in failed.value.message for word in words), failed.value.message
    assert failed.value.message.startswith(f"{name}: ") and "\n" not in failed.value.message
    assert no_leftovers(settings)
    assert compiled_store.entries(settings.folder) == ()


@pytest.mark.usefixtures("ends_by_signal")
@pytest.mark.parametrize(
    ("name", "signal_name"), [("aborts", "SIGABRT"), ("reads_nowhere", "SIGSEGV"), ("dies_when_run", "SIGABRT")]
)
def test_a_crash_names_its_signal(job: Job, settings: CompileSettings, name: str, signal_name: str) -> None:
    with pytest.raises(ProviderFailed, match=f"signal {signal_name}"):
        compiled(job, fake(name), FOUND, settings)


def test_exit_codes_in_words() -> None:
    assert compiling.exit_words(0xC0000005) == "exit code 0xC0000005, access violation"
    assert compiling.exit_words(7) == "exit code 7"
    if os.name != "nt":
        assert compiling.exit_words(-9) == "signal SIGKILL"
        assert compiling.exit_words(-200) == "signal 200"


def test_what_is_missing_is_no_failure_of_the_graph(job: Job, settings: CompileSettings) -> None:
    with pytest.raises(ProviderMissing, match="pip install it"):
        compiled(job, fake("is_missing"), FOUND, settings)
    with pytest.raises(ProviderMissing):  # not remembered
        compiled(job, fake("is_missing"), FOUND, settings)


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


tells_processes = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(),
    reason="no /proc here, which tells whether a process is gone",
)


def _gone(processes: Path) -> bool:
    """Whether the hung compiler and its child end."""
    pids = [int(pid) for pid in processes.read_text().split()]
    for _ in range(200):
        if not any(_alive(pid) for pid in pids):
            return True
        time.sleep(0.05)
    return False


@tells_processes
def test_a_hang_ends_with_all_that_it_started(job: Job, settings: CompileSettings) -> None:
    with pytest.raises(ProviderFailed, match=r"sleeps: compiling verify-s8 did not finish within 3 s$"):
        compiled(job, fake("sleeps"), FOUND, dataclasses.replace(settings, timeout_s=3))
    assert _gone(job.model.parent / "processes")
    assert no_leftovers(settings)


@tells_processes
def test_ctrl_c_ends_the_compiler(job: Job, settings: CompileSettings) -> None:
    processes = job.model.parent / "processes"

    def interrupt(_graph: str, _seconds: float) -> None:
        if processes.is_file() and len(processes.read_text().split()) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compiled(job, fake("sleeps"), FOUND, settings, interrupt)
    assert _gone(processes)
    assert no_leftovers(settings)


PARENT = """
import sys
from pathlib import Path
from spec_edge.models.contract import FileFact, GraphSpec
from spec_edge.runtime.compiling import CompileSettings, compiled
from spec_edge.runtime.providers.provider import Found, Job, Provider
name, model, cache, fakes, counts = sys.argv[1:]
graph = GraphSpec("verify-s8", "target", "verify", "portable", 8, 128, (), (), FileFact("verify.onnx", 7, "1" * 64))
job = Job(Path(model), graph, FileFact("weights.bin", 3, "2" * 64), options={"counts": counts, "together": "2"})
provider = Provider(name, "npu", False, "", None, None, lambda job, file: None)
print(compiled(job, provider, Found("NPU"), CompileSettings(folder=Path(cache), command=(sys.executable, fakes))))
"""


def _parent(name: str, job: Job, cache: Path, counts: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PARENT, name, str(job.model), str(cache), str(FAKES), str(counts)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@tells_processes
@pytest.mark.parametrize("how", [signal.SIGTERM, 9])
def test_the_compiler_ends_with_its_parent(job: Job, tmp_path: Path, how: int) -> None:
    processes = job.model.parent / "processes"
    parent = _parent("sleeps", job, tmp_path / "cache", tmp_path)
    while not (processes.is_file() and len(processes.read_text().split()) == 2):
        assert parent.poll() is None
        time.sleep(0.05)
    parent.send_signal(how)
    parent.communicate()
    assert _gone(processes)


def test_two_processes_at_once_make_one_entry(counted: tuple[Job, Path], tmp_path: Path) -> None:
    job, counts = counted
    parents = [_parent("works", job, tmp_path / "cache", counts) for _ in range(2)]
    answers = [parent.communicate() for parent in parents]
    assert answers[0][0].strip() and answers[0] == answers[1], answers
    assert Path(answers[0][0].strip()).is_file()
    assert len(compiled_store.entries(tmp_path / "cache")) == 1
    assert runs(counts) == 2  # so they did compile at the same time
    assert len(list((tmp_path / "cache").iterdir())) == 1


# What is remembered


@pytest.mark.parametrize("name", ["aborts", "refuses"])
def test_a_failure_is_not_tried_again_until_asked(
    job: Job, settings: CompileSettings, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ProviderFailed) as first:
        compiled(job, fake(name), FOUND, settings)
    tries = []
    real = compiling._start
    monkeypatch.setattr(compiling, "_start", lambda *args: tries.append(args) or real(*args))
    with pytest.raises(ProviderFailed, match="--recompile forgets it") as second:
        compiled(job, fake(name), FOUND, settings)
    assert second.value.message.startswith(first.value.message) and not tries
    with pytest.raises(ProviderFailed):  # another driver is another matter
        compiled(job, fake(name), dataclasses.replace(FOUND, driver="33"), settings)
    with pytest.raises(ProviderFailed):
        compiled(job, fake(name), FOUND, dataclasses.replace(settings, again=True))
    assert len(tries) == 2
    assert compiled_store.clear(settings.folder, failures_only=True) == 2
    with pytest.raises(ProviderFailed):
        compiled(job, fake(name), FOUND, settings)
    assert len(tries) == 3


def test_a_failure_expires(job: Job, settings: CompileSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = settings.folder
    assert folder is not None
    with pytest.raises(ProviderFailed):
        compiled(job, fake("leaves"), FOUND, settings)
    key = compiled_store.cache_key(job, fake("leaves"), FOUND)
    now = time.time()
    assert compiled_store.failure(folder, key) is not None
    for other in (now + compiled_store.FAILED_S + 60, now - 3600):  # later, and a clock that was set back
        monkeypatch.setattr(time, "time", lambda other=other: other)
        assert compiled_store.failure(folder, key) is None


def test_more_time_is_another_try(job: Job, settings: CompileSettings) -> None:
    folder = settings.folder
    assert folder is not None
    folder.mkdir(mode=0o700)
    key = compiled_store.cache_key(job, fake("works"), FOUND)
    compiled_store.remember(folder, key, "works: compiling verify-s8 did not finish within 10 s", 10.0)
    with pytest.raises(ProviderFailed, match="within 10 s"):
        compiled(job, fake("works"), FOUND, dataclasses.replace(settings, timeout_s=10))
    assert compiled(job, fake("works"), FOUND, settings) is not None


def test_a_full_disk_is_not_remembered(job: Job, settings: CompileSettings) -> None:
    for _ in range(2):
        with pytest.raises(ProviderFailed) as failed:
            compiled(job, fake("fills_the_disk"), FOUND, settings)
        assert "--recompile" not in failed.value.message


@pytest.mark.parametrize("text", ["", "[]", '{"what": 1}', '{"what": "x", "when": "y", "timeout_s": null}'])
def test_a_failure_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / f"k{compiled_store.FAILED}").write_text(text)
    assert compiled_store.failure(tmp_path, "k") is None


# What is damaged, full or not ours


def _damage(place: Path, how: str) -> None:
    artefact, entry = place / compiled_store.ARTEFACT, place / compiled_store.ENTRY
    changed = bytearray(artefact.read_bytes())
    changed[0] ^= 1
    actions: Mapping[str, tuple[Path, bytes]] = {
        "cut": (artefact, artefact.read_bytes()[:-1]),
        "changed": (artefact, bytes(changed)),
        "other file": (place / "weights.part", b""),
        "no entry": (entry, b""),
        "an entry of another kind": (entry, b'{"files": []}'),
        "a path out of it": (entry, json.dumps({"files": {"../x": {"bytes": 0, "sha256": ""}}}).encode()),
        "nothing vouched for": (entry, b'{"files": {}}'),
    }
    path, content = actions[how]
    path.write_bytes(content)


@pytest.mark.parametrize(
    "how",
    ["cut", "changed", "other file", "no entry", "an entry of another kind", "a path out of it", "nothing vouched for"],
)
def test_a_damaged_artefact_is_compiled_again(counted: tuple[Job, Path], settings: CompileSettings, how: str) -> None:
    job, counts = counted
    said: list[str] = []
    artefact = compiled(job, fake("works"), FOUND, settings)
    assert artefact is not None
    whole = artefact.read_bytes()
    _damage(artefact.parent, how)
    assert compiled(job, fake("works"), FOUND, settings, say=said.append) == artefact
    assert artefact.read_bytes() == whole
    assert len(said) == 1 and "is damaged; it is compiled again" in said[0]
    assert runs(counts) == 2


def _works_for_this_run(job: Job, settings: CompileSettings, said: list[str]) -> Path:
    artefact = compiled(job, fake("works"), FOUND, settings, say=said.append)
    assert artefact is not None and artefact.read_bytes().startswith(b"compiled:")
    assert len(said) == 1 and "last" in said[0] and "for this run only" in said[0], said
    assert (settings.folder or Path()) / compiled_store.cache_key(job, fake("works"), FOUND) not in artefact.parents
    return artefact


def test_a_cache_that_cannot_be_made(job: Job, settings: CompileSettings, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    settings = dataclasses.replace(settings, folder=tmp_path / "file" / "cache")
    artefact = _works_for_this_run(job, settings, [])
    compiled_store.discard(artefact.parent)


@pytest.mark.usefixtures("keeps_modes")
def test_a_cache_that_others_may_write_is_not_used(job: Job, settings: CompileSettings) -> None:
    first = compiled(job, fake("works"), FOUND, settings)
    assert first is not None
    first.parent.parent.chmod(0o777)
    said: list[str] = []
    artefact = _works_for_this_run(job, settings, said)
    assert "another user may write there" in said[0] and artefact != first
    compiled_store.discard(artefact.parent)


def test_a_disk_that_is_full_when_it_is_kept(
    job: Job, settings: CompileSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_self: Path, *_args: object, **_options: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        said: list[str] = []
        artefact = _works_for_this_run(job, settings, said)
        assert "No space left on device" in said[0]
    compiled_store.discard(artefact.parent)
    assert compiled_store.entries(settings.folder) == ()


def test_a_disk_without_room_for_a_graph(job: Job, settings: CompileSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiled graph carries the weights; the temporary folder may lie on another disk."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: SimpleNamespace(free=job.weights.bytes - 1))
    said: list[str] = []
    artefact = _works_for_this_run(job, settings, said)
    assert "MB are free, and a graph may take" in said[0]
    compiled_store.discard(artefact.parent)
    assert compiled_store.entries(settings.folder) == ()


def test_nowhere_to_write(job: Job, settings: CompileSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object, **_options: object) -> str:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    with pytest.raises(ProviderFailed, match=r"nowhere to write a compiled graph \(Read-only file system\)"):
        compiled(job, fake("works"), FOUND, settings, say=lambda _line: None)


# Its size


def _aged(job: Job, settings: CompileSettings, name: str, age: float) -> Path:
    artefact = compiled(with_options(job, bytes="1000", which=name), fake("works"), FOUND, settings)
    assert artefact is not None
    os.utime(artefact.parent / compiled_store.ENTRY, (time.time() - age,) * 2)
    return artefact


def test_what_was_used_longest_ago_goes_first(job: Job, settings: CompileSettings) -> None:
    old, older, lately = (_aged(job, settings, n, age) for n, age in (("a", 5000), ("b", 9000), ("c", 10)))
    total = sum(entry.bytes for entry in compiled_store.entries(settings.folder))
    assert [e.path for e in compiled_store.entries(settings.folder)] == [lately, old, older]
    assert compiled_store.trim(settings.folder or Path(), total) == 0
    assert compiled_store.trim(settings.folder or Path(), total - 1) > 1000
    assert [p.exists() for p in (old, older, lately)] == [True, False, True]
    settings = dataclasses.replace(settings, most_bytes=0)
    new = _aged(job, settings, "d", 0)
    assert [p.exists() for p in (old, lately, new)] == [False, True, True]  # `lately` may be about to be opened


def test_use_makes_an_entry_young(job: Job, settings: CompileSettings) -> None:
    old, other = _aged(job, settings, "a", 9000), _aged(job, settings, "b", 5000)
    assert compiled(with_options(job, bytes="1000", which="a"), fake("works"), FOUND, settings) == old
    compiled_store.trim(settings.folder or Path(), 0)
    assert [p.exists() for p in (old, other)] == [True, False]


def test_clear_empties_it(job: Job, settings: CompileSettings) -> None:
    _aged(job, settings, "a", 0)
    with pytest.raises(ProviderFailed):
        compiled(job, fake("leaves"), FOUND, settings)
    assert compiled_store.clear(settings.folder, failures_only=True) == 1
    assert compiled_store.clear(settings.folder) == 1
    assert list((settings.folder or Path()).iterdir()) == []
    assert compiled_store.clear(Path("no such folder")) == 0


@pytest.mark.usefixtures("own_cache")
def test_doctor_forgets(job: Job, settings: CompileSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ProviderFailed):
        compiled(job, fake("leaves"), FOUND, settings)
    _aged(job, settings, "a", 0)
    monkeypatch.setenv("SPEC_EDGE_COMPILED", str(settings.folder))
    monkeypatch.setattr("spec_edge.runtime.doctor.examine", lambda _bundle: None)
    monkeypatch.setattr("spec_edge.runtime.doctor_text.text", lambda _report: "examined")
    done = CliRunner().invoke(cli.main, ["doctor", "--recompile"])
    assert (
        done.exit_code == 0
        and "2 compiled graphs and failures are forgotten" in done.output
        and "examined" in done.output
    )
    assert compiled_store.entries(settings.folder) == ()
    with pytest.raises(ProviderFailed, match=r"exit code 3\)$"):
        compiled(job, fake("leaves"), FOUND, settings)


def test_leftovers_of_killed_processes_are_swept(job: Job, settings: CompileSettings) -> None:
    folder = settings.folder
    assert folder is not None
    _aged(job, settings, "a", 0)
    stale, young = folder / ".partial-stale", folder / ".partial-young"
    for path in (stale, young):
        path.mkdir()
        (path / "artefact").write_bytes(b"half")
    old, new = folder / f"a{compiled_store.FAILED}", folder / f"b{compiled_store.FAILED}"
    old.touch()
    new.touch()
    os.utime(stale, (0, 0))
    os.utime(old, (0, 0))
    _aged(job, settings, "b", 0)
    assert [p.exists() for p in (stale, young, old, new)] == [False, True, False, True]


# Settings


def test_settings_from_the_environment() -> None:
    made = compiling.settings_from({"SPEC_EDGE_COMPILE_S": "12.5", "SPEC_EDGE_COMPILED_GB": "0.5"}, again=True)
    assert (made.timeout_s, made.most_bytes, made.again) == (12.5, 500_000_000, True)
    assert compiling.settings_from({}) == CompileSettings()
    for name in ("SPEC_EDGE_COMPILE_S", "SPEC_EDGE_COMPILED_GB"):
        for text in ("x", "-1", "nan", "inf"):
            with pytest.raises(BadUsage, match=name):
                compiling.settings_from({name: text})
    with pytest.raises(BadUsage):
        compiling.settings_from({"SPEC_EDGE_COMPILE_S": "0"})
    with pytest.raises(BadUsage, match="SPEC_EDGE_COMPILE_S is 0"):
        compiling.settings_from({"SPEC_EDGE_COMPILE_S": "0.0"})


def test_the_folder_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPEC_EDGE_COMPILED", str(tmp_path))
    assert compiled_store.store_folder() == tmp_path
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPEC_EDGE_COMPILED", "kept")  # the child that compiles works in another folder
    assert compiled_store.store_folder() == tmp_path / "kept"
    monkeypatch.delenv("SPEC_EDGE_COMPILED")
    assert compiled_store.store_folder().name == "compiled"


def test_a_frozen_app_is_not_started_as_if_it_were_python(
    job: Job, settings: CompileSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(ProviderFailed, match=r"CompileSettings\(command=\.\.\.\)"):
        compiled(job, fake("works"), FOUND, dataclasses.replace(settings, command=()))
    assert compiled(job, fake("works"), FOUND, settings) is not None


def test_the_real_child_knows_the_real_providers_only(job: Job, settings: CompileSettings) -> None:
    with pytest.raises(ProviderFailed, match="unknown provider 'works'"):
        compiled(job, fake("works"), FOUND, dataclasses.replace(settings, command=()))


def test_a_command_that_is_not_there(job: Job, settings: CompileSettings) -> None:
    with pytest.raises(ProviderFailed, match="cannot start /no/such/program"):
        compiled(job, fake("works"), FOUND, dataclasses.replace(settings, command=("/no/such/program",)))


def test_a_request_survives_the_journey(job: Job, tmp_path: Path) -> None:
    asked = json.loads(compile_child.request(job, "qnn", Path("a"), tmp_path / "b", True))
    assert Path(asked["file"]).is_absolute()
    assert compile_child._job(asked) == job
