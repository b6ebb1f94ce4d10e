"""The part of a report that follows from runs alone.

Enters: runs and items. Leaves: plain values by contender and task: figures, ratios to plain decoding, and
whether the text is plain decoding's. With the same arrivals it is the same to the last digit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from spec_edge.models.contract import SpecError
from spec_edge.runtime.bench import lossless
from spec_edge.runtime.bench.figures import decode_speed, figures, speeds, whole_speed
from spec_edge.runtime.bench.lossless import Judge, Tokens
from spec_edge.runtime.bench.order import Measured
from spec_edge.runtime.bench.own import BASELINE
from spec_edge.runtime.bench.questions import OVERALL
from spec_edge.runtime.bench.ratios import Ratio, paired
from spec_edge.runtime.bench.runs import Item, Record, Run

Groups = Mapping[str, Sequence[Record]]
KINDS: dict[str, Callable[[Sequence[Run]], float]] = {"decode": decode_speed, "end_to_end": whole_speed}


def report(measured: Measured, items: Sequence[Item], judge: Judge | None) -> dict[str, Any]:
    """What the runs say. SpecError: plain decoding itself failed. judge: None where texts are sampled."""
    if BASELINE in measured.failures:
        why = measured.failures[BASELINE]
        raise SpecError(f"plain decoding failed, so there is nothing to compare with: {why}")
    by_name = {name: [r for r in measured.records if r.contender == name] for name in measured.names}
    return {
        "failed": measured.failures,
        "figures": {name: _grouped(own, figures) for name, own in by_name.items()},
        "ratios": {name: ratios(by_name, name) for name in by_name if name != BASELINE},
        "speeds": {name: _speeds(own) for name, own in by_name.items()},
        "lossless": {} if judge is None else texts(by_name, items, judge),
    }


def grouped(records: Sequence[Record]) -> dict[str, list[Record]]:
    """By task in the order they come, and all of them."""
    found: dict[str, list[Record]] = {OVERALL: list(records)}
    for record in records:
        found.setdefault(record.task, []).append(record)
    return found


def _speeds(records: Sequence[Record]) -> dict[str, list[float]]:
    """Decode tokens/s by question and repeat: the ratios and intervals can be computed anew from them."""
    return {question: [round(v, 3) for v in values] for question, values in speeds(records, decode_speed).items()}


def _grouped(records: Sequence[Record], of: Callable[[Sequence[Record]], Any]) -> dict[str, Any]:
    return {task: of(own) for task, own in grouped(records).items()}


def ratios(by_name: Groups, name: str) -> dict[str, Any]:
    """To plain decoding; of a peer's method also to the peer's own plain decoding ("to_own_plain")."""
    out: dict[str, Any] = {kind: _ratios(by_name[BASELINE], by_name[name], of) for kind, of in KINDS.items()}
    peer, _, method = name.rpartition("/")
    own = f"{peer}/{BASELINE}"
    if peer and method != BASELINE and own in by_name:
        out["to_own_plain"] = _ratios(by_name[own], by_name[name], decode_speed)
    return out


def _ratios(base: Sequence[Record], other: Sequence[Record], of: Callable[[Sequence[Run]], float]) -> dict[str, Any]:
    """Runs of the same repeat are compared: what sat in another sitting is nobody's neighbour."""
    repeats = {record.repeat for record in other}
    mine, theirs = grouped(other), grouped([record for record in base if record.repeat in repeats])
    return {task: _plain(paired(speeds(theirs.get(task, ()), of), speeds(own, of))) for task, own in mine.items()}


def _plain(ratio: Ratio | None) -> dict[str, Any] | None:
    return None if ratio is None else asdict(ratio) | {"resolved": ratio.resolved}


def texts(by_name: Groups, items: Sequence[Item], judge: Judge) -> dict[str, Any]:
    """Each contender against its own side's plain decoding: ours against the texts made beforehand."""
    plain = {(item.question, item.turn): item.plain for item in items}
    out = {}
    for name, records in by_name.items():
        answers = lossless.answers(records, name)
        peer = name.rpartition("/")[0]
        expected: Mapping[tuple[str, int], Tokens] | None = plain if not peer else _first(by_name, f"{peer}/{BASELINE}")
        if expected is not None:
            out[name] = lossless.check(name, items, expected, answers, judge)
            if peer:
                out[name]["as_ours"] = sum(tuple(t[0]) == tuple(plain[key]) for key, t in answers.items())
    return out


def _first(by_name: Groups, name: str) -> dict[tuple[str, int], Tokens] | None:
    """A contender's answers in the first repeat."""
    if name not in by_name:
        return None
    return {key: found[0] for key, found in lossless.answers(by_name[name], name).items()}
