"""What a program passes in other types than are stated: one line, never a limit that is not kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spec_edge.models.contract import BadUsage
from spec_edge.runtime.api import load
from spec_edge.runtime.option_types import check_prompt, check_types
from spec_edge.runtime.options import Options
from spec_edge.runtime.request import check


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_new_tokens": 1.5}, "max-new-tokens must be a whole number, not 1.5"),
        ({"max_new_tokens": float("nan")}, "max-new-tokens must be a whole number"),
        ({"max_new_tokens": "4"}, "max-new-tokens must be a whole number, not '4'"),
        ({"width": 2.5}, "width must be a whole number"),
        ({"top_k": True}, "top-k must be a whole number, not True"),
        ({"temperature": None}, "temperature must be a number, not None"),
        ({"temperature": "1"}, "temperature must be a number, not '1'"),
        ({"seed": "a"}, "seed must be a whole number"),
        ({"seed": 1.0}, "seed must be a whole number"),
        ({"method": None}, "method must be a text, not None"),
        ({"chat": 1}, "chat must be True or False, not 1"),
        ({"stop": 3}, "stop must be a list of texts"),
        ({"stop": [3]}, "stop must be a list of texts"),
        ({"bad_words": "word"}, "bad-words must be a list of texts, not 'word'"),
        ({"off": "suffix"}, "off must be a list of texts"),
        ({"logit_bias": {"3": 1}}, "logit-bias must map token ids to numbers"),
        ({"logit_bias": [1]}, "logit-bias must map token ids to numbers"),
        ({"method": "lookahead", "lookahead": (3.5, 4, 5)}, "lookahead must be whole numbers"),
        ({"method": "eagle", "tree": 5}, "tree must be a text or a list of numbers, not 5"),
    ],
)
def test_another_type_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(BadUsage, match=said) as caught:
        check(Options(**options))
    assert "\n" not in caught.value.message and len(caught.value.message) < 200


def test_numbers_of_numpy_and_every_form_that_is_stated() -> None:
    check_types(Options())
    check_types(Options(max_new_tokens=None, seed=np.int64(3), temperature=np.float32(0.5), top_p=1))  # type: ignore[arg-type]
    check_types(Options(stop="end", bad_words=["a"], off=("suffix",), logit_bias={np.int32(1): 2}))  # type: ignore[dict-item]
    check(Options(method="lookahead", lookahead="4,4,1", logit_bias=["42=-5"], stop=["a", "b"]))


@pytest.mark.parametrize("prompt", [3, None, [{"role": "user"}], ["x"], b"x", [{"role": 1, "content": "x"}], {"a": 1}])
def test_what_is_no_prompt(prompt: object) -> None:
    with pytest.raises(BadUsage):
        check_prompt(prompt)


@pytest.mark.usefixtures("own_cache")
def test_of_the_library(tiny: Path) -> None:
    bad: Any = "1"
    with pytest.raises(BadUsage, match="threads must be a whole number, not '1'"):
        load(tiny, threads=bad)
    with load(tiny, threads=1) as llm:
        with pytest.raises(BadUsage, match="the prompt must be a text or a list of messages"):
            llm.generate(3)  # type: ignore[arg-type]
        assert len(llm.generate("hello", max_new_tokens=3).tokens) <= 3
