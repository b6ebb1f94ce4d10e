"""The shell of the runtime over SmolLM2's own bundles."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from spec_edge.runtime import load
from spec_edge.runtime.bundle import open_bundle
from spec_edge.runtime.draft import Draft
from spec_edge.runtime.providers.opening import on_cpu
from spec_edge.runtime.sessions.ort import OrtSession
from spec_edge.runtime.sessions.static import StaticSession
from spec_edge.runtime.text import Text

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("own_cache")]
COMMAND = [sys.executable, "-m", "spec_edge.runtime", "run"]


def test_an_answer_as_json(default_bundle: Path) -> None:
    args = ["-m", str(default_bundle), "--json", "--max-new-tokens", "40", "Name three fruits."]
    done = subprocess.run([*COMMAND, *args], capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    got = json.loads(done.stdout)
    assert got["method"] == "auto" and got["model"] == "smollm2-135m" and got["finish_reason"] in ("stop", "length")
    assert any(fruit in got["text"].lower() for fruit in ("apple", "banana", "orange"))


@pytest.mark.parametrize(
    "prompt", ["Write one sentence about the sea.", "Repeat this three times: a cat sat on a mat."]
)
def test_lookup_is_plain_in_fp32(fp32_bundle: Path, prompt: str) -> None:
    with load(fp32_bundle) as llm:
        plain, lookup = (llm.generate(prompt, max_new_tokens=48, method=m) for m in ("plain", "prompt-lookup"))
    assert plain.tokens == lookup.tokens and plain.stats.steps >= lookup.stats.steps


def test_static_graphs_equal_the_any_width_one(fp32_bundle: Path) -> None:
    bundle = open_bundle(fp32_bundle)
    ids = Text(bundle).encode("The quick brown fox jumps over the lazy dog. " * 40)[:300]
    tree, chain = Draft((5, 6, 7, 8, 9), (-1, -1, 0, 1, 3), (True,) * 5), Draft.chain((1, 2, 3))
    results = []
    for session in (OrtSession(bundle, on_cpu(bundle)), StaticSession(bundle, on_cpu(bundle))):
        rows = [session.prefill(ids).logits.copy(), session.verify(3, tree).logits.copy()]
        session.commit((0, 2, 4, 5))
        results.append([*rows, session.verify(7, chain).logits.copy()])
        session.close()
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-4)


def test_python_is_a_small_part_of_a_step(default_bundle: Path) -> None:
    """What a verify run does besides the kernels: few calls, and no copy of the cache or of the logits."""
    calls: list[str] = []
    with load(default_bundle) as llm:
        session, draft = llm.session, Draft.chain((5,) * 7)
        session.truncate(0)
        session.prefill([5] * 100)
        session.verify(1, draft)
        sys.setprofile(lambda *now: calls.append(now[1]) if "call" in now[1] else None)
        try:
            session.verify(1, draft)
        finally:
            sys.setprofile(None)
        tracemalloc.start()
        session.verify(1, draft)
        allocated = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert len(calls) < 80 and allocated < 1 << 16, (len(calls), allocated)


@pytest.mark.skipif(
    hasattr(signal, "CTRL_C_EVENT"),
    reason="Ctrl-C goes to all of a console here, this test included, not to one process",
)
def test_ctrl_c(default_bundle: Path) -> None:
    args = ["-m", str(default_bundle), "--max-new-tokens", "1500", "--method", "plain", "Write a very long story."]
    with subprocess.Popen([*COMMAND, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout and child.stderr
        first = child.stdout.read(20)
        child.send_signal(signal.SIGINT)
        rest, errors = child.stdout.read(), child.stderr.read()
    assert child.returncode == 130 and errors == b"interrupted\n"
    assert len(first) == 20 and rest.endswith(b"\n")


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="reads Linux's own figures")
def test_memory(default_bundle: Path) -> None:
    """PSS: a page that is mapped twice counts once."""
    code = f"""
from spec_edge.runtime import load
llm = load({str(default_bundle)!r})
llm.generate("Write a story.", max_new_tokens=60, method="prompt-lookup")
cache = llm.session.chain.now._graph.cache.past.nbytes
lines = open("/proc/self/smaps_rollup").read().splitlines()
print(next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), cache)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True)
    pss, cache = map(int, done.stdout.split())
    weights = open_bundle(default_bundle).manifest.weights.bytes
    assert pss < 1.5 * weights + cache + 250e6
