"""Our own methods as contenders.

Enters: a way to make an engine, or a loaded model and a method's name. Leaves: runs with the arrival time of every
chunk. What the engine says of its own steps goes along; speeds are taken from the arrivals, as a peer's are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

from spec_edge.models.contract import SpecError
from spec_edge.models.plugins import known
from spec_edge.runtime import request
from spec_edge.runtime.api import LLM
from spec_edge.runtime.bench.runs import Inside, Item, Run
from spec_edge.runtime.engine import Engine
from spec_edge.runtime.hybrid import DRAFTERS
from spec_edge.runtime.options import Options
from spec_edge.runtime.stats import Stats

BASELINE = "plain"
Clock = Callable[[], float]


def timed(engine: Engine, ids: Sequence[int], clock: Clock = perf_counter) -> Run:
    """One generation from a cold cache."""
    arrivals: list[tuple[float, int]] = []
    seen, begun = len(ids), clock()
    for _ in engine.generate(ids):
        arrivals.append((clock() - begun, len(engine.ids) - seen))
        seen = len(engine.ids)
    if len(engine.ids) > seen:  # an end of sequence that came alone is no chunk of text
        arrivals.append((clock() - begun, len(engine.ids) - seen))
    return Run(tuple(engine.ids[len(ids) :]), tuple(arrivals), engine.stats.steps, _inside(engine.stats))


def _inside(stats: Stats) -> Inside:
    return Inside(
        stats.draft_s, stats.verify_s, stats.overhead_s, stats.accepted_by_position, stats.drafted_by_position
    )


@dataclass(frozen=True)
class EngineContender:
    """A method over whatever engine `make(item)` gives."""

    name: str
    make: Callable[[Item], Engine]
    clock: Clock = perf_counter

    def generate(self, item: Item) -> Run:
        """As `timed`; making the engine is not counted."""
        return timed(self.make(item), item.ids, self.clock)


def options(method: str, item: Item, temperature: float) -> Options:
    """Of one run: no other option is set, so that each method is measured as a user gets it."""
    seed = item.seed if temperature > 0 else None
    return Options(method=method, max_new_tokens=item.new_tokens, temperature=temperature, seed=seed)


def contender(llm: LLM, method: str, temperature: float) -> EngineContender:
    """A method of a loaded model. SpecError: it cannot run here (a draft model or weights are missing)."""
    drafts = request.reads(request.methods(Options(method=method)), "draft")

    def make(item: Item) -> Engine:
        engine = llm.engine(options(method, item, temperature))
        model = llm.companion.model() if drafts else None
        if model is not None:
            model.session.truncate(0)  # it remembers the last text, which may be this prompt by another method
        return engine

    make(Item("", "", 0, (0,), (0,)))
    return EngineContender(method, make)


def methods(names: str) -> tuple[list[str], bool]:
    """The methods to run, plain decoding first, and whether each was asked for by its own name."""
    if names == "all":
        found = known(DRAFTERS, "create")
    else:
        found = tuple(name.strip().replace("_", "-") for name in names.split(","))
    for name in found:
        request.check(Options(method=name))
    return list(dict.fromkeys((BASELINE, *found))), names != "all"


def contenders(llm: LLM, names: str, temperature: float) -> tuple[list[EngineContender], dict[str, str]]:
    """Those that run, and why the others of `all` do not. SpecError where one that was named does not."""
    wanted, named = methods(names)
    tried = {name: _tried(llm, name, temperature) for name in wanted}
    absent = {name: error for name, error in tried.items() if isinstance(error, SpecError)}
    if named and absent:
        raise next(iter(absent.values()))
    found = [one for one in tried.values() if isinstance(one, EngineContender)]
    return found, {name: error.message for name, error in absent.items()}


def _tried(llm: LLM, name: str, temperature: float) -> EngineContender | SpecError:
    try:
        return contender(llm, name, temperature)
    except SpecError as error:
        return error
