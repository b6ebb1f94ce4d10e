"""Peers in child processes: what they say, what they print, how they end, and what is not there."""

from __future__ import annotations

import ast
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from spec_edge.models.contract import BadUsage
from spec_edge.models.plugins import known
from spec_edge.runtime.bench import fidelity, memory, peer
from spec_edge.runtime.bench.fresh import fresh
from spec_edge.runtime.bench.process import Child, NotInstalled
from spec_edge.runtime.bench.runs import Failed, Item
from spec_edge.runtime.bench.settings import Settings
from spec_edge.runtime.bench.show import Progress
from spec_edge.runtime.bench.weights import Source, Weights

ADAPTER = """
import os, sys, time
PACKAGE = "a_program_that_is_nowhere"
BESIDE = ("a_library_that_is_nowhere",)
PIP = "nothing"
METHODS = ("plain", "draft")
PRECISIONS = ("int4", "fp32")
DEFAULTS = ("int4",)
NEEDS = {"int4": "hf", "fp32": "gguf"}

def version():
    if os.environ.get("FAKE") == "absent":
        import a_program_that_is_nowhere
    if os.environ.get("FAKE") == "alone":
        import a_library_that_is_nowhere
    if os.environ.get("FAKE") == "broken":
        import another_that_is_nowhere
    return "1.0"

def settings(method):
    return {"of": method}

def convert(source, folder, precision):
    os.mkdir(folder)
    if os.environ.get("FAKE") == "no conversion":
        raise RuntimeError("no memory\\nfor this")
    open(os.path.join(folder, "model"), "w").write(source + precision)

def open_model(model, draft, threads, precision, methods):
    print("a library says hello")
    os.write(1, b"so does a native one\\n")
    if draft and os.environ.get("FAKE") == "no draft":
        raise RuntimeError("cannot read this draft")
    return [model, draft, threads, precision, methods]

def generate(state, method, ids, new_tokens):
    if method == "crash":
        print("out of luck", file=sys.stderr)
        sys.stderr.flush()
        os._exit(3)
    if method == "silent":
        time.sleep(60)
    if method == "wrong":
        return [1, 2], [(0.1, 1)], None
    if method == "raise":
        raise ValueError("first line\\nsecond line")
    return ids[:new_tokens], [[0.1, 1], [0.2, new_tokens - 1]], 1

def logits(state, ids):
    if len(ids) == 1:
        return None
    import numpy as np
    if len(ids) == 2:
        return np.array([[len(state[4]), state[1] is None]] * 2, np.float64)
    return np.arange(len(ids) * 6, dtype=np.float64).reshape(len(ids), 6)
"""


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    path = tmp_path / "fake_peer.py"
    path.write_text(ADAPTER, encoding="utf-8")
    return path


def opened(adapter: Path) -> Child:
    child = Child(adapter, sys.executable)
    child.ask("open", model="m", draft=None, threads=1, precision="int4", methods=["plain"])
    return child


def wanted(adapter: Path, precision: str = "int4") -> peer.Wanted:
    module = ModuleType("fake_peer")
    exec(ADAPTER, module.__dict__)
    module.__file__ = str(adapter)
    return peer.Wanted("fake-peer", precision, module)


def test_answers_survive_what_libraries_print(adapter: Path) -> None:
    child = opened(adapter)
    try:
        assert child.ask("version")["version"] == "1.0"
        assert child.ask("generate", method="plain", ids=[4, 5, 6], new_tokens=2)["tokens"] == [4, 5]
        with pytest.raises(Failed, match=r"ValueError: first line second line$"):
            child.ask("generate", method="raise", ids=[4], new_tokens=2)
        assert child.ask("generate", method="plain", ids=[7, 8], new_tokens=2)["tokens"] == [7, 8]  # it goes on
        if Path("/proc/self").is_dir():
            used = memory.usage(child.pid)
            assert used.peak_rss is not None and used.pss is not None and used.peak_rss >= used.pss > 1 << 20
    finally:
        child.close()


def test_a_crash_is_the_childs_own(adapter: Path) -> None:
    child = opened(adapter)
    with pytest.raises(Failed, match="process ended with code 3: out of luck"):
        child.ask("generate", method="crash", ids=[4], new_tokens=2)
    with pytest.raises(Failed, match="process ended with code 3"):
        child.ask("generate", method="plain", ids=[4], new_tokens=2)
    child.close()


@pytest.mark.usefixtures("ends_by_signal")
def test_a_peer_that_was_built_for_another_processor_is_told_so(adapter: Path) -> None:
    child = opened(adapter)
    os.kill(child.pid, signal.SIGILL)
    with pytest.raises(Failed, match=r"code -4 \(an instruction that cannot be used here"):
        child.ask("generate", method="plain", ids=[4], new_tokens=2)
    child.close()


def test_silence_is_given_up(adapter: Path) -> None:
    child = opened(adapter)
    with pytest.raises(Failed, match=r"no answer to 'generate' within 0.5 s"):
        child.ask("generate", 0.5, method="silent", ids=[4], new_tokens=2)
    with pytest.raises(Failed, match="process ended"):  # and stays given up
        child.ask("generate", method="plain", ids=[4], new_tokens=2)


def test_tokens_and_arrivals_must_agree(adapter: Path) -> None:
    child = opened(adapter)
    one = peer.PeerContender(peer.Peer(wanted(adapter), "1.0", ("wrong",), running=child), "wrong")
    assert one.name == "fake-peer:int4/wrong"
    try:
        with pytest.raises(Failed, match="counted 1 tokens on their way and returned 2"):
            one.generate(Item("1", "qa", 0, (4, 5), (1, 2)))
    finally:
        child.close()


def test_an_interpreter_that_is_none(adapter: Path, tmp_path: Path) -> None:
    with pytest.raises(Failed, match="cannot start"):
        Child(adapter, str(tmp_path / "no-python"))


def weights(tmp_path: Path) -> Weights:
    folder = tmp_path / "weights"
    folder.mkdir()
    return Weights(Source(folder, "0" * 64, tmp_path / "cache"), None)


def test_a_peer_is_converted_once_and_opened(adapter: Path, tmp_path: Path) -> None:
    said: list[str] = []
    source = weights(tmp_path)
    (tmp_path / "cache").mkdir()
    for turn in range(2):
        found, absent = peer.open_peer(wanted(adapter), sys.executable, source, 1, said.append)
        try:
            run = peer.PeerContender(found, "plain").generate(Item("1", "qa", 0, (4, 5, 6), (0, 0, 0)))
            assert run.tokens == (4, 5, 6) and run.steps == 1 and run.arrivals == ((0.1, 1), (0.2, 2))
            assert found.settings == {"plain": {"of": "plain"}} and found.version == "1.0"
            assert absent == {"draft": "no draft model was given"}
        finally:
            found.child.close()
        assert sum("converting" in line for line in said) == 1, turn
    (made,) = (tmp_path / "cache").iterdir()
    assert made.name == "fake-peer-int4-1.0"


def test_quality_is_asked_of_a_peer_that_is_alone(adapter: Path, tmp_path: Path) -> None:
    """Its methods may hold copies of the weights; a child that only gives logits holds one."""
    (tmp_path / "cache").mkdir()
    target = weights(tmp_path).target
    found, _ = peer.open_peer(wanted(adapter), sys.executable, Weights(target, target), 1, str)
    found.child.close()
    assert found.methods == ("plain", "draft")
    with found.alone() as child:
        methods, without_draft = next(iter(fidelity.peer_logits(child, 2)(np.arange(2, dtype=np.int32))))[0]
    assert (methods, without_draft) == (0.0, 1.0)
    with pytest.raises(Failed, match="ended"):
        child.ask("version")


def test_a_fresh_process_of_a_peer_runs_plain_decoding_alone(adapter: Path, tmp_path: Path) -> None:
    """Its methods may hold copies of the weights. One that cannot start again is absent, with the reason."""
    (tmp_path / "cache").mkdir()
    target = weights(tmp_path).target
    found, _ = peer.open_peer(wanted(adapter), sys.executable, Weights(target, target), 1, str)
    found.child.close()
    asked: list[tuple[str, ...]] = []
    bare = found.bare
    assert bare is not None

    def noting(methods: tuple[str, ...]) -> Child:
        asked.append(methods)
        return bare(methods)

    item, nobody = Item("1", "qa", 0, (5, 6, 7), (0, 0)), Settings("toy", threads=1)
    llm: Any = None
    got = fresh(nobody, llm, [], [replace(found, bare=noting)], item, Progress())
    assert asked == [("plain",)] and set(got) == {"fake-peer:int4/plain"}
    assert got["fake-peer:int4/plain"]["startup_s"] > 0.1 and got["fake-peer:int4/plain"]["peak_rss"] > 1 << 20
    silent: Any = SimpleNamespace(ask=lambda *_, **__: {"arrivals": []}, close=lambda: None)
    got = fresh(nobody, llm, [], [replace(found, bare=lambda _: silent)], item, Progress())
    assert got == {"fake-peer:int4/plain": {"absent": "it wrote nothing"}}
    adapter.write_text("raise SystemExit(3)", encoding="utf-8")
    assert "ended" in fresh(nobody, llm, [], [found], item, Progress())["fake-peer:int4/plain"]["absent"]


def test_a_conversion_that_fails_leaves_nothing(adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE", "no conversion")
    (tmp_path / "cache").mkdir()
    with pytest.raises(Failed, match=r"RuntimeError: no memory for this$"):
        peer.open_peer(wanted(adapter), sys.executable, weights(tmp_path), 1, str)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_draft_model_that_it_cannot_open_costs_only_that_method(
    adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE", "no draft")
    (tmp_path / "cache").mkdir()
    target = weights(tmp_path).target
    found, absent = peer.open_peer(wanted(adapter), sys.executable, Weights(target, target), 1, str)
    found.child.close()
    assert found.methods == ("plain",) and absent == {"draft": "RuntimeError: cannot read this draft"}


def test_not_installed_is_told_from_broken(adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = weights(tmp_path)
    for lacking in ("absent", "alone"):
        monkeypatch.setenv("FAKE", lacking)
        with pytest.raises(NotInstalled, match=r"not installed .*pip install nothing"):
            peer.open_peer(wanted(adapter), sys.executable, source, 1, str)
    monkeypatch.setenv("FAKE", "broken")
    with pytest.raises(Failed, match="another_that_is_nowhere") as caught:
        peer.open_peer(wanted(adapter), sys.executable, source, 1, str)
    assert not isinstance(caught.value, NotInstalled)


def test_a_peer_that_reads_gguf_alone_says_so(adapter: Path, tmp_path: Path) -> None:
    with pytest.raises(Failed, match="needs a GGUF file"):
        peer.open_peer(wanted(adapter, "fp32"), sys.executable, weights(tmp_path), 1, str)


def test_logits_come_by_file(adapter: Path) -> None:
    child = opened(adapter)
    try:
        (rows,) = fidelity.peer_logits(child, 5)(np.array([1, 2, 3], np.int32))
        assert rows.shape == (3, 5) and rows.dtype == np.float32 and rows[1, 0] == 6
        with pytest.raises(Failed, match="gives no logits"):
            list(fidelity.peer_logits(child, 5)(np.array([1], np.int32)))
        with pytest.raises(Failed, match="shape"):
            list(fidelity.peer_logits(child, 7)(np.array([1, 2], np.int32)))
    finally:
        child.close()


def test_perplexity_by_hand() -> None:
    """Uniform over four tokens, in pieces: 4. A sure model: 1."""

    def uniform(ids: Any) -> Any:
        for start in range(0, len(ids), 2):
            yield np.zeros((len(ids[start : start + 2]), 4), np.float32)

    assert fidelity.perplexity([0, 1, 2, 3, 0], uniform) == pytest.approx(4.0)

    def sure(ids: Any) -> Any:
        yield np.eye(4, dtype=np.float32)[np.roll(ids, -1)] * 50

    assert fidelity.perplexity([0, 1, 2, 3, 0], sure) == pytest.approx(1.0)


def test_names_of_peers() -> None:
    assert peer.wanted("none") == []
    names = {one.name for one in peer.wanted("all")}
    assert names == {"llama-cpp", "onnxruntime-genai", "openvino-genai", "optimum", "transformers"}
    assert [one.label for one in peer.wanted("llama_cpp,onnxruntime-genai:fp32")] == [
        "llama-cpp",
        "onnxruntime-genai:fp32",
    ]
    with pytest.raises(BadUsage, match=r"unknown peer 'lama-cpp'. Did you mean 'llama-cpp'"):
        peer.wanted("lama-cpp")
    with pytest.raises(BadUsage, match="no precision 'int3'"):
        peer.wanted("onnxruntime-genai:int3")


def test_interpreters(monkeypatch: pytest.MonkeyPatch) -> None:
    given = peer.interpreters([f"llama-cpp={sys.executable}"])
    assert peer.python_for("llama-cpp", given) == sys.executable
    monkeypatch.setenv("SPEC_EDGE_PEER_PYTHON_OPENVINO_GENAI", "elsewhere")
    assert peer.python_for("openvino-genai", given) == "elsewhere"
    assert peer.python_for("optimum", given) == sys.executable
    for bad in ("llama-cpp", "llama-cpp=", "llama-cpp=/no/such/python", f"nobody={sys.executable}"):
        with pytest.raises(BadUsage):
            peer.interpreters([bad])


@pytest.mark.parametrize("name", known(peer.PEERS, peer.MARKER))
def test_every_adapter_can_run_without_spec_edge(name: str) -> None:
    """It meets the contract, and imports nothing at its top but the standard library."""
    module = peer.wanted(name)[0].adapter
    for needed in ("version", "settings", "open_model", "generate", "logits"):
        assert callable(getattr(module, needed)), needed
    assert set(module.DEFAULTS) <= set(module.PRECISIONS) == set(module.NEEDS)
    assert module.METHODS[0] == "plain" and set(module.NEEDS.values()) <= {"gguf", "hf"}
    if "hf" in module.NEEDS.values() and name != "transformers":
        assert callable(module.convert)
    assert all(isinstance(module.settings(method), dict) for method in module.METHODS)
    tree = ast.parse(Path(str(module.__file__)).read_text("utf-8"))
    tops = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [alias.name for node in tops if isinstance(node, ast.Import) for alias in node.names]
    names += [str(node.module) for node in tops if isinstance(node, ast.ImportFrom)]
    assert {n.split(".")[0] for n in names} <= set(sys.stdlib_module_names)
    inside = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom | ast.Import)]
    assert not any("spec_edge" in ast.dump(node) for node in inside)
