"""A fresh process that runs one method once: how soon its first token comes, and the memory that it takes.

Enters: our methods, the peers (closed). Leaves: plain values by contender; of a peer its plain decoding, alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from spec_edge.runtime.api import LLM
from spec_edge.runtime.bench import machine, own, own_adapter
from spec_edge.runtime.bench.memory import usage
from spec_edge.runtime.bench.peer import Peer
from spec_edge.runtime.bench.process import Child
from spec_edge.runtime.bench.runs import Failed, Item
from spec_edge.runtime.bench.settings import Settings
from spec_edge.runtime.bench.show import Progress

State = dict[str, Any]


def fresh(
    settings: Settings,
    llm: LLM,
    ours: Sequence[own.EngineContender],
    peers: Sequence[Peer],
    item: Item,
    progress: Progress,
) -> State:
    """{"startup_s", "peak_rss", "pss"} of each, or {"absent"}: why not. Files are in the system's cache by now."""
    starts: dict[str, tuple[str, Callable[[], Child]]] = {
        one.name: (one.name, partial(_ours, settings, llm, one.name)) for one in ours
    }
    for one in peers:
        if own.BASELINE in one.methods and one.bare is not None:
            starts[f"{one.wanted.label}/{own.BASELINE}"] = own.BASELINE, partial(one.bare, (own.BASELINE,))
    progress.stage("fresh processes", len(starts))
    found: State = {}
    for name, (method, start) in starts.items():
        try:
            found[name] = _once(start, method, item)
        except Failed as error:
            found[name] = {"absent": error.message}
        progress.tick()
    return found


def _ours(settings: Settings, llm: LLM, method: str) -> Child:
    """Ready to draft, as a peer's is: what drafts is opened too, and costs are known."""
    child = Child(Path(own_adapter.__file__), machine.interpreter())
    model = {"bundle": str(llm.bundle.folder), "provider": llm.provider}
    try:
        threads = settings.thread_count
        child.ask("open", model=model, draft=settings.draft, threads=threads, precision="bundle", methods=[method])
    except BaseException:
        child.close()
        raise
    return child


def _once(start: Callable[[], Child], method: str, item: Item) -> State:
    begun = perf_counter()
    child = start()
    try:
        opened = perf_counter() - begun
        answer = child.ask("generate", method=method, ids=list(item.ids), new_tokens=item.new_tokens)
        if not answer["arrivals"]:
            raise Failed("it wrote nothing")
        return {"startup_s": opened + float(answer["arrivals"][0][0]), **vars(usage(child.pid))}
    finally:
        child.close()
