"""Prompts and how much everyone writes: plain decoding goes first, unmeasured.

Enters: a loaded model and questions. Leaves: items, one per turn. A later turn's prompt holds plain decoding's answers,
so that every contender reads the same ids; its answer's length is how many tokens every contender writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from spec_edge.models.contract import BadUsage
from spec_edge.runtime.api import LLM
from spec_edge.runtime.bench.own import BASELINE, EngineContender, contender
from spec_edge.runtime.bench.questions import Question
from spec_edge.runtime.bench.runs import Item
from spec_edge.runtime.chat import Message


def items(
    llm: LLM, questions: Sequence[Question], new_tokens: int, temperature: float, tick: Callable[[], object] = int
) -> list[Item]:
    """In the order of the questions. BadUsage: one does not fit into the context."""
    plain = contender(llm, BASELINE, temperature)
    return [
        item
        for number, question in enumerate(questions)
        for item in _turns(llm, plain, question, number, new_tokens, tick)
    ]


def _turns(
    llm: LLM, plain: EngineContender, question: Question, number: int, new_tokens: int, tick: Callable[[], object]
) -> Iterator[Item]:
    said: list[Message] = []
    for turn, text in enumerate(question.turns):
        said.append({"role": "user", "content": text})
        ids = _encode(llm, said)
        room = llm.session.capacity - len(ids)
        if room < 2:
            raise BadUsage(f"question {question.id} has {len(ids)} tokens and the context {llm.session.capacity}")
        asked = Item(question.id, question.task, turn, tuple(ids), (0,) * min(new_tokens, room), number)
        answer = plain.generate(asked).tokens
        said.append({"role": "assistant", "content": llm.text.decode(answer)})
        tick()
        yield replace(asked, plain=answer)


def _encode(llm: LLM, said: Sequence[Message]) -> list[int]:
    """Without a chat template the turns and answers follow each other as plain text."""
    if llm.text.template is not None:
        return llm.text.encode_chat(said)
    return llm.text.encode_prompt("\n\n".join(str(message["content"]) for message in said))
