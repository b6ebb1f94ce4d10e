"""Does each method write what plain decoding writes?

Enters: records and the items they answer. Leaves, for every contender, each first difference with the target's
margin there and whether it is a near-tie or a fault. A peer is held to its own plain decoding: its weights have another
form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from spec_edge.runtime.api import LLM
from spec_edge.runtime.bench.own import options
from spec_edge.runtime.bench.runs import Item, Record
from spec_edge.runtime.divergence import Divergence, Recorded, divergence, first_difference
from spec_edge.runtime.protocols import Session

WIDTHS = (2, 3, 4, 8, 16)
PEER_WIDTHS = (8,)
"""Of a peer's text only the margin is told, beside one measure of the noise."""

Tokens = Sequence[int]
Judge = Callable[[str, Item, Tokens, Tokens], Divergence]
"""(contender, item, plain answer, its answer) -> what the target says about the place where they part."""

Answers = Mapping[tuple[str, int], Sequence[Tokens]]
"""(question, turn) -> answer in each repeat."""


def against(session: Session) -> Judge:
    """A judge that knows the two texts and nothing of the runs that wrote them."""

    def judge(contender: str, item: Item, plain: Tokens, other: Tokens) -> Divergence:  # noqa: ARG001
        found = divergence(session, item.ids, plain, other, _widths(session, PEER_WIDTHS) or [session.max_width])
        assert found is not None
        return found

    return judge


def replaying(llm: LLM) -> Judge:
    """A judge that runs our own method once more, to know the shapes of the runs that wrote its text."""

    def judge(contender: str, item: Item, plain: Tokens, other: Tokens) -> Divergence:
        inner = llm.session
        recorded: Any = Recorded(inner)
        try:
            llm.session = recorded
            engine = llm.engine(options(contender, item, 0.0))
            for _ in engine.generate(item.ids):
                pass
        finally:
            llm.session = inner
        same = engine.ids[len(item.ids) :] == list(other)
        shapes = recorded.shapes if same else None
        found = divergence(inner, item.ids, plain, other, _widths(inner, WIDTHS), shapes)
        assert found is not None
        return found

    return judge


def _widths(session: Session, wanted: Sequence[int]) -> list[int]:
    return [w for w in wanted if w <= session.max_width]


def answers(records: Sequence[Record], contender: str) -> dict[tuple[str, int], list[Tokens]]:
    """Of one contender, in the order of its repeats."""
    found: dict[tuple[str, int], list[Tokens]] = {}
    for record in records:
        if record.contender == contender:
            found.setdefault((record.question, record.turn), []).append(record.run.tokens)
    return found


def check(
    contender: str, items: Sequence[Item], plain: Mapping[tuple[str, int], Tokens], own: Answers, judge: Judge
) -> dict[str, Any]:
    """What the report says of one contender.

    faults        differences that are no near-tie, and answers of another length that do not differ before their end
    unrepeatable  answers that were not the same in every repeat (judged by the first repeat that differs from plain)
    """
    out: dict[str, Any] = {"answers": 0, "tokens": 0, "unrepeatable": 0, "divergences": [], "faults": 0}
    for item in items:
        texts, expected = own.get((item.question, item.turn), ()), plain.get((item.question, item.turn))
        if not texts or expected is None:
            continue
        out["answers"] += 1
        out["tokens"] += len(texts[0])
        out["unrepeatable"] += any(tuple(t) != tuple(texts[0]) for t in texts)
        other = next((t for t in texts if tuple(t) != tuple(expected)), None)
        if other is not None:
            row = _row(contender, item, expected, other, judge)
            out["divergences"].append(row)
            out["faults"] += row["fault"]
    return out


def _row(contender: str, item: Item, plain: Tokens, other: Tokens, judge: Judge) -> dict[str, Any]:
    where: dict[str, Any] = {"question": item.question, "turn": item.turn}
    if first_difference(plain, other) is None:
        return where | {"at": min(len(plain), len(other)), "lengths": [len(plain), len(other)], "fault": True}
    found = judge(contender, item, plain, other)
    return where | asdict(found) | {"near_tie": found.near_tie, "fault": not found.near_tie}
