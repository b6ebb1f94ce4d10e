"""`spec-export --medusa`: drafters inside a bundle; `inspect`; what is refused."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from spec_edge.export import drafter_files, drafters, unpickle
from spec_edge.export.drafter_files import open_files
from spec_edge.export.unpickle import Refused, limit_memory, torch_here
from spec_edge.models.contract import SpecError
from spec_edge.runtime import load
from spec_edge.runtime.bundle import open_bundle


@pytest.fixture(scope="module")
def bundle(bench: Any, tiny_target: Path, heads: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bench.bundle(tiny_target, tmp_path_factory.mktemp("bundle") / "out", "--medusa", heads)


# The bundle


def test_the_bundle_names_its_drafter(bundle: Path, heads: Path) -> None:
    manifest = open_bundle(bundle).manifest
    (fact,) = manifest.drafters
    assert (fact.name, fact.kind, fact.reads, fact.heads, fact.cache, fact.vocabulary) == (
        *("medusa", "medusa", "hidden", 3),
        *(None, None),
    )
    assert fact.source.kind == "safetensors" and fact.source.name == heads.name
    assert fact.source.bytes == (heads / "medusa_lm_head.safetensors").stat().st_size
    graphs = [g for g in manifest.graphs if g.network == "medusa"]
    assert sorted((g.role, g.lowering) for g in graphs) == [("heads", "fused"), ("heads", "portable")]
    assert 0 < fact.bytes < manifest.weights.bytes and manifest.model.taps == ()


def test_the_target_is_the_same_without_its_drafter(
    bench: Any, bundle: Path, tiny_target: Path, tmp_path: Path
) -> None:
    alone = bench.bundle(tiny_target, tmp_path / "alone")
    one, two = ((folder / "weights.bin").read_bytes() for folder in (alone, bundle))
    assert two.startswith(one) and len(two) > len(one)
    for name in ("step-fused.onnx", "verify-portable-s8-p256.onnx"):
        assert (alone / name).read_bytes() == (bundle / name).read_bytes()


def test_memory_is_shown_side_by_side(bench: Any, tiny_target: Path, heads: Path, tmp_path: Path) -> None:
    options = ("--precision", "fp32", "--widths", "2", "--json", "--force")
    result = bench.export(tiny_target, "-o", tmp_path / "o", "--medusa", heads, "--draft", tiny_target, *options)
    assert result.exit_code == 0, result.output
    rows = {row["name"]: row for row in json.loads(result.stdout)["memory"]}
    assert list(rows) == ["target", "medusa", "draft"]
    cache = 2 * 2 * 2 * 16 * 256 * 4
    assert rows["target"]["cache"] == rows["draft"]["cache"] == cache and rows["medusa"]["cache"] == 0
    weights = open_bundle(tmp_path / "o").manifest.weights.bytes
    assert rows["target"]["weights"] + rows["medusa"]["weights"] == weights
    assert rows["draft"]["share"] == pytest.approx(1.0, rel=0.01) and rows["target"]["share"] == 1.0
    own = sum(w.nbytes for w in bench.medusa_tensors().values())
    assert rows["medusa"]["weights"] == pytest.approx(own, rel=0.01)
    assert rows["medusa"]["share"] == pytest.approx(own / (rows["target"]["weights"] + cache), rel=0.01)


@pytest.mark.parametrize("precision", ["int4", "int8", "fp16"])
def test_every_precision(bench: Any, tiny_target: Path, tmp_path: Path, precision: str) -> None:
    """The export's own check against numpy passes; heads without an output matrix use the target's as it is stored."""
    folder = bench.medusa(tmp_path / "b", own=False)
    made = open_bundle(bench.bundle(tiny_target, tmp_path / "out", "--medusa", folder, precision=precision))
    graphs = [g for g in made.manifest.graphs if g.network == "medusa"]
    assert [g.borrows for g in graphs] == [("lm_head",)] * 2
    with load(made.folder, threads=1) as llm:
        # a fixed draft: by its costs so small a target may be faster alone
        answer = llm.generate("hello", chat=False, max_new_tokens=20, method="medusa", draft_tokens=4)
        assert answer.stats.drafted > 0


def test_a_wrong_graph_is_not_published(
    bench: Any, tiny_target: Path, heads: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = drafters._runner

    def wrong(made: Any, graph: Any) -> Any:
        run = real(made, graph)
        return lambda feeds: {name: value[:, ::-1] for name, value in run(feeds).items()}

    monkeypatch.setattr(drafters, "_runner", wrong)
    said = bench.refused(tiny_target, "-o", tmp_path / "out", "--medusa", heads, "--precision", "fp32")
    assert "medusa-heads-fused differs from numpy" in said and list(tmp_path.iterdir()) == []


def test_two_drafters_of_different_layers_are_refused() -> None:
    class Reading:
        def __init__(self, *layers: int) -> None:
            self.drafter = self
            self.taps = layers

    assert drafters.taps([Reading(1, 2), Reading(), Reading(1, 2)]) == (1, 2)  # type: ignore[list-item]
    with pytest.raises(SpecError, match=r"\[1, 2\] and \[3\]"):
        drafters.taps([Reading(1, 2), Reading(3)])  # type: ignore[list-item]


def test_measured_accuracies_shape_the_default_tree(bench: Any, tiny_target: Path, tmp_path: Path) -> None:
    rates = [[0.5, 0.4, 0.3], [0.0, 0, 0], [0.0, 0, 0]]
    config = {"medusa_head_accuracy": rates}
    folder = bench.drafter(tmp_path / "m", bench.medusa_tensors(), config, "medusa_lm_head.safetensors")
    made = open_bundle(bench.bundle(tiny_target, tmp_path / "out", "--medusa", folder))
    assert made.manifest.drafters[0].accuracy == ((0.5, 0.4, 0.3), (0.0, 0.0, 0.0), (0.0, 0.0, 0.0))
    with load(made.folder, threads=1) as llm:
        answer = llm.generate("hello", chat=False, max_new_tokens=30, method="medusa", width=4)
    assert answer.stats.drafted_by_position == (answer.stats.steps - 1,), "three first tokens, no second ones"


@pytest.mark.parametrize("rates", [0.5, [[0.5]], [[0.5], [], [0.1]], [[0.5], ["a"], [0.1]], [[2.0], [0.5], [0.1]]])
def test_accuracies_that_are_none(rates: Any) -> None:
    with pytest.raises(SpecError, match="medusa_head_accuracy"):
        drafters.accuracy(drafters.DrafterFiles("m", {"medusa_head_accuracy": rates}, {}), 3)


# Files


def pickled(folder: Path, tensors: dict[str, Any], file: str = "medusa_lm_head.pt", **options: Any) -> Path:
    folder.mkdir()
    torch.save({name: torch.from_numpy(value) for name, value in tensors.items()}, folder / file, **options)
    return folder


def test_heads_inside_a_model(bench: Any, tmp_path: Path) -> None:
    """Dialect C: one folder is the target and its heads, in shards."""
    folder = bench.target(tmp_path / "whole")
    tensors = bench.medusa_tensors(prefix="medusa_head.")
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    save_file(tensors, folder / "model-2.safetensors")
    index = dict.fromkeys(tensors, "model-2.safetensors")
    with ExitStack() as stack:
        index |= dict.fromkeys(open_files(folder / "model-1.safetensors", stack).tensors, "model-1.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}), "utf-8")
    config = json.loads((folder / "config.json").read_text("utf-8"))
    config |= {"medusa_num_heads": 3, "medusa_num_layers": 1}
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    made = open_bundle(bench.bundle(folder, tmp_path / "out", "--medusa", folder))
    assert made.manifest.drafters[0].heads == 3
    files = json.loads(bench.export("inspect", folder, "--json").stdout)
    assert files["what"] == "medusa" and files["dialect"].startswith("C,")


@pytest.mark.parametrize(("file", "zipped"), [("medusa_lm_head.pt", True), ("pytorch_model.bin", False)])
def test_pickles_hold_the_same_heads(
    bench: Any, bundle: Path, tiny_target: Path, tmp_path: Path, file: str, zipped: bool
) -> None:
    """Read in a child process, in the new and in the old form of torch.save; the bundle differs only in its source."""
    folder = pickled(tmp_path / "p", bench.medusa_tensors(), file, _use_new_zipfile_serialization=zipped)
    with ExitStack() as stack:
        found = open_files(folder, stack)
        assert found.source is not None and found.source.kind == "torch"
        for name, value in bench.medusa_tensors().items():
            np.testing.assert_array_equal(found.tensors[name].dense(), value)
        temporary = next(iter(found.tensors.values())).path
    assert not temporary.exists()
    if zipped:
        made = bench.bundle(tiny_target, tmp_path / "out", "--medusa", folder)
        assert (made / "weights.bin").read_bytes() == (bundle / "weights.bin").read_bytes()


def test_sharded_pickles(bench: Any, tmp_path: Path) -> None:
    tensors = bench.medusa_tensors()
    names = sorted(tensors)
    folder = pickled(tmp_path / "p", {n: tensors[n] for n in names[:4]}, "pytorch_model-1.bin")
    torch.save({n: torch.from_numpy(tensors[n]) for n in names[4:]}, folder / "pytorch_model-2.bin")
    where = {n: f"pytorch_model-{1 + (i >= 4)}.bin" for i, n in enumerate(names)}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": where}), "utf-8")
    with ExitStack() as stack:
        assert open_files(folder, stack).tensors.keys() == tensors.keys()
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": {"a": "../x.bin"}}), "utf-8")
    with ExitStack() as stack, pytest.raises(SpecError, match="names the file"):
        open_files(folder, stack)


class Malicious:
    """Runs a command when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def test_a_malicious_pickle_runs_nothing(bench: Any, tiny_target: Path, tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    torch.save({"0.0.linear.weight": Malicious(tmp_path / "ran")}, tmp_path / "p" / "medusa_lm_head.pt")
    said = bench.refused(tiny_target, "-o", tmp_path / "o", "--medusa", tmp_path / "p")
    assert f"medusa_lm_head.pt is not read: it asks for {os.mkdir.__module__}.mkdir, which a file of weights" in said
    assert "weights_only" not in said
    assert [p.name for p in tmp_path.iterdir()] == ["p"]
    torch.load(tmp_path / "p" / "medusa_lm_head.pt", weights_only=False)
    assert (tmp_path / "ran").is_dir(), "the same file does run its command where nobody takes care"


BAD: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no pickle": (lambda p: p.write_bytes(b"hello"), "is damaged or cut short"),
    "empty": (lambda p: p.write_bytes(b""), "damaged or cut short; download it again"),
    "a list": (lambda p: torch.save([torch.zeros(3)], p), "no state dict"),
    "a number": (lambda p: torch.save({"a": 3}, p), "is no tensor"),
    "a number for a name": (lambda p: torch.save({3: torch.zeros(3)}, p), "is no tensor"),
    "sparse": (lambda p: torch.save({"a": torch.eye(3).to_sparse()}, p), "sparse, quantised or without values"),
    "a bomb": (lambda p: torch.save({"a": torch.zeros(1).expand(1 << 34)}, p), "far more than the file has"),
    "truncated": (lambda p: (torch.save({"a": torch.zeros(999)}, p), os.truncate(p, 900)), "is damaged or cut short"),
    "foreign": (lambda p: torch.save({"a": Path("x")}, p), "asks for pathlib."),
}


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("name", BAD)
def test_a_bad_pickle_is_one_line(tmp_path: Path, name: str) -> None:
    """What the child process says; the parent passes it on (above)."""
    change, message = BAD[name]
    change(tmp_path / "x.pt")
    with pytest.raises(Refused) as caught:
        unpickle.tensors(torch, tmp_path / "x.pt")
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_truncated_file_is_one_line(bench: Any, tiny_target: Path, heads: Path, tmp_path: Path) -> None:
    shutil.copytree(heads, tmp_path / "h")
    path = tmp_path / "h" / "medusa_lm_head.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    assert "is truncated" in bench.refused(tiny_target, "-o", tmp_path / "out", "--medusa", tmp_path / "h")


def test_nothing_finite(bench: Any, tiny_target: Path, tmp_path: Path) -> None:
    tensors = bench.medusa_tensors()
    tensors["1.0.linear.weight"][3, 3] = np.nan
    folder = bench.drafter(tmp_path / "h", tensors, {}, "model.safetensors")
    assert "not a finite number" in bench.refused(tiny_target, "-o", tmp_path / "out", "--medusa", folder)


def test_without_torch_it_says_which_extra(tmp_path: Path, bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = pickled(tmp_path / "p", bench.medusa_tensors())
    command = (
        sys.executable,
        "-c",
        "import sys; sys.modules['torch'] = None; import runpy; sys.argv[:] = sys.argv[2:];"
        "runpy.run_module('spec_edge.export.unpickle', run_name='__main__', alter_sys=True)",
    )
    with ExitStack() as stack, pytest.raises(SpecError, match=r"pip install 'spec-edge\[train\]'") as caught:
        drafter_files.unpickled(folder / "medusa_lm_head.pt", stack, command)
    assert "\n" not in caught.value.message
    monkeypatch.setattr(torch, "__version__", "2.9.1+cpu")
    with pytest.raises(Refused, match="too old"):
        torch_here()


def test_memory_of_the_child_is_bounded() -> None:
    """In a process of its own: the limit stays. Systems without one skip."""
    pytest.importorskip("resource", reason="Windows has no memory limit that a process sets for itself")
    import subprocess

    program = (
        "from spec_edge.export.unpickle import limit_memory; limit_memory(1 << 28)\n"
        "try: bytearray(1 << 30)\n"
        "except MemoryError: print('bounded')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    if sys.platform != "linux" and done.stdout.strip() != "bounded":
        pytest.skip("the limit was set and did not bind: RLIMIT_DATA bounds all of a process's memory on Linux only")
    assert done.stdout.strip() == "bounded", done.stderr
    assert callable(limit_memory)


def test_what_is_no_drafter(bench: Any, tiny_target: Path, heads: Path, tmp_path: Path) -> None:
    out = ("-o", tmp_path / "out")
    assert "there is no file or folder" in bench.refused(tiny_target, *out, "--medusa", tmp_path / "none", code=2)
    (tmp_path / "empty").mkdir()
    assert "holds no weights" in bench.refused(tiny_target, *out, "--medusa", tmp_path / "empty")
    assert "is no drafter that is known" in bench.refused(tiny_target, *out, "--medusa", tiny_target)
    said = bench.refused(tiny_target, *out, "--eagle", heads, code=2)
    assert "holds medusa weights, not eagle: give it with --medusa" in said
    (tmp_path / "x.txt").write_text("x", "utf-8")
    assert "is no checkpoint of a drafter" in bench.refused(tiny_target, *out, "--medusa", tmp_path / "x.txt")
    assert not (tmp_path / "out").exists()


def test_a_bundle_without_heads_says_so(bench: Any, tiny_target: Path, tmp_path: Path) -> None:
    folder = bench.bundle(tiny_target, tmp_path / "plain")
    with load(folder, threads=1) as llm, pytest.raises(SpecError, match="export the model again with --medusa PATH"):
        llm.generate("hello", chat=False, method="medusa")


# inspect


def test_inspect(bench: Any, tiny_target: Path, heads: Path, tmp_path: Path) -> None:
    found = json.loads(bench.export("inspect", heads, "--target", tiny_target, "--json").stdout)
    assert (found["what"], found["hidden_size"], found["vocab_size"], found["fits"]) == ("medusa", 64, 257, "")
    assert found["sizes"]["heads"] == 3 and found["sizes"]["lm_head"] == "one of each head"
    assert found["sizes"]["parameters"] == sum(w.size for w in bench.medusa_tensors().values())
    target = json.loads(bench.export("inspect", tiny_target, "--json").stdout)
    assert target["what"] == "target" and target["sizes"]["layers"] == 2 and target["missing"] == []
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "config.json").write_text(json.dumps({"medusa_num_heads": 4}), "utf-8")
    found = json.loads(bench.export("inspect", alone, "--json").stdout)
    assert found["sizes"]["heads"] == 4 and "weights" in found["missing"][0]
    wide = {n: np.zeros([s * 2 for s in w.shape], np.float32) for n, w in bench.medusa_tensors(own=False).items()}
    folder = bench.drafter(tmp_path / "wide", wide, {}, "medusa_lm_head.safetensors")
    result = bench.export("inspect", folder, "--target", tiny_target)
    text = result.stdout
    assert result.exit_code == 1 and "use:" not in text
    result = bench.export("inspect", folder, "--target", tiny_target, "--json")
    assert result.exit_code == 1 and json.loads(result.stdout)["option"] == ""
    assert "hidden size is 128, the target's is 64" in text and "the target's" in text
    assert "holds no weights" in bench.refused("inspect", tmp_path)
    assert "there is no file or folder" in bench.refused("inspect", tmp_path / "none", code=2)
    (tmp_path / "config.json").write_text('{"model_type": "gpt9"}', "utf-8")
    assert "is no model and no drafter" in bench.refused("inspect", tmp_path)


@pytest.mark.parametrize("given", [(), ("--target",)])
def test_inspect_says_which_weights_it_cannot_read(
    bench: Any, tiny_target: Path, tmp_path: Path, given: tuple[str, ...]
) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "config.json").write_text(json.dumps({"medusa_num_heads": 3}), "utf-8")
    torch.save({"0.0.linear.weight": Malicious(tmp_path / "ran")}, tmp_path / "p" / "pytorch_model.bin")
    result = bench.export("inspect", tmp_path / "p", *given, *([tiny_target] if given else []))
    assert result.exit_code == 1 and "Traceback" not in result.output
    assert "problem: " in result.stdout and "pytorch_model.bin is not read: it asks for" in result.stdout
    assert "use:" not in result.stdout and "it fits" not in result.stdout.replace("that it fits", "")
    assert not (tmp_path / "ran").exists()


def test_the_line_of_use_is_quoted(bench: Any, heads: Path, tmp_path: Path) -> None:
    shutil.copytree(heads, tmp_path / "my heads")
    result = bench.export("inspect", tmp_path / "my heads")
    quote = '"' if os.name == "nt" else "'"
    assert result.exit_code == 0
    assert f"  use: spec-export MODEL --medusa {quote}{tmp_path / 'my heads'}{quote}\n" in result.stdout


@pytest.mark.parametrize("method", ["medusa", "eagle"])
def test_one_path_for_each_method(bench: Any, tiny_target: Path, heads: Path, tmp_path: Path, method: str) -> None:
    build = ("build", tiny_target, "-o", tmp_path / "out")
    assert "not an empty text" in bench.refused(*build, f"--{method}", "", code=2)
    assert "is given 2 times" in bench.refused(*build, f"--{method}", heads, f"--{method}", heads, code=2)
