"""The whole benchmark: open, prepare, run interleaved, judge, measure quality and memory.

Enters: `Settings`. Leaves: the report as plain values (see markdown.py for what each means).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from spec_edge.models.contract import SpecError
from spec_edge.runtime.api import LLM, load
from spec_edge.runtime.bench import core, curve, fidelity, lossless, machine, own, prompts, sittings
from spec_edge.runtime.bench import questions as question_files
from spec_edge.runtime.bench.figures import DEFINITIONS
from spec_edge.runtime.bench.fresh import fresh
from spec_edge.runtime.bench.lossless import Judge, Tokens
from spec_edge.runtime.bench.peer import Peer
from spec_edge.runtime.bench.runs import Failed, Item
from spec_edge.runtime.bench.settings import Settings
from spec_edge.runtime.bench.show import Progress
from spec_edge.runtime.bench.writing import without_folders
from spec_edge.runtime.divergence import Divergence
from spec_edge.runtime.placing import AUTO
from spec_edge.runtime.report import note

FORMAT = 1
UNFINISHED = "the benchmark was ended before it measured this"
State = dict[str, Any]


def run(settings: Settings, progress: Progress, keep: Callable[[State], object]) -> State:
    """The report. SpecError: it cannot be made; a contender that fails does not stop it.

    keep  gets the report of the runs after each sitting (texts not compared where others follow), without quality and
          memory, which come last: where the machine gives up after an hour, only the rest is lost
    """
    settings.check()
    questions = question_files.read(settings.questions, settings.limit)
    facts = machine.facts()
    threads = settings.thread_count
    with load(
        settings.model,
        provider=settings.provider,
        strict=settings.provider != AUTO,  # who names one measures that one
        threads=threads,
        draft=settings.draft,
        draft_threads=threads,
        on_note=note,
    ) as llm:
        ours, absent = own.contenders(llm, settings.methods, settings.temperature)
        weights = sittings.peers_weights(settings, llm)
        progress.stage("plain answers", sum(len(q.turns) for q in questions))
        items = prompts.items(llm, questions, settings.max_new_tokens, settings.temperature, progress.tick)
        times = curve.of_session(llm.session)
        same = {
            "format": FORMAT,
            "model": _model(llm),
            "definitions": DEFINITIONS,
            "questions": [_question(item) for item in items],
            "quality": {own.BASELINE: {"absent": UNFINISHED}},
            "curve": {"widths": list(times.widths), "ms": [1000 * s for s in times.seconds]},
        }

        def so_far(sat: sittings.Sat, judge: Judge | None) -> State:
            states = {name: {"kind": "own", "absent": why} for name, why in absent.items()} | sat.states
            found = core.report(sat.measured, items, judge)
            del found["failed"]
            settled = _settings(settings, threads, len(questions), sat.held)
            told = {"contenders": without_folders(states), "memory": without_folders(dict(sat.memory))}
            told["machine"] = facts | {"memory_gb_s": sat.speed}
            return same | found | told | {"settings": settled}

        sat = sittings.sit(settings, weights, ours, items, progress, lambda sat: keep(so_far(sat, None)))
        progress.stage("comparing texts", None)
        report = so_far(sat, None if settings.temperature > 0 else _judge(llm))
        keep(report)
        quality = _quality(llm, sat.peers, progress)
        memory = dict(sat.memory) | fresh(settings, llm, ours, sat.peers, items[0], progress)
        return report | {"quality": without_folders(quality), "memory": without_folders(memory)}


def _judge(llm: LLM) -> Judge:
    """Our own methods are replayed; of a peer's the target only says how near the two tokens are."""
    ours, theirs = lossless.replaying(llm), lossless.against(llm.session)

    def judge(contender: str, item: Item, plain: Tokens, other: Tokens) -> Divergence:
        return (theirs if "/" in contender else ours)(contender, item, plain, other)

    return judge


def _quality(llm: LLM, peers: Sequence[Peer], progress: Progress) -> State:
    """Ours under the baseline's name, a peer's under its label. Each peer starts again, alone."""
    progress.stage("quality", 1 + len(peers))
    try:
        stated = fidelity.reference(llm)
    except SpecError as error:
        return {own.BASELINE: {"absent": error.message}}
    ids, vocab = fidelity.text_ids(llm), llm.bundle.manifest.model.vocab_size
    found: State = {own.BASELINE: fidelity.measure(stated, ids, fidelity.own_logits(llm))}
    for one in peers:
        progress.tick()
        try:
            with one.alone() as child:
                found[one.wanted.label] = fidelity.measure(stated, ids, fidelity.peer_logits(child, vocab))
        except Failed as error:
            found[one.wanted.label] = {"absent": error.message}
    return found


def _settings(settings: Settings, threads: int, questions: int, held: int) -> State:
    return {
        "questions": settings.questions.name if settings.questions else "the set that ships with spec-edge",
        "count": questions,
        "max_new_tokens": settings.max_new_tokens,
        "temperature": settings.temperature,
        "repeat": settings.repeat,
        "threads": threads,
        "provider": settings.provider,
        "sittings": held,
    }


def _model(llm: LLM) -> State:
    manifest = llm.bundle.manifest
    facts = {"name": manifest.model.name, "precision": manifest.precision, "target": manifest.target}
    return facts | {
        "bundle": llm.bundle.digest,
        "source": manifest.source.name,
        "source_sha256": manifest.source.sha256,
    }


def _question(item: Item) -> State:
    facts = {"question": item.question, "task": item.task, "turn": item.turn}
    return facts | {"prompt_tokens": len(item.ids), "new_tokens": item.new_tokens}
