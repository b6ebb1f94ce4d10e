"""replay_draft.py TARGET DRAFT PROMPTS.jsonl [--cache FILE] [--per-source N] [--tokens N]

How the constants of `runtime/pace.py` are chosen. Plain greedy text is generated once for prompts sampled over the
sources of PROMPTS.jsonl (fields `source` and `prompt`; never the evaluation questions), and with it what the draft
model says after each of its tokens: a greedy chain of seven with its probabilities. Every setting is then
replayed on that, without a model, against several cost curves. Prints speed relative to plain
decoding (above 1 is faster).
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterable
from itertools import product
from pathlib import Path

import click
import numpy as np

from spec_edge.runtime import load
from spec_edge.runtime.costs import CostCurve
from spec_edge.runtime.drafted import greedy_chain
from spec_edge.runtime.pace import Confidence, Pace, Stop

LONGEST_PROMPT, DEPTH, CONFIDENCE = 1500, 7, 0.4
W = (1, 2, 3, 4, 5, 6, 8)
MACHINES = {  # (t(width), seconds of a draft run), in plain steps
    "native, 9-bit draft": (CostCurve(W, (1.0, 1.1, 1.25, 1.42, 1.95, 2.2, 2.67)), 0.48),
    "native": (CostCurve(W, (1.0, 1.02, 1.1, 1.33, 1.81, 2.0, 2.5)), 0.33),
    "flat": (CostCurve(W, (1.0, 1.05, 1.1, 1.15, 1.3, 1.35, 1.5)), 0.3),
    "small draft": (CostCurve(W, (1.0, 1.1, 1.25, 1.42, 1.95, 2.2, 2.67)), 0.1),
}
Chain = list[tuple[int, float]]
Text = tuple[str, list[int], list[Chain]]
"""Source, new tokens, and after each of them (but the last) the draft model's chain: token and probability."""


def traces(target: Path, draft: Path, prompts: Path, per_source: int, tokens: int) -> list[Text]:
    """The slow part: one run of the draft model for each depth after each token."""
    by_source: dict[str, list[str]] = defaultdict(list)
    for line in prompts.read_text("utf-8").splitlines():
        row = json.loads(line)
        by_source[row["source"]].append(row["prompt"])
    rng, out = random.Random(0), []
    with load(target, draft=draft) as llm:
        model = llm.companion.model()
        assert model is not None
        for source, all_of_it in sorted(by_source.items()):
            for prompt in rng.sample(all_of_it, min(per_source, len(all_of_it))):
                ids = llm.text.encode_chat([{"role": "user", "content": prompt[:LONGEST_PROMPT]}])
                new = llm.generate(prompt[:LONGEST_PROMPT], method="plain", max_new_tokens=tokens).tokens
                model.begin()
                chains = [chain(model, [*ids, *new[: i + 1]]) for i in range(len(new) - 1)]
                out.append((source, list(new), chains))
                click.echo(f"{source}: {len(new)} tokens", err=True)
    return out


def chain(model: object, text: list[int]) -> Chain:
    """What it drafts greedily after a text."""
    logits, found = model.follow(text), []  # type: ignore[attr-defined]
    for depth in range(DEPTH):
        token = int(logits.argmax())
        found.append((token, float(1 / np.exp(logits - logits[token]).sum())))
        if depth + 1 < DEPTH:
            logits = model.extend(token)  # type: ignore[attr-defined]
    return found


def replay(texts: Iterable[Text], cost: CostCurve, step: float, stop: Stop, most: int) -> float:
    """Speed relative to plain decoding."""
    spent, tokens = 0.0, 0
    for _, new, chains in texts:
        at = 0
        while at < len(chains):
            room = min(most, len(chains) - at - 1)
            nodes = greedy_chain(0, lambda _: 0, Told(chains[at]), room, stop) if room else []
            accepted = 0
            while accepted < len(nodes) and nodes[accepted].token == new[at + 1 + accepted]:
                accepted += 1
            spent += cost.at(1 + len(nodes)) + (max(1, len(nodes)) * step if room else 0.0)
            at += accepted + 1
        tokens += len(chains)
    return tokens * cost.at(1) / spent


class Told:
    """The next pair of a chain at each call."""

    def __init__(self, pairs: Chain) -> None:
        self._pairs = iter(pairs)

    def __call__(self, _: int) -> tuple[int, float]:
        return next(self._pairs)


@click.command()
@click.argument("target", type=click.Path(path_type=Path))
@click.argument("draft", type=click.Path(path_type=Path))
@click.argument("prompts", type=click.Path(path_type=Path))
@click.option("--cache", type=click.Path(path_type=Path), help="Keeps the traces.")
@click.option("--per-source", default=3)
@click.option("--tokens", default=100)
def main(target: Path, draft: Path, prompts: Path, cache: Path | None, per_source: int, tokens: int) -> None:
    """See the module's docstring."""
    if cache and cache.is_file():
        texts = [tuple(text) for text in json.loads(cache.read_text("utf-8"))]
    else:
        texts = traces(target, draft, prompts, per_source, tokens)
        if cache:
            cache.write_text(json.dumps(texts), "utf-8")
    for name, (cost, step) in MACHINES.items():
        click.echo(f"{name}: t(4) {cost.at(4):.2f}, t(8) {cost.at(8):.2f}, a draft run {step:.2f}")
        for most in (2, 3, 4):
            speed = replay(texts, cost, step, Confidence(CONFIDENCE), most)
            click.echo(f"  at most {most}, while likelier than {CONFIDENCE}: {speed:.3f}")
        for margin, ahead in product((1.0, 1.2, 1.4, 1.6), (0.8, 0.85, 0.9)):
            speed = replay(texts, cost, step, Pace(cost, step, CONFIDENCE, margin, ahead), DEPTH)
            click.echo(f"  paced, margin {margin}, next {ahead}: {speed:.3f}")


if __name__ == "__main__":
    main()
