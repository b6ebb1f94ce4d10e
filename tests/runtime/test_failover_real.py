"""A device that dies in the middle of real text: SmolLM2 in fp32 goes on as if nothing had happened."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from spec_edge.runtime import load, placing
from spec_edge.runtime.providers import cpu
from spec_edge.runtime.providers import provider as providers
from spec_edge.runtime.providers.provider import Found, Job, Opened, Provider, ProviderFailed
from spec_edge.targets.target import Provider as Named
from spec_edge.targets.target import Target

PROMPT, NEW = "Write a short poem about rivers, and repeat its first line at the end.", 24


class Mortal:
    """A graph on the CPU whose device is lost after so many runs of all graphs together."""

    def __init__(self, job: Job, life: list[int]) -> None:
        self._inner, self._life = cpu.PROVIDER.open(job), life
        self.placement: Mapping[str, int] = {"npu": sum(self._inner.placement.values())}

    def bind(self, inputs: Any, outputs: Any) -> Callable[[], None]:
        call = self._inner.bind(inputs, outputs)

        def run() -> None:
            self._life[0] -= 1
            if self._life[0] < 0:
                raise ProviderFailed("the driver was reset")
            call()

        return run

    def close(self) -> None:
        self._inner.close()


@pytest.mark.real
def test_a_text_goes_on_on_the_next_provider(
    fp32_bundle: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the static graphs to the any-width one of the CPU, at its first, tenth and twenty-first run.

    The first opening looks at the device, and its result is kept.
    """
    del own_cache
    with load(fp32_bundle) as llm:
        whole = llm.generate(PROMPT, max_new_tokens=NEW, method="plain")
    life = [10**9]

    def open_(job: Job) -> Opened:
        return Mortal(job, life)

    npu = Provider("npu", "npu", False, "", find=lambda _: Found("a device", "1"), open=open_)
    known = {"npu": npu, "cpu": cpu.PROVIDER}
    chain = Target("fake", "d", "npu", (Named("npu"), Named("cpu")), "p", precisions=("fp32",))
    monkeypatch.setattr(providers, "provider", lambda name: known[name])
    monkeypatch.setattr(placing, "target", lambda _: chain)
    monkeypatch.setattr(placing, "ask_first", lambda _: None)
    with load(fp32_bundle) as llm:
        assert llm.provider == "npu" and not llm.notes
    for runs, method in ((0, "plain"), (9, "suffix"), (20, "lookahead")):
        life[0] = runs
        with load(fp32_bundle) as llm:
            result = llm.generate(PROMPT, max_new_tokens=NEW, method=method)
            assert (result.tokens, result.text) == (whole.tokens, whole.text)
            assert result.provider == "cpu" and len(result.notes) == 1
            assert result.notes[0].startswith("npu failed at token ")
            assert result.notes[0].endswith("(the driver was reset); continuing on cpu, same weights, another graph")
