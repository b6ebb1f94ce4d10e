"""What the options of a generation mean to the parts of the runtime.

Enters: `Options`. Leaves: sampling, limits, drafting options, a policy, a pool; BadUsage in one line for a value that
makes no sense. `check` does all that needs no model, so that nothing is loaded or exported for a wrong call.
"""

from __future__ import annotations

import functools
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import cast

from spec_edge.models.contract import BadUsage, TextFacts
from spec_edge.models.plugins import find, known
from spec_edge.runtime import policy
from spec_edge.runtime.costs import UNMEASURED, CostCurve
from spec_edge.runtime.drafters.lookahead import check_width
from spec_edge.runtime.drafters.options import DrafterOptions
from spec_edge.runtime.engine import Limits
from spec_edge.runtime.hybrid import DRAFTERS
from spec_edge.runtime.networks import NETWORK, wanted
from spec_edge.runtime.option_types import check_types, is_a
from spec_edge.runtime.options import SHOWN, Options
from spec_edge.runtime.policy import Adaptive, Fixed, Policy
from spec_edge.runtime.pool import DAYS, TOKENS, Pool, default_path
from spec_edge.runtime.sampling import Sampling
from spec_edge.runtime.sessions.any_width import WIDEST
from spec_edge.runtime.stops import TextStream
from spec_edge.runtime.trees import Ranks, checked, paths_of

NETWORKS = ("draft", NETWORK)
"""What methods read that have a network of their own."""

PACES = ("auto", "fixed", "adaptive")
BEST = "best"
Words = Sequence[Sequence[int]]
_LEVELS = re.compile(r"[\d\s,+-]*")
"""What is meant as numbers, right or wrong; any other text is a tree's name or its file."""

DRAFTED = 0.4
"""A run of a draft model, as a share of a plain step, where neither was measured: a model of a third of the size."""


def check(options: Options, draft: bool = False, drafter: bool = False) -> None:
    """BadUsage for anything wrong that can be known without the model.

    draft: a draft model was named for it; drafter: a provider or threads for whatever network drafts
    """
    check_types(options)
    modules = methods(options)
    sampling(options, [[0] for word in options.bad_words if word] + [[] for word in options.bad_words if not word])
    Limits(options.max_new_tokens, width=options.width)
    drafting(options)
    fit(options, WIDEST)
    if options.pace not in PACES:
        raise BadUsage(f"pace must be one of {', '.join(PACES)}, not '{options.pace}'")
    TextStream(lambda _: "", stops(options))
    _pool_place(options, "0" * 64)
    _belong(options, modules, draft)
    if drafter and not any(reads(modules, what) for what in NETWORKS):
        names = " or ".join(sorted({name for what in NETWORKS for name in _readers(what)}))
        raise BadUsage(f"draft-provider and draft-threads need method {names}, not '{options.method}'")


def methods(options: Options) -> list[ModuleType]:
    """The files of the methods in `a+b`. BadUsage: an unknown one, none, one twice, one that drafts nothing beside
    others, or `off` names none of them."""
    names = [name.strip() for name in options.method.split("+")]
    if "" in names:
        what = f"'{options.method}' has a '+' too many" if "+" in options.method else "is empty"
        raise BadUsage(f"method {what}; write one of {', '.join(known(DRAFTERS, 'create'))}, or several as a+b")
    modules = [find(DRAFTERS, "create", name, "method") for name in names]
    if len(set(names)) < len(names):
        raise BadUsage(f"method '{options.method}' names one twice; a+b joins different ones")
    idle = [name for name, module in zip(names, modules, strict=True) if not getattr(module, "DRAFTS", True)]
    if idle and len(names) > 1:
        raise BadUsage(f"method '{idle[0]}' drafts nothing, so '{options.method}' joins nothing with it; leave it out")
    if strangers := [name for name in options.off if name not in names]:
        raise BadUsage(f"'{strangers[0]}' is no member of {options.method}, so it cannot be off")
    return modules


def networks(options: Options, modules: Sequence[ModuleType]) -> tuple[str, ...]:
    """The methods whose weights lie in the bundle."""
    return wanted([name.strip() for name in options.method.split("+")], modules)


def reads(modules: Sequence[ModuleType], what: str) -> bool:
    """Whether a method's READS says that it reads this: a field of `Options`, "cost" or "draft"."""
    return any(what in getattr(module, "READS", ()) for module in modules)


@functools.cache
def _readers(what: str) -> tuple[str, ...]:
    """The names of the methods that read this. Files do not change while we run, and listing them takes a moment."""
    names = known(DRAFTERS, "create")
    return tuple(name for name in names if reads([find(DRAFTERS, "create", name, "method")], what))


def _belong(options: Options, modules: Sequence[ModuleType], draft: bool) -> None:
    """BadUsage for an option that only something else reads: nothing that was asked for is ignored in silence."""
    given = {f.name: f.metadata[SHOWN].flag for f in fields(Options) if getattr(options, f.name) != f.default}
    for name, flag in (given | ({"draft": None} if draft else {})).items():
        if not reads(modules, name) and (owners := _readers(name)):
            flag = flag or name.replace("_", "-")
            raise BadUsage(f"{flag} needs method {' or '.join(owners)}, not '{options.method}'")
    if _tree(options.tree)[1] is not None and not reads(modules, "paths"):
        raise BadUsage(f"a tree of paths needs method {' or '.join(_readers('paths'))}, not '{options.method}'")
    if len(modules) < 2 and (options.off or options.hybrid != Options.hybrid):
        raise BadUsage(f"{'off' if options.off else 'hybrid'} needs several methods, a+b, not '{options.method}' alone")
    typical = (options.typical_epsilon, options.typical_alpha) != (Options.typical_epsilon, Options.typical_alpha)
    if typical and options.accept == Options.accept:
        raise BadUsage("typical-epsilon and typical-alpha need --accept typical (accept='typical')")


def fit(options: Options, rows: int) -> None:
    """BadUsage for a width, a draft or a window that a verify run of at most `rows` rows has no room for."""
    if options.width is not None and options.width > rows:
        raise BadUsage(f"width must be at most {rows} here, not {options.width}")
    most = (options.width or rows) - 1
    if options.draft_tokens is not None and options.draft_tokens > most:
        raise BadUsage(f"draft-tokens must be at most {most} at a width of {most + 1}, not {options.draft_tokens}")
    if (window := _lookahead(options.lookahead)) is not None:
        check_width(window, most + 1)


def sampling(options: Options, bad_words: Words) -> Sampling:
    """bad_words: each as token ids."""
    return Sampling(
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
        repetition_penalty=options.repetition_penalty,
        seed=options.seed,
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
        logit_bias=_bias(options.logit_bias),
        bad_words=bad_words,
        accept=options.accept,
        typical_epsilon=options.typical_epsilon,
        typical_alpha=options.typical_alpha,
    )


def refuse_empty(prompt: str | Sequence[object], chat: bool) -> None:
    """BadUsage for no message, or a prompt without a word. Without the template blanks are text like any other."""
    if not (prompt.strip() if chat and isinstance(prompt, str) else prompt):
        raise BadUsage("the prompt is empty; give it some text")


def limits(options: Options, facts: TextFacts) -> Limits:
    return Limits(options.max_new_tokens, facts.eos_ids, facts.tokens, options.width)


def stops(options: Options) -> Sequence[str]:
    return [options.stop] if isinstance(options.stop, str) else options.stop


def drafting(options: Options) -> DrafterOptions:
    """Without what depends on the model: costs, sampler, pool, draft model, networks."""
    tree, paths = _tree(options.tree)
    return DrafterOptions(
        draft_tokens=options.draft_tokens,
        max_ngram=DrafterOptions.max_ngram if options.max_ngram is None else options.max_ngram,
        min_ngram=options.min_ngram,
        lookahead=_lookahead(options.lookahead),
        lookahead_prompt=options.lookahead_prompt,
        pool_in_lookahead=options.pool_lookahead,
        hybrid=options.hybrid,
        off=tuple(options.off),
        tree=tree,
        paths=paths,
        confidence=options.draft_confidence,
    )


def weighs_costs(options: Options, modules: Sequence[ModuleType]) -> bool:
    """Whether anybody will read the cost curve: a method that chooses its own lengths does, any other where the user
    has not chosen them."""
    said = options.draft_tokens is not None or options.pace == "fixed"
    return any(reads([m], "cost") and (getattr(m, "OWN_PACE", False) or not said) for m in modules)


def paced(
    options: Options,
    modules: Sequence[ModuleType],
    cost: CostCurve | None,
    drafting: float | None = None,
    own_pace: bool = False,
) -> Policy:
    """How much each step drafts. drafting: seconds of each drafted level; None: not measured. own_pace: this drafter
    weighs its own lengths."""
    if drafting is None:
        drafting = DRAFTED * (cost or UNMEASURED).at(1) if reads(modules, "draft") else 0.0
    if options.pace != "auto":
        return Fixed() if options.pace == "fixed" else Adaptive(cost, drafting=drafting)
    own = own_pace or any(getattr(module, "OWN_PACE", False) for module in modules)
    return policy.choose(own, options.width is not None or options.draft_tokens is not None, cost, drafting)


def open_pool(options: Options, tokenizer: str) -> Pool | None:
    """tokenizer: SHA-256 of the one whose ids the pool holds."""
    path = _pool_place(options, tokenizer)
    if path is None:
        return None
    return Pool(path, tokenizer, options.pool_tokens or TOKENS, options.pool_days or DAYS)


def _pool_place(options: Options, tokenizer: str) -> Path | None:
    """A name is an application's; what looks like a path is the file."""
    name = options.pool
    if name is None:
        if options.pool_erase or options.pool_lookahead or options.pool_tokens or options.pool_days:
            raise BadUsage("the options of a pool need its name: --pool NAME")
        return None
    if options.pool_tokens is not None and options.pool_tokens < 1:
        raise BadUsage(f"pool-tokens must be at least 1, not {options.pool_tokens}")
    if options.pool_days is not None and not options.pool_days > 0:
        raise BadUsage(f"pool-days must be above 0, not {options.pool_days}")
    is_path = name.endswith(".json") or any(mark in name for mark in {"/", os.sep})
    return Path(name).expanduser() if is_path else default_path(name, tokenizer)


def _numbers(name: str, value: Sequence[int] | str, example: str) -> tuple[int, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    try:
        if not isinstance(value, str) and not all(is_a(part, int) for part in parts):
            raise TypeError
        return tuple(int(part) for part in parts)
    except (TypeError, ValueError):
        raise BadUsage(f"{name} must be whole numbers such as {example}, not '{value}'") from None


def _lookahead(value: Sequence[int] | str | None) -> tuple[int, int, int] | None:
    if value is None:
        return None
    numbers = _numbers("lookahead", value, "4,4,1")
    if len(numbers) != 3:
        raise BadUsage(f"lookahead takes three numbers W,N,G such as 4,4,1, not {len(numbers)}")
    return numbers[0], numbers[1], numbers[2]


def _tree(value: Sequence[int | Ranks] | str | None) -> tuple[Ranks | None, tuple[Ranks, ...] | None]:
    """(children by level, () for the likeliest tree; paths): one of them at most."""
    if value is None or value == BEST:
        return (None if value is None else ()), None
    if isinstance(value, str) and not _LEVELS.fullmatch(value):
        return None, paths_of(value)
    if not isinstance(value, str) and any(isinstance(part, Sequence) for part in value):
        return None, checked([tuple(part) if isinstance(part, Sequence) else (part,) for part in value], "the tree")
    return _numbers("tree", cast("Sequence[int] | str", value), f"4,2,1 (children by level), or '{BEST}'"), None


def _bias(value: Mapping[int, float] | Sequence[str]) -> dict[int, float]:
    if isinstance(value, Mapping):
        return dict(value)
    return dict(_one_bias(text) for text in value)


def _one_bias(text: str) -> tuple[int, float]:
    token, _, bias = text.partition("=")
    try:
        if not math.isnan(float(bias)):
            return int(token), float(bias)
    except ValueError:
        pass
    raise BadUsage(f"logit-bias must be ID=BIAS such as 42=-5, not '{text}'")
