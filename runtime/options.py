"""Every option of a generation, defined once: the keywords of `LLM.generate` and the options of `spec-edge run`.

Enters: values. Leaves: a frozen `Options`. Imports nothing heavy, since `--help` reads it; what the values mean is
checked where they are used, and for all of them at once by `request.check`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

NEW_TOKENS = 512
SHOWN = "shown"
"""Key of a field's `Shown` in its metadata."""


@dataclass(frozen=True)
class Shown:
    """How an option appears on the command line.

    help     one line; metavar: what stands for its value; flag: the name, if it is not the field's
    type     of the value, or of each where `many`; a bool is a flag that sets the opposite of its default
    default  what the help says of a default that None stands for
    listed   False: a keyword only, since a command line has one text
    """

    help: str
    type: type
    metavar: str | None = None
    flag: str | None = None
    many: bool = False
    default: str | None = None
    listed: bool = True


def _option(value: Any, shown: Shown) -> Any:
    if isinstance(value, dict):
        return field(default_factory=dict, metadata={SHOWN: shown})
    return field(default=value, metadata={SHOWN: shown})


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of one generation. The text is what the target alone would write, whatever the drafting options say.

    method             a drafting method (auto, plain, prompt-lookup, lookahead, suffix, medusa ...) or several: a+b
    max_new_tokens     None: until the model ends or the context is full
    width              most rows of a verify run, drafted tokens and the pending one; None: the bundle's
    draft_tokens       most tokens drafted in a step; None: the method's
    pace               "fixed": each step drafts all it may. "adaptive": as much as recent acceptance is worth.
                       "auto": fixed where width or draft_tokens is given or the method paces itself, else adaptive
    hybrid             how `a+b` joins its members: "merge" or "cascade"
    off                members of `a+b` that do not propose in this generation
    lookahead          (W, N, G); None: what fits the width
    lookahead_prompt   lookahead's pool begins with the prompt
    max_ngram, min_ngram  longest and shortest suffix that prompt lookup searches for; None: the method's
    tree               of a drafting network: "best" the likeliest tree, (4, 2) or "4,2" children by level, the name of
                       a published tree, a file of paths or the paths; None: the method's (a draft model's: a chain)
    draft_confidence   a drafting network stops where its best token is less likely; 0 never; None: the method's
    pool               an application's name, or a file: accepted text is kept there and drafted from; None: nothing is
    pool_tokens, pool_days  its size and the age at which a text goes; None: the pool's own
    pool_lookahead     lookahead draws from the pool too
    pool_erase         forget what the pool holds first
    accept             "exact", or "typical": LOSSY, sampled text no longer has the target's law
    typical_epsilon, typical_alpha  of "typical"
    temperature ... seed  as in `Sampling`; temperature 0 is greedy
    logit_bias         id -> what is added to its logit, or texts "id=bias"
    bad_words          texts that are never written
    stop               text that ends the answer and is not part of it, or several
    chat               False: the prompt as it is, without the model's chat template
    reuse              keep the rows of what the prompt shares with this model's last text (a chat's earlier turns); not
                       under a seed, whose text must not depend on what came before
    """

    method: str = _option(
        "auto",
        Shown(
            "How tokens are drafted: auto, plain, prompt-lookup, suffix, lookahead, draft, medusa, eagle, or a+b.", str
        ),
    )
    max_new_tokens: int | None = _option(NEW_TOKENS, Shown("Longest answer.", int))
    width: int | None = _option(None, Shown("Most rows of a verify run.", int, default="the bundle's"))
    draft_tokens: int | None = _option(None, Shown("Most tokens drafted in a step.", int, default="the method's"))
    pace: str = _option(
        "auto", Shown("Tokens drafted in a step: fixed, adaptive (by recent acceptance), or auto.", str)
    )
    hybrid: str = _option(
        "merge", Shown("How a+b joins: merge into one tree, or cascade (the first that proposes).", str)
    )
    off: Sequence[str] = _option(
        (),
        Shown("A member of a+b that learns but does not propose; may be repeated.", str, many=True, metavar="METHOD"),
    )
    lookahead: Sequence[int] | str | None = _option(
        None, Shown("Lookahead's window, n-gram length, guesses.", str, metavar="W,N,G", default="what fits the width")
    )
    lookahead_prompt: bool = _option(
        True, Shown("Lookahead does not draw from the prompt.", bool, flag="no-lookahead-prompt")
    )
    max_ngram: int | None = _option(
        None, Shown("Longest suffix that prompt lookup searches for.", int, default="the method's")
    )
    min_ngram: int | None = _option(None, Shown("Shortest one.", int, default="the method's"))
    tree: Sequence[int | tuple[int, ...]] | str | None = _option(
        None,
        Shown(
            "Tree of a draft model, Medusa or EAGLE: best, children by level such as 4,2,1, a published tree such as "
            "mc_sim_7b_63, or a file of paths.",
            str,
            default="the method's",
        ),
    )
    draft_confidence: float | None = _option(
        None, Shown("A drafting network stops below this probability; 0 never.", float, default="the method's")
    )
    pool: str | None = _option(
        None,
        Shown(
            "Keep accepted text for later runs, where suffix drafts from it: an application's name, or a file.",
            str,
            metavar="NAME",
            default="nothing is kept",
        ),
    )
    pool_tokens: int | None = _option(None, Shown("Most tokens that the pool keeps.", int, default="32768"))
    pool_days: float | None = _option(None, Shown("Age at which the pool forgets a text.", float, default="30"))
    pool_lookahead: bool = _option(False, Shown("Lookahead draws from the pool too.", bool))
    pool_erase: bool = _option(False, Shown("Forget what the pool holds first.", bool))
    accept: str = _option(
        "exact", Shown("exact, or typical: LOSSY, sampled text no longer has the model's own law.", str)
    )
    typical_epsilon: float = _option(0.09, Shown("Of typical: tokens at least this likely are accepted.", float))
    typical_alpha: float = _option(0.3, Shown("Of typical: so are those above this share of exp(-entropy).", float))
    temperature: float = _option(0.0, Shown("0 is greedy.", float))
    top_k: int = _option(0, Shown("Keep the K likeliest tokens; 0 keeps all.", int))
    top_p: float = _option(1.0, Shown("Keep the fewest tokens with this mass.", float))
    min_p: float = _option(0.0, Shown("Keep tokens this likely beside the best.", float))
    repetition_penalty: float = _option(1.0, Shown("Above 1, repeat less.", float))
    presence_penalty: float = _option(0.0, Shown("Off the logit of a token already written.", float))
    frequency_penalty: float = _option(0.0, Shown("The same, each time it was written.", float))
    logit_bias: Mapping[int, float] | Sequence[str] = _option(
        {}, Shown("Added to the logit of a token id; may be repeated.", str, many=True, metavar="ID=BIAS")
    )
    bad_words: Sequence[str] = _option((), Shown("Never write this; may be repeated.", str, many=True, metavar="TEXT"))
    seed: int | None = _option(None, Shown("Of the random generator.", int, default="a fresh one"))
    stop: str | Sequence[str] = _option(
        (), Shown("End the answer before this text; may be repeated.", str, many=True, metavar="TEXT")
    )
    chat: bool = _option(
        True, Shown("Give PROMPT to the model as it is, without the chat template.", bool, flag="no-chat")
    )
    reuse: bool = _option(True, Shown("Keep what the prompt shares with the last text.", bool, listed=False))
