"""Draft models through the API and the command line, on tiny bundles."""

from __future__ import annotations

import errno
import hashlib
import inspect
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from click.testing import CliRunner, Result
from tokenizers import AddedToken, Tokenizer

from spec_edge.models.contract import BadUsage, DraftFact, SpecError
from spec_edge.runtime import LLM, Options, cli, load
from spec_edge.runtime.costs import costs_folder
from spec_edge.runtime.drafters import draft as drafting
from spec_edge.runtime.providers import cpu
from spec_edge.runtime.providers import provider as providers
from spec_edge.runtime.providers.provider import Job, Opened, ProviderFailed
from spec_edge.runtime.sampling import Sampling
from spec_edge.runtime.sessions.ort import OrtSession

pytestmark = pytest.mark.usefixtures("own_cache")


def second(tiny: Path, folder: Path, remake: Callable[..., None], **fields: object) -> Path:
    """A draft bundle: the tiny one again, under its own name."""
    shutil.copytree(tiny, folder)
    remake(folder, **fields)
    return folder


@pytest.fixture
def draft(tiny: Path, tmp_path: Path, remake: Callable[..., None]) -> Path:
    return second(tiny, tmp_path / "small", remake)


def run(*args: str) -> Result:
    return CliRunner().invoke(cli.main, ["run", *args])


METHODS = ["draft", "suffix+draft", "prompt-lookup+draft", "lookahead+draft", "suffix", "lookahead", "suffix+lookahead"]
CALLS = [(mode, name) for name in METHODS for mode in ("merge", "cascade") if mode == "merge" or "+" in name]


@pytest.mark.parametrize(("hybrid", "method"), CALLS)
def test_methods_of_one_model(tiny: Path, draft: Path, method: str, hybrid: str) -> None:
    """Requests of several methods on one loaded model; the text stays the target's."""
    with load(tiny, threads=1, draft=draft, draft_threads=1) as llm:
        plain = llm.generate("hello hello hello", max_new_tokens=30, method="plain")
        for tree in (None, "best", "3,2") if "draft" in method else (None,):
            got = llm.generate("hello hello hello", max_new_tokens=30, method=method, hybrid=hybrid, tree=tree)
            assert got.tokens == plain.tokens and got.method == method and not got.stats.lossy
        again = llm.generate("hello hello hello", max_new_tokens=30, method="plain")
    assert again.tokens == plain.tokens


def test_a_self_draft_is_always_right(tiny: Path, draft: Path) -> None:
    with load(tiny, threads=1, draft=draft) as llm:
        for temperature in (0.0, 1.0):
            got = llm.generate(
                "hello",
                max_new_tokens=1 + 6 * 5,
                method="draft",
                draft_tokens=4,
                draft_confidence=0.0,
                seed=1,
                temperature=temperature,
                repetition_penalty=1.2,
            )
            if got.finish_reason == "length":
                assert got.stats.acceptance_length == 5
                assert got.stats.steps_by_drafter == {"draft": 6} and got.stats.bonus == 6


def test_drafting_is_measured_once_where_it_is_weighed(
    tiny: Path, draft: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two curves: the target's by its widths, the draft model's for a row or two, each under its own key."""
    told: list[tuple[bool, float | None]] = []
    create = drafting.create
    monkeypatch.setattr(drafting, "create", lambda o: told.append((o.cost is None, o.draft_seconds)) or create(o))
    with load(tiny, threads=1, draft=draft) as llm:
        llm.generate("hello", max_new_tokens=3, method="draft", draft_tokens=2)
        llm.generate("hello", max_new_tokens=3, method="draft", temperature=1.0, seed=3)
        assert not costs_folder().exists() and told == [(True, None)] * 2
        llm.generate("hello", max_new_tokens=3, method="draft")
        curves = [json.loads(path.read_text("utf-8")) for path in costs_folder().iterdir()]
        assert sorted(len(curve["widths"]) for curve in curves) == [2, 8]
        cost, seconds = told[-1]
        assert not cost and seconds is not None and seconds > 0
        first = llm.generate("hello again", max_new_tokens=9, method="suffix")
        assert llm.generate("hello again", max_new_tokens=9, method="draft").tokens == first.tokens
        assert told[-1] == told[-2] and len(list(costs_folder().iterdir())) == 2


def test_a_draft_model_that_fails_while_it_is_measured_costs_no_text(
    tiny: Path, draft: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify = OrtSession.verify

    def failing(self: OrtSession, *args: Any) -> Any:
        if self is broken:
            raise ProviderFailed("the device is gone")
        return verify(self, *args)

    broken: object = None
    monkeypatch.setattr(OrtSession, "verify", failing)
    with load(tiny, threads=1, draft=draft) as llm:
        plain = llm.generate("hello", max_new_tokens=9, method="plain")
        model = llm.companion.model()
        assert model is not None
        broken = model.session
        got = llm.generate("hello", max_new_tokens=9, method="draft")
        assert got.tokens == plain.tokens and any("drafts no more" in note for note in llm.notes)


def test_a_wrong_call_measures_nothing(tiny: Path) -> None:
    with load(tiny, threads=1) as llm:
        for options in ({"method": "draft"}, {"width": 64, "draft_tokens": 64}):
            with pytest.raises(BadUsage):
                llm.generate("hello", **options)  # type: ignore[arg-type]
    assert not costs_folder().exists()


def test_the_draft_opens_when_it_is_wanted(tiny: Path, draft: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[Path, int | None]] = []

    def noting(job: Job) -> Opened:
        opened.append((job.model.parent, job.threads))
        return cpu.PROVIDER.open(job)

    real = providers.provider
    monkeypatch.setattr(providers, "provider", lambda name: replace(real(name), open=noting))
    with load(tiny, threads=1, draft=draft, draft_threads=2) as llm:
        llm.generate("hello", max_new_tokens=3, method="plain")
        assert opened == [(tiny, 1)]
        for _ in range(2):
            llm.generate("hello", max_new_tokens=3, method="draft")
        assert opened == [(tiny, 1), (draft, 2)]


def test_a_recorded_draft(tiny: Path, tmp_path: Path, remake: Callable[..., None]) -> None:
    small = second(tiny, tmp_path / "big-draft", remake)
    digest = hashlib.sha256((small / "bundle.json").read_bytes()).hexdigest()
    big = second(tiny, tmp_path / "big", remake, draft=DraftFact("big-draft", digest))
    with load(big, threads=1) as llm:
        assert llm.generate("hello", max_new_tokens=9, method="draft", draft_confidence=0).stats.drafted > 0
    remake(small, precision="other")
    with load(big, threads=1) as llm:
        assert llm.generate("hello", max_new_tokens=2, method="plain").tokens
        with pytest.raises(SpecError, match=r"big-draft is not the draft model that was exported with this bundle"):
            llm.generate("hello", method="draft")
    shutil.rmtree(small)
    with load(big, threads=1) as llm, pytest.raises(SpecError, match="put it back, or name one with --draft"):
        llm.generate("hello", method="draft")


@pytest.mark.parametrize("folder", ["../small", "a/b", "", "con", "x" * 200])
def test_a_record_stays_beside_the_bundle(tiny: Path, tmp_path: Path, remake: Callable[..., None], folder: str) -> None:
    with pytest.raises(SpecError, match=r"draft\.folder"):
        second(tiny, tmp_path / "big", remake, draft=DraftFact(folder, "0" * 64))


def test_without_a_draft(tiny: Path) -> None:
    with load(tiny, threads=1) as llm, pytest.raises(BadUsage, match="needs a second bundle"):
        llm.generate("hello", method="suffix+draft")


def test_a_foreign_draft_is_refused_before_a_network_opens(
    tiny: Path, tmp_path: Path, remake: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "foreign"
    shutil.copytree(tiny, folder)
    path = folder / "tokenizer.json"
    tree = json.loads(path.read_text("utf-8"))
    vocab = tree["model"]["vocab"]
    (a, i), (b, j) = list(vocab.items())[40], list(vocab.items())[41]
    vocab[a], vocab[b] = j, i
    path.write_text(json.dumps(tree), "utf-8")
    _refresh(folder, remake)
    monkeypatch.setattr(OrtSession, "__init__", lambda *_: pytest.fail("opened"))
    with pytest.raises(SpecError, match=f"token {min(i, j)} is '.*' there and '.*' in the target"):
        load(tiny, draft=folder)


def test_a_draft_with_more_tokens(tiny: Path, tmp_path: Path, remake: Callable[..., None]) -> None:
    """Another tokenizer file whose tokens begin with the target's: accepted, and only shared ids are drafted."""
    big = tmp_path / "fewer"
    shutil.copytree(tiny, big)
    tokenizer = Tokenizer.from_file(str(tiny / "tokenizer.json"))
    tokenizer.add_tokens([AddedToken("zzzz")])
    with load(tiny, threads=1) as llm:
        tokens = llm.bundle.manifest.text.tokens
    assert tokenizer.get_vocab_size() == tokens + 1
    tokenizer.save(str(big / "tokenizer.json"))
    _refresh(big, remake, tokens=tokens)
    with load(tiny, threads=1, draft=big) as llm:
        plain, drafted = (llm.generate("hello", max_new_tokens=20, method=m) for m in ("plain", "draft"))
    assert plain.tokens == drafted.tokens


def _refresh(folder: Path, remake: Callable[..., None], **text: object) -> None:
    """bundle.json for a changed tokenizer."""
    import dataclasses

    from spec_edge.models.contract import FileFact
    from spec_edge.runtime import manifest as schema

    data = (folder / "tokenizer.json").read_bytes()
    facts = schema.read((folder / "bundle.json").read_bytes()).text
    fact = FileFact("tokenizer.json", len(data), hashlib.sha256(data).hexdigest())
    remake(folder, text=dataclasses.replace(facts, tokenizer=fact, **text))  # type: ignore[arg-type]


def test_keywords_are_the_options() -> None:
    for method in (LLM.generate, LLM.stream):
        names = list(inspect.signature(method).parameters)
        assert names == ["llm", "prompt", *Options.__dataclass_fields__]
    explained = f"{Options.__doc__} {Sampling.__doc__}"
    assert [name for name in Options.__dataclass_fields__ if name not in explained] == []


def test_an_unknown_keyword(tiny: Path) -> None:
    with load(tiny, threads=1) as llm, pytest.raises(TypeError, match="temprature"):
        llm.generate("hello", temprature=1.0)  # type: ignore[call-arg]


def test_processors_reach_the_text(tiny: Path) -> None:
    with load(tiny, threads=1) as llm:
        plain = llm.generate("hello", max_new_tokens=25, method="plain")
        first = plain.tokens[0]
        assert first not in llm.generate("hello", max_new_tokens=25, logit_bias={first: -100.0}).tokens
        forced = llm.generate("hello", max_new_tokens=4, logit_bias=["65=100"]).tokens
        assert forced == (65,) * 4
        assert "hello" not in llm.generate("hello", max_new_tokens=25, bad_words=["hello"], logit_bias={260: 50.0}).text
        assert (
            llm.generate("hello", max_new_tokens=25, presence_penalty=2.0, frequency_penalty=2.0).tokens != plain.tokens
        )
        with pytest.raises(BadUsage, match="logit-bias names token 9999"):
            llm.generate("hello", logit_bias={9999: 1.0})


def test_typical_is_called_lossy(tiny: Path) -> None:
    args = ["-m", str(tiny), "--accept", "typical", "--max-new-tokens", "9", "--seed", "1", "hello"]
    sampled = run(*args, "--temperature", "1", "--stats", "--json")
    assert json.loads(sampled.stdout)["stats"]["lossy"] is True and "LOSSY" in sampled.stderr
    assert json.loads(run(*args, "--json").stdout)["stats"]["lossy"] is False


def test_a_pool_is_kept_and_erased(tiny: Path, tmp_path: Path) -> None:
    args = ["-m", str(tiny), "--method", "suffix", "--max-new-tokens", "40", "--no-chat", "--json"]
    path = tmp_path / "pool.json"
    results = [json.loads(run(*args, "--pool", str(path), "hello").stdout) for _ in range(2)]
    assert results[0]["tokens"] == results[1]["tokens"]
    assert results[1]["stats"]["steps"] < results[0]["stats"]["steps"]
    again = json.loads(run(*args, "--pool", str(path), "--pool-erase", "hello").stdout)
    assert again["stats"]["steps"] == results[0]["stats"]["steps"]
    path.write_text("not a pool", "utf-8")
    result = run(*args, "--pool", str(path), "hello")
    assert (
        result.exit_code == 0 and result.stderr.startswith("note: the pool") and path.read_text("utf-8") == "not a pool"
    )


def test_a_pool_that_cannot_be_written_is_a_note(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The place takes no new file (as /proc, or a folder of somebody else's): the answer comes all the same."""

    def refused(**_: object) -> NoReturn:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    args = ["-m", str(tiny), "--method", "suffix", "--max-new-tokens", "9"]
    answer = run(*args, "hello").stdout
    monkeypatch.setattr(tempfile, "mkstemp", refused)
    path = tmp_path / "pool.json"
    result = run(*args, "--pool", str(path), "hello")
    assert (result.exit_code, result.stdout) == (0, answer)
    why = os.strerror(errno.EROFS)
    assert result.stderr == f"note: the pool {path} cannot be written ({why}), so nothing is kept; give another path\n"


def test_a_draft_on_the_command_line(tiny: Path, draft: Path) -> None:
    args = ["-m", str(tiny), "--draft", str(draft), "--draft-provider", "cpu", "--draft-threads", "1", "--stats"]
    result = run(*args, "--method", "suffix+draft", "--max-new-tokens", "20", "--tree", "best", "hello")
    assert result.exit_code == 0, result.output
    assert "suffix+draft" in result.stderr and "by position" in result.stderr and "bonus" in result.stderr


REFUSED = [
    (["--method", "plane"], "unknown method 'plane'. Did you mean 'plain'?"),
    (["--method", "suffix+drft"], "unknown method 'drft'. Did you mean 'draft'?"),
    (["--method", "suffix+suffix"], "names one twice"),
    (["--method", "+"], "method '+' has a '+' too many; write one of auto, draft"),
    (["--method", "plain+suffix"], "method 'plain' drafts nothing, so 'plain+suffix' joins nothing with it; leave it"),
    (["--method", "suffix+draft+plain"], "method 'plain' drafts nothing"),
    (["--method", "plain+"], "method 'plain+' has a '+' too many"),
    (["--method", "+plain"], "method '+plain' has a '+' too many"),
    (["--method", "suffix++draft"], "method 'suffix++draft' has a '+' too many"),
    (["--method", " "], "method is empty; write one of auto, draft"),
    (["--width", "65"], "width must be at most 64 here, not 65"),
    (["--draft-tokens", "64"], "draft-tokens must be at most 63 at a width of 64, not 64"),
    (["--width", "4", "--draft-tokens", "4"], "draft-tokens must be at most 3 at a width of 4, not 4"),
    (["--method", "lookahead", "--lookahead", "40,4,40"], "lookahead 40,4,40 needs 240 rows, a step here has 64"),
    (["--tree", "4,2"], "tree needs method draft"),
    (["--draft", ".", "--method", "suffix"], "draft needs method draft"),
    (["--draft-threads", "1"], "draft-provider and draft-threads need method draft or eagle or medusa, not 'auto'"),
    (["--draft-provider", "cpu", "--method", "suffix"], "need method draft or eagle or medusa, not 'suffix'"),
    (["--draft-confidence", "0.5", "--method", "suffix+lookahead"], "draft-confidence needs method draft"),
    (["--max-ngram", "3", "--method", "suffix"], "max-ngram needs method auto or prompt-lookup, not 'suffix'"),
    (["--draft-tokens", "3", "--method", "lookahead"], "draft-tokens needs method auto or draft"),
    (["--no-lookahead-prompt"], "no-lookahead-prompt needs method lookahead, not 'auto'"),
    (["--pool", "a", "--pool-lookahead"], "pool-lookahead needs method lookahead, not 'auto'"),
    (["--hybrid", "cascade"], "hybrid needs several methods, a+b, not 'auto' alone"),
    (["--method", "suffix", "--off", "suffix"], "off needs several methods, a+b, not 'suffix' alone"),
    (["--typical-alpha", "0.5"], "typical-epsilon and typical-alpha need --accept typical"),
    (["--hybrid", "mix"], "a hybrid is one of merge, cascade"),
    (["--method", "suffix+lookahead", "--off", "draft"], "'draft' is no member of suffix+lookahead"),
    (["--pace", "slow"], "pace must be one of auto, fixed, adaptive"),
    (["--accept", "maybe"], "accept must be one of exact, typical"),
    (["--typical-alpha", "2"], "typical-alpha must be between 0 and 1"),
    (["--lookahead", "4,x,1"], "lookahead must be whole numbers such as 4,4,1, not '4,x,1'"),
    (["--lookahead", "4,4"], "lookahead takes three numbers W,N,G"),
    (["--lookahead", "0,4,4"], "lookahead W,N,G must be at least 1,2,1"),
    (["--tree", "wide"], "there is no tree or file 'wide'"),
    (["--tree", "0,1"], "a tree has between 1 and 64 children"),
    (["--draft-confidence", "1.5"], "draft-confidence must be between 0 and 1"),
    (["--max-ngram", "0"], "n-grams must be 1 <= shortest <= longest"),
    (["--presence-penalty", "9"], "presence-penalty must be between -2 and 2"),
    (["--frequency-penalty", "nan"], "frequency-penalty must be between -2 and 2"),
    (["--logit-bias", "5"], "logit-bias must be ID=BIAS such as 42=-5, not '5'"),
    (["--logit-bias", "5=much"], "logit-bias must be ID=BIAS"),
    (["--logit-bias", "5=999"], "logit-bias of token 5 must be between -100 and 100"),
    (["--bad-words", ""], "bad-words holds an empty word"),
    (["--pool", "my app"], "an application's name for its pool"),
    (["--pool-erase"], "the options of a pool need its name"),
    (["--pool", "a", "--pool-tokens", "0"], "pool-tokens must be at least 1"),
    (["--pool", "a", "--pool-days", "0"], "pool-days must be above 0"),
    (["--temperature", "-1"], "temperature must be between"),
    (["--method", "draft", "--draft-threads", "0"], "draft-threads must be at least 1"),
    (["--method", "draft", "--draft-provider", "npu"], "unknown provider 'npu'"),
]


@pytest.mark.parametrize(("args", "message"), REFUSED)
def test_bad_values_are_refused_before_anything_is_loaded(
    args: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model does not exist: nothing looks for it, exports it or loads it."""
    from spec_edge.runtime import api

    monkeypatch.setattr(api, "open_model", lambda _: pytest.fail("looked for the model"))
    result = run("-m", "nowhere.gguf", *args, "hello")
    assert result.exit_code == 2, result.output
    assert message in result.stderr and "Traceback" not in result.output and result.stdout == ""
    assert len([line for line in result.stderr.splitlines() if line.startswith("Error")]) == 1


def test_a_missing_draft_is_named_before_the_model_is_read(tmp_path: Path) -> None:
    (tmp_path / "bundle.json").write_text("no bundle at all", "utf-8")
    result = run("-m", str(tmp_path), "--method", "draft", "--draft", "nowhere", "hello")
    assert result.exit_code == 2 and "'nowhere' does not exist" in result.stderr


def test_lookahead_that_does_not_fit(tiny: Path) -> None:
    result = run("-m", str(tiny), "--method", "lookahead", "--lookahead", "40,4,40", "hello")
    assert result.exit_code == 2, result.output
    assert "lookahead 40,4,40 needs 240 rows, a step here has" in result.stderr
