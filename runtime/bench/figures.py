"""Figures of one contender on one group of questions.

Enters: records. Leaves: plain numbers. A question's value is the median of its repeats, a group's the median of its
questions; low and high are the group's quartiles.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from spec_edge.runtime.bench.ratios import LEAST, Speeds
from spec_edge.runtime.bench.runs import Record, Run

DEFINITIONS = {
    "names": "a method of spec-edge, or peer:weights/method of another program; every one reads the same prompt ids "
    "and writes as many tokens as plain decoding does up to its end of sequence, on as many threads",
    "decode": "tokens after the first chunk / seconds from the first chunk to the last",
    "end to end": "all new tokens / seconds from the call to the last token, prompt included",
    "first token": "milliseconds from the call to the first token",
    "inter-token": "milliseconds a token waits for its step, the step's tokens sharing the wait alike",
    "pause": "milliseconds between two arrivals of text, several tokens or one",
    "acceptance length": "tokens committed in verify steps / verify steps, bonus token included; plain decoding: 1",
    "by depth": "of the verify steps that held a drafted token at this depth, the share in which it was accepted",
    "time in": "of the steps: drafting, the verify run, and the rest (acceptance, commit, bookkeeping)",
    "MB": "peak resident set of a fresh process that runs the method once, in brackets the proportional set then; of a "
    "peer's methods other than plain, of the process that has run them all",
    "start": "seconds from the start of a fresh process to the first token of the first question; the model's "
    "files were read before",
    "sitting": "peers that do not fit into memory together are measured one sitting after the other, the methods of "
    "spec-edge in every one of them; a ratio compares runs of one sitting, speeds of two sittings are of other minutes",
    "ratio": "geometric mean over questions of the ratio to plain decoding in the same repeat, with the 95 % interval "
    f"of a paired bootstrap over questions; not resolved: the interval contains 1, or there are fewer than {LEAST} "
    "questions",
}

Values = dict[str, float]


def decode_speed(runs: Sequence[Run]) -> float:
    """Tokens a second after the first arrival; 0 where nothing came after it. Several runs: a chat's turns."""
    tokens = sum(n for run in runs for _, n in run.arrivals[1:])
    seconds = sum(run.arrivals[-1][0] - run.arrivals[0][0] for run in runs if run.arrivals)
    return tokens / seconds if seconds > 0 else 0.0


def whole_speed(runs: Sequence[Run]) -> float:
    """Tokens a second from the call on."""
    seconds = sum(run.arrivals[-1][0] for run in runs if run.arrivals)
    return sum(n for run in runs for _, n in run.arrivals) / seconds if seconds > 0 else 0.0


def speeds(records: Iterable[Record], of: Callable[[Sequence[Run]], float]) -> Speeds:
    """Question -> speed in each repeat; a question of which nothing was decoded is left out."""
    found = {q: [of(runs) for runs in repeats] for q, repeats in _by_question(records).items()}
    return {question: values for question, values in found.items() if all(v > 0 for v in values)}


def figures(records: Sequence[Record]) -> dict[str, Any]:
    """Everything about one contender on these questions."""
    questions = _by_question(records)
    runs = [record.run for record in records]
    first_repeat = min((record.repeat for record in records), default=0)
    gaps = [_gaps(repeats) for repeats in questions.values()]
    first = [[1000 * run.arrivals[0][0] for run in turns if run.arrivals] for turns in _flat(questions)]
    return {
        "questions": len(questions),
        "tokens": sum(len(record.run.tokens) for record in records if record.repeat == first_repeat),
        "decode_tokens_per_s": spread([float(np.median(v)) for v in speeds(records, decode_speed).values()]),
        "end_to_end_tokens_per_s": spread([float(np.median(v)) for v in speeds(records, whole_speed).values()]),
        "first_token_ms": spread([value for turns in first for value in turns]),
        "inter_token_p50_ms": _median([_percentile(tokens, 50) for tokens, _ in gaps]),
        "inter_token_p95_ms": _median([_percentile(tokens, 95) for tokens, _ in gaps]),
        "pause_p95_ms": _median([_percentile(pauses, 95) for _, pauses in gaps]),
        "acceptance_length": acceptance_length(runs),
        "accepted_by_depth": by_depth(runs),
        "time_in": shares(runs),
    }


def spread(values: Sequence[float]) -> Values | None:
    """Median and quartiles. None: there is no value."""
    if not values:
        return None
    low, median, high = (float(v) for v in np.quantile(values, (0.25, 0.5, 0.75)))
    return {"median": median, "low": low, "high": high}


def acceptance_length(runs: Sequence[Run]) -> float | None:
    """All tokens after prefill over all verify steps; None where a program does not count its steps."""
    if any(run.steps is None for run in runs):
        return None
    steps = sum(run.steps or 0 for run in runs)
    tokens = sum(len(run.tokens) - run.arrivals[0][1] for run in runs if run.arrivals)
    return tokens / steps if steps else None


def by_depth(runs: Sequence[Run]) -> list[float] | None:
    """[d]: of the steps with a drafted token at depth d + 1, the share in which it was accepted."""
    inside = [run.inside for run in runs if run.inside]
    if not inside:
        return None
    depth = max(len(i.drafted) for i in inside)
    accepted, drafted = np.zeros(depth), np.zeros(depth)
    for i in inside:
        accepted[: len(i.accepted)] += i.accepted
        drafted[: len(i.drafted)] += i.drafted
    return [float(a / d) for a, d in zip(accepted, drafted, strict=True)]


def shares(runs: Sequence[Run]) -> Values | None:
    """Of the time in verify steps."""
    inside = [run.inside for run in runs if run.inside]
    total = sum(i.draft_s + i.verify_s + i.overhead_s for i in inside)
    if not total:
        return None
    parts = {"draft": "draft_s", "verify": "verify_s", "overhead": "overhead_s"}
    return {name: sum(getattr(i, field) for i in inside) / total for name, field in parts.items()}


def _by_question(records: Iterable[Record]) -> dict[str, list[list[Run]]]:
    """Question -> repeat -> turns."""
    found: dict[str, dict[int, list[Run]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        found[record.question][record.repeat].append(record.run)
    return {question: [repeats[r] for r in sorted(repeats)] for question, repeats in found.items()}


def _flat(questions: dict[str, list[list[Run]]]) -> Iterable[list[Run]]:
    return (turns for repeats in questions.values() for turns in repeats)


def _gaps(repeats: Sequence[Sequence[Run]]) -> tuple[list[float], list[float]]:
    """(each token's share of its step's wait, the waits), in milliseconds."""
    tokens: list[float] = []
    pauses: list[float] = []
    for run in (run for turns in repeats for run in turns):
        for (before, _), (now, count) in zip(run.arrivals, run.arrivals[1:], strict=False):
            wait = 1000 * (now - before)
            pauses.append(wait)
            tokens += [wait / count] * count
    return tokens, pauses


def _percentile(values: Sequence[float], percent: float) -> float | None:
    return float(np.percentile(values, percent)) if values else None


def _median(values: Iterable[float | None]) -> float | None:
    found = [v for v in values if v is not None]
    return float(np.median(found)) if found else None
