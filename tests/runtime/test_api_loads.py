"""The embedding API over the tiny bundle."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spec_edge.models.contract import BadUsage, SpecError
from spec_edge.runtime import LLM, hybrid, load
from spec_edge.runtime.api import INTERRUPTED
from spec_edge.runtime.costs import CostCurve, costs_folder
from spec_edge.runtime.live_costs import LiveCurve
from spec_edge.runtime.stops import TextStream
from spec_edge.runtime.stream import Owner, Stream

pytestmark = pytest.mark.usefixtures("own_cache")
SAY = [{"role": "user", "content": "hello hello hello"}]


@pytest.fixture
def llm(tiny: Path) -> Iterator[LLM]:
    with load(tiny, threads=1) as opened:
        yield opened


@pytest.mark.parametrize("method", ["plain", "prompt-lookup", "auto"])
def test_every_method_gives_the_same_answer(llm: LLM, network: object, method: str) -> None:
    ids = llm.text.encode_chat(SAY)
    eos = llm.bundle.manifest.text.eos_ids
    expected: list[int] = []
    while len(expected) < 60:
        token = int(np.argmax(network([*ids, *expected])[0][-1]))  # type: ignore[operator]
        if token in eos:
            break
        expected.append(token)
    got = llm.generate(SAY, max_new_tokens=60, method=method)
    assert got.tokens == tuple(expected)
    assert got.text == llm.text.decode(expected)
    assert (got.method, got.provider, got.model) == (method, "cpu", "tiny")
    assert got.finish_reason == ("length" if len(expected) == 60 else "stop")
    assert got.stats.prompt_tokens == len(ids) and got.stats.new_tokens == len(expected)


def test_pieces_are_the_text(llm: LLM) -> None:
    stream = llm.stream("hello", max_new_tokens=40)
    pieces = list(stream)
    assert len(pieces) > 1 and "" not in pieces
    assert "".join(pieces) == stream.result.text == llm.generate("hello", max_new_tokens=40).text


def test_a_later_limit_only_adds(llm: LLM) -> None:
    texts = [llm.generate("hello", max_new_tokens=n).tokens for n in (1, 2, 7, 20)]
    for shorter, longer in itertools.pairwise(texts):
        assert longer[: len(shorter)] == shorter


def test_a_stop_cuts_the_same_text(llm: LLM) -> None:
    whole = llm.generate("hello", max_new_tokens=40)
    stop = whole.text[10:13]
    cut = llm.generate("hello", max_new_tokens=40, stop=stop)
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert cut.finish_reason == "stop" and len(cut.tokens) < len(whole.tokens)
    assert cut.tokens == whole.tokens[: len(cut.tokens)] and cut.stats.new_tokens == len(cut.tokens)
    assert llm.generate("hello", max_new_tokens=40, stop=["\0never", stop]).text == cut.text


def test_a_seed_repeats(llm: LLM) -> None:
    def sampled(seed: int, method: str) -> tuple[int, ...]:
        return llm.generate("hello", max_new_tokens=30, temperature=1.0, top_p=0.9, seed=seed, method=method).tokens

    assert sampled(7, "plain") == sampled(7, "plain") != sampled(8, "plain")
    assert sampled(7, "prompt-lookup") == sampled(7, "prompt-lookup")


def test_the_context_ends_it(llm: LLM) -> None:
    got = llm.generate("hello " * 160, chat=False, max_new_tokens=None, method="plain")
    assert got.finish_reason in ("context", "stop")
    if got.finish_reason == "context":
        assert got.stats.prompt_tokens + got.stats.new_tokens == 1024


def test_an_unfinished_stream(llm: LLM) -> None:
    stream = llm.stream("hello", max_new_tokens=50)
    first = next(stream)
    assert stream.result.text == first and stream.result.finish_reason == INTERRUPTED
    again = llm.generate("hello", max_new_tokens=5)
    with pytest.raises(SpecError, match="this generation is over"):
        next(stream)
    assert again.text.startswith(first[:1])


def test_threads_wait_for_each_other(llm: LLM) -> None:
    prompts = [f"hello {i}" for i in range(4)]
    alone = [llm.generate(prompt, max_new_tokens=15, method="prompt-lookup").tokens for prompt in prompts]
    together: dict[int, tuple[int, ...]] = {}

    def work(i: int) -> None:
        together[i] = llm.generate(prompts[i], max_new_tokens=15, method="prompt-lookup").tokens

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [together[i] for i in range(len(prompts))] == alone


def test_a_stop_is_settled_before_the_last_piece_is_given() -> None:
    """Its caller may begin another generation before it asks for more: nothing may touch the session then."""
    stops: list[int] = []

    class Scripted:
        tokens = (0, 1, 2, 3)

        def generate(self, ids: list[int], reuse: bool) -> Iterator[list[int]]:  # noqa: ARG002
            yield from ([i] for i in ids)
            yield [2, 3]

        def stop(self, keep: int) -> None:
            stops.append(keep)

    owner = Owner(lambda: "cpu", lambda: (), "m", threading.Lock(), lambda _: True, lambda _: None, lambda: None)
    text = TextStream(lambda ids: "".join(("a", "b", "xy", "c")[i] for i in ids), ["yc"])
    stream = Stream(owner, Scripted(), [0, 1], text)  # type: ignore[arg-type]
    assert [next(stream), next(stream), stops] == ["a", "b", []]
    assert next(stream) == "x" and stops == [4]
    assert list(stream) == [] and stops == [4]


def test_costs_are_measured_once(llm: LLM, tiny: Path) -> None:
    llm.generate("hello", max_new_tokens=3)
    files = list(costs_folder().iterdir())
    assert len(files) == 1 and llm.costs().widths == (1, 2, 3, 4, 5, 6, 8, 16)
    before = files[0].stat().st_mtime_ns
    with load(tiny, threads=1) as other:
        assert other.costs() == llm.costs()
    assert files[0].stat().st_mtime_ns == before


def rows_alone(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if its provider's rows did not depend on those beside them."""
    place = llm._places["target"]
    monkeypatch.setattr(place, "on", replace(place.on, alone=True))


def test_every_verify_run_corrects_what_was_measured(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain ones too, once something weighs costs."""
    seen: list[tuple[int, int, float]] = []
    rows_alone(llm, monkeypatch)
    monkeypatch.setattr(LiveCurve, "saw", lambda _, *run: seen.append(run))
    llm.generate("hello", max_new_tokens=5, method="plain")
    assert not seen
    made = llm.generate("hello", max_new_tokens=9, method="auto")
    assert len(seen) == made.stats.steps > 0
    assert all(width >= 1 and length >= made.stats.prompt_tokens and s > 0 for width, length, s in seen)
    before = len(seen)
    llm.generate("hello", max_new_tokens=5, method="plain")
    assert [width for width, *_ in seen[before:]] == [1] * 4
    llm.generate("hello", max_new_tokens=5, method="auto", seed=3, temperature=1.0)
    assert len(seen) > before + 4  # a seed's widths follow counts; its times are as good as others


def test_only_what_cannot_change_the_text_follows_a_clock(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider whose rows depend on how many stand beside them, and a seed, keep to what was measured."""
    costs = []
    real = hybrid.create
    monkeypatch.setattr(hybrid, "create", lambda name, told, say: (costs.append(told.cost), real(name, told, say))[1])
    for _ in range(2):
        llm.generate("hello", max_new_tokens=3)
        llm.generate("hello", max_new_tokens=3, seed=3)
        llm.generate("hello", max_new_tokens=3, seed=3, temperature=1.0)
        rows_alone(llm, monkeypatch)
    assert [type(cost) for cost in costs] == [CostCurve, CostCurve, type(None), LiveCurve, CostCurve, type(None)]


def test_a_plain_run_measures_nothing(llm: LLM) -> None:
    llm.generate("hello", max_new_tokens=3, method="plain")
    assert not costs_folder().exists()


def test_what_is_refused(llm: LLM, tiny: Path) -> None:
    for prompt, options, message in [
        ("", {}, "the prompt is empty"),
        ([], {}, "the prompt is empty"),
        ("  \n ", {}, "the prompt is empty"),
        ("", {"chat": False}, "the prompt is empty"),
        ("a", {"width": 65}, "width must be at most 64 here, not 65"),
        ("a", {"draft_tokens": 64}, "draft-tokens must be at most 63 at a width of 64, not 64"),
        (SAY, {"chat": False}, "messages need the chat template"),
        ("a", {"method": "promt-lookup"}, "unknown method 'promt-lookup'. Did you mean 'prompt-lookup'"),
        ("a", {"max_new_tokens": 0}, "max-new-tokens must be at least 1"),
        ("a", {"width": 0}, "width must be at least 1"),
        ("a", {"temperature": float("nan")}, "temperature must be between"),
        ("a", {"stop": ["x", ""]}, "a stop string is empty"),
        ("hello " * 1500, {}, "the prompt has 3019 tokens and the context 1024"),
        ([{"role": "user", "content": [{"type": "image"}]}], {}, "reads text only"),
    ]:
        with pytest.raises(BadUsage) as caught:
            llm.generate(prompt, **options)  # type: ignore[arg-type]
        assert message in caught.value.message
    assert llm.generate("hello", max_new_tokens=2).stats.new_tokens <= 2
    assert llm.generate(" ", chat=False, max_new_tokens=2).tokens  # without the template blanks are text
    with pytest.raises(BadUsage, match="threads must be at least 1"):
        load(tiny, threads=0)
    with pytest.raises(BadUsage, match="unknown provider 'npu'"):
        load(tiny, provider="npu")


def test_a_closed_model_says_so(tiny: Path) -> None:
    llm = load(tiny, threads=1)
    llm.close()
    llm.close()
    with pytest.raises(SpecError, match="closed"):
        llm.generate("hello")


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(min_size=1, max_size=50).filter(lambda t: t.isprintable()), st.integers(1, 12))
def test_any_prompt_runs(llm: LLM, prompt: str, count: int) -> None:
    plain, lookup = (
        llm.generate(prompt, max_new_tokens=count, method=m, chat=False) for m in ("plain", "prompt-lookup")
    )
    assert plain.tokens == lookup.tokens and len(plain.tokens) <= count


def test_nobody_is_told_of_a_run(tiny: Path, own_cache: Path) -> None:
    """ONNX Runtime 1.32 keeps a device id and a queue of reports in the user's cache folder, unless told not to."""
    env = {name: value for name, value in os.environ.items() if "TELEMETRY" not in name and name != "CI"}
    code = (
        f"from spec_edge.runtime import load; load({str(tiny)!r}).generate('hello', max_new_tokens=2, method='plain')"
    )
    subprocess.run([sys.executable, "-c", code], env=env, check=True)
    assert not own_cache.exists() or [p.name for p in own_cache.iterdir()] == ["spec-edge"]


HEAVY = "('onnxruntime', 'tokenizers', 'jinja2', 'rich', 'torch', 'onnx', 'transformers', 'numpy')"


def test_help_loads_nothing_heavy() -> None:
    code = f"import sys, spec_edge.runtime.cli as c; print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_run_needs_no_export_package(tiny: Path) -> None:
    code = f"""
import sys
for name in ("onnx", "torch", "transformers", "optimum", "gguf", "safetensors", "huggingface_hub"):
    sys.modules[name] = None
from spec_edge.runtime import load
print(load({str(tiny)!r}).generate("hello", max_new_tokens=3, method="prompt-lookup").stats.new_tokens)
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) <= 3 and done.stderr == ""
