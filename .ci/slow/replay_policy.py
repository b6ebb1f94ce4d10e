"""replay_policy.py BUNDLE PROMPTS.jsonl [--cache FILE] [--per-source N] [--tokens N]

How the constants of prompt lookup, of auto and of the adaptive policy are chosen. Plain greedy text is generated once
for prompts sampled over all sources of PROMPTS.jsonl (fields `source` and `prompt`; never the evaluation questions),
then each setting is replayed on it, without the model, against cost curves t(width) of several machines and the one
measured here. Prints cost relative to plain decoding (below 1 is faster): mean over sources for each curve, the mean
of all, and the dearest pair of source and curve.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from statistics import fmean

import click
import numpy as np

from spec_edge.runtime import accept, load, policy
from spec_edge.runtime.costs import CostCurve
from spec_edge.runtime.draft import Context, Output
from spec_edge.runtime.drafters import auto, prompt_lookup
from spec_edge.runtime.drafters.options import DrafterOptions
from spec_edge.runtime.protocols import Drafter
from spec_edge.runtime.prune import prune

WIDTH = 16
LONGEST_PROMPT = 1200
W = (1, 2, 4, 8, 16)
CURVES = {
    "int4": CostCurve(W, (1.0, 1.25, 1.69, 2.56, 4.04)),  # ONNX Runtime CPU, two AVX-512 cores
    "int8": CostCurve(W, (1.0, 1.48, 1.79, 2.12, 3.21)),
    "fp32": CostCurve(W, (1.0, 1.12, 1.16, 1.5, 1.92)),
    "static-ort": CostCurve((1, 4, 8, 16), (1.0, 1.49, 2.04, 3.16)),
    "static-ov": CostCurve((1, 4, 8, 16), (1.0, 1.13, 1.37, 1.95)),  # OpenVINO CPU
    "npu": CostCurve((1, 4, 8), (1.0, 1.07, 1.33)),  # Meteor Lake, Intel's compiler's estimate
}


@dataclass(frozen=True)
class Text:
    """source; ids: prompt and plain greedy continuation; prompt: tokens of the prompt."""

    source: str
    ids: list[int]
    prompt: int


def texts(bundle: Path, prompts: Path, per_source: int, tokens: int) -> tuple[list[Text], CostCurve]:
    """Plain greedy text for `per_source` prompts of each source, and the curve measured here."""
    by_source: dict[str, list[str]] = defaultdict(list)
    for line in prompts.read_text("utf-8").splitlines():
        row = json.loads(line)
        by_source[row["source"]].append(row["prompt"])
    rng, out = random.Random(0), []
    with load(bundle) as llm:
        for source, all_of_it in sorted(by_source.items()):
            for prompt in rng.sample(all_of_it, min(per_source, len(all_of_it))):
                ids = list(llm.text.encode_chat([{"role": "user", "content": prompt}]))
                if len(ids) <= LONGEST_PROMPT:
                    new = llm.generate(prompt, method="plain", max_new_tokens=tokens).tokens
                    out.append(Text(source, [*ids, *new], len(ids)))
        return out, llm.costs()


def replay(text: Text, drafter: Drafter, rule: policy.Policy, cost: CostCurve) -> float:
    """Cost of decoding this text relative to plain."""
    ids, spent, rng = text.ids[: text.prompt + 1], 0.0, np.random.default_rng(0)
    vocab, nothing = max(text.ids) + 1, Output(np.empty((0, 0), np.float32))
    drafter.start(text.ids[: text.prompt])
    rule.start()
    while len(ids) < len(text.ids):
        rows = rule.rows(len(ids), WIDTH)
        draft = prune(drafter.propose(Context(ids, rng), rows), rows - 1, len(text.ids) - len(ids) - 1, vocab)
        n = len(ids)
        verdict = accept.greedy(draft, lambda _, path, n=n: text.ids[n + len(path)])
        spent += cost.at(len(draft) + 1)
        ids += verdict.tokens
        drafter.observe(verdict, draft, nothing)
        rule.observe(draft, verdict)
    return spent / cost.at(1) / max(1, len(text.ids) - text.prompt - 1)


Setting = tuple[str, Callable[[CostCurve], tuple[Drafter, policy.Policy]]]


def lookups() -> Iterator[Setting]:
    """Prompt lookup at fixed lengths."""
    for shortest, longest, k in product((1, 2, 3), (3, 4, 5), (2, 3, 5, 7, 10)):
        options = DrafterOptions(k, longest, shortest)
        name = f"prompt-lookup n={shortest}..{longest} K={k}"
        yield name, lambda _, o=options: (prompt_lookup.create(o), policy.Fixed())


def adaptives() -> Iterator[Setting]:
    """Prompt lookup whose lengths the policy decides."""
    for shortest, rate, prior, decay in product((1, 2, 3), (0.4, 0.6, 0.8), (2.0, 4.0, 8.0), (0.8, 0.9, 0.95)):
        options, belief = DrafterOptions(None, 4, shortest), policy.Belief(rate, prior, decay)
        name = f"adaptive n={shortest}..4 rate={rate} prior={prior:g} decay={decay}"
        yield name, lambda cost, o=options, b=belief: (prompt_lookup.create(o), policy.Adaptive(cost, b))


def autos() -> Iterator[Setting]:
    """Auto over prompt lookup."""
    base = (1, 1.03, (0.1, 0.8), 4.0, 0.98)
    grid = [base, *((n, m, *base[2:]) for n, m in product((1, 2), (1.0, 1.06, 1.1)))]
    grid += [(1, 1.03, first, 4.0, 0.98) for first in product((0.05, 0.1, 0.15), (0.5, 0.65, 0.8, 0.95))]
    grid += [(*base[:3], prior, decay) for prior, decay in product((2.0, 4.0, 8.0), (0.96, 0.98, 0.99))]
    for shortest, margin, first, prior, decay in grid:
        options, belief = DrafterOptions(15, 4, shortest), auto.Belief(margin, first, prior, decay)
        name = f"auto n={shortest}..4 margin={margin} first={first} prior={prior:g} decay={decay}"
        yield (
            name,
            lambda cost, o=options, b=belief: (
                auto.Auto(prompt_lookup.create(o), cost, 15, b),
                policy.Fixed(),
            ),
        )


KINDS = {"lookup": lookups, "adaptive": adaptives, "auto": autos}


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("prompts", type=click.Path(path_type=Path))
@click.option("--cache", type=click.Path(path_type=Path), help="Keeps the generated texts.")
@click.option("--per-source", default=12)
@click.option("--tokens", default=96)
@click.option("--kind", type=click.Choice(list(KINDS)), multiple=True)
@click.option("--show", default=10, help="Best settings printed of each kind.")
def main(
    bundle: Path, prompts: Path, cache: Path | None, per_source: int, tokens: int, kind: tuple[str, ...], show: int
) -> None:
    """See the module's docstring."""
    made, measured = stored(cache) or texts(bundle, prompts, per_source, tokens)
    if cache and not cache.exists():
        rows = [asdict(t) for t in made]
        cache.write_text(json.dumps({"texts": rows, "curve": asdict(measured)}), encoding="utf-8")
    curves = CURVES | {"here": measured}
    click.echo(f"{len(made)} texts, {sum(len(t.ids) - t.prompt for t in made)} tokens; here {measured}")
    click.echo(f"{'mean':>6} {'worst':>6} " + " ".join(f"{name:>10}" for name in curves))
    for name in kind or KINDS:
        results = [(*cost_of(make, made, curves), label) for label, make in KINDS[name]()]
        for mean, worst, by_curve, label in sorted(results, key=lambda r: r[0])[:show]:
            click.echo(f"{mean:6.3f} {worst:6.3f} " + " ".join(f"{c:10.3f}" for c in by_curve) + f"  {label}")


def cost_of(
    make: Callable[[CostCurve], tuple[Drafter, policy.Policy]], made: list[Text], curves: dict[str, CostCurve]
) -> tuple[float, float, list[float]]:
    """(mean, dearest source on any curve, mean over sources by curve), all relative to plain."""
    by_curve, worst = [], 0.0
    for cost in curves.values():
        sources: dict[str, list[float]] = defaultdict(list)
        for text in made:
            sources[text.source].append(replay(text, *make(cost), cost))
        means = [fmean(costs) for costs in sources.values()]
        by_curve.append(fmean(means))
        worst = max(worst, *means)
    return fmean(by_curve), worst, by_curve


def stored(cache: Path | None) -> tuple[list[Text], CostCurve] | None:
    """What an earlier run has kept."""
    if cache is None or not cache.exists():
        return None
    kept = json.loads(cache.read_text("utf-8"))
    curve = CostCurve(tuple(kept["curve"]["widths"]), tuple(kept["curve"]["seconds"]))
    return [Text(**row) for row in kept["texts"]], curve


if __name__ == "__main__":
    main()
