"""The profiles: what each says, and that a record which makes no sense cannot be made."""

from __future__ import annotations

import ast
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from spec_edge.models.contract import BadUsage, SpecError
from spec_edge.models.plugins import known
from spec_edge.runtime import cli
from spec_edge.runtime.providers.provider import PACKAGE
from spec_edge.runtime.targets_table import LINE, rows, table
from spec_edge.targets.target import Compiler, Provider, Rules, Target, target, targets

NAMES = ["cpu", "cuda", "directml", "lunar-lake", "meteor-lake", "migraphx", "openvino-cpu", "openvino-gpu"]
NAMES += ["panther-lake", "ryzen-ai", "ryzen-ai-xdna1", "snapdragon-x", "tensorrt-rtx", "webgpu"]
NPUS = [t for t in targets() if t.device == "npu" and not t.refuses]
FACTS: dict[str, Any] = {
    "name": "mine",
    "description": "a test",
    "device": "npu",
    "providers": (Provider("cpu"),),
    "precisions": ("fp16",),
    "half": ("fp16",),
    "proof": "nothing",
}


def test_every_profile_of_the_issue_is_there() -> None:
    assert [t.name for t in targets()] == NAMES
    assert all(target(t.name) is target(t.name.replace("-", "_")) is t for t in targets())
    with pytest.raises(BadUsage, match="Did you mean 'meteor-lake'"):
        target("meteorlake")


@pytest.mark.parametrize("profile", targets(), ids=lambda t: t.name)
def test_a_profile_names_what_exists(profile: Target) -> None:
    """Weight schemes and providers are files of other packages; a profile names them."""
    assert set(profile.precisions) <= set(known("spec_edge.models.schemes", "SCHEME"))
    assert {p.name for p in profile.providers} <= set(known(PACKAGE, "PROVIDER"))
    assert profile.refuses or profile.providers[-1].name == "cpu"
    if profile.spelling:
        assert profile.spelling in known("spec_edge.models.lowerings", "RECIPES")


@pytest.mark.parametrize("profile", NPUS, ids=lambda t: t.name)
def test_npu_graphs_are_static_and_few(profile: Target) -> None:
    """A compiled graph holds the weights: at most three a bucket, and two buckets."""
    assert not profile.symbolic and profile.static == "portable" and profile.context == profile.buckets[-1]
    assert len(profile.widths) + 1 <= 3 >= (profile.most_graphs or 99)
    assert len(profile.buckets) <= 2 >= (profile.most_buckets or 99)
    rules = profile.rules
    assert not rules.symbolic and not rules.zero_points and not rules.negative_index and rules.past_multiple == 64
    assert rules.operators is not None


def test_platforms() -> None:
    """The numbers that Intel's and Qualcomm's compilers know the chips by."""
    found = {t.name: dict(t.compiler.arguments) for t in targets() if t.compiler}
    assert found == {
        "meteor-lake": {"NPU_PLATFORM": "3720"},
        "lunar-lake": {"NPU_PLATFORM": "4000"},
        "panther-lake": {"NPU_PLATFORM": "5010"},
        "snapdragon-x": {"soc_model": "60", "htp_arch": "73", "enable_htp_prepare_only": "1"},
    }


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"lowering": "magic"}, "lowering 'magic' is not one of"),
        ({"static": "magic"}, "lowering 'magic' is not one of"),
        ({"device": "tpu"}, "device 'tpu' is not one of"),
        ({"step": "bfloat16"}, "activation 'bfloat16' is not one of"),
        ({"computes": (("fp16", "float8"),)}, "type 'float8' is not one of"),
        (
            {"computes": (("fp16", "bfloat16"),), "symbolic": True, "step": "float16"},
            "only fixed-width graphs are rounded",
        ),
        ({"providers": ()}, "either has providers or says why it refuses"),
        ({"refuses": "no"}, "either has providers or says why it refuses"),
        ({"providers": (Provider("cpu"), Provider("cpu"))}, "stands twice"),
        ({"compiler": Compiler("qnn", ())}, "provider qnn is not in its chain"),
        ({"proof": ""}, "does not say what is proved"),
        ({"widths": (2, 4)}, "widths must ascend from 1"),
        ({"widths": (1, 8, 4)}, "widths must ascend from 1"),
        ({"buckets": (100,)}, "ascending multiples of 64"),
        ({"buckets": (128, 64)}, "ascending multiples of 64"),
        ({"buckets": ()}, "ascending multiples of 64"),
        ({"buckets": (192,), "rules": Rules(past_multiple=128)}, "ascending multiples of 128"),
        ({"prefill": 0}, "prefill chunk is 0"),
        ({"widths": (1, 4, 8), "most_graphs": 3}, "3 widths and a prefill are more than 3"),
        ({"buckets": (64, 128, 192), "most_buckets": 2}, "has 3 buckets"),
        ({"rules": Rules(widths=(1, 4))}, r"its rules refuse its widths \[8\]"),
        ({"by_precision": (("fp16", Rules(widths=(1, 4))),)}, r"its rules refuse its widths \[8\]"),
        ({"rules": Rules(prefills=(64,))}, "its rules refuse its prefill"),
        ({"precisions": ()}, "has no precision"),
        ({"precisions": ("fp16", "fp16")}, "names one twice"),
        ({"half": ("int8",)}, "has facts of"),
        ({"symbolic": True}, "any-width graphs are float32"),
    ],
)
def test_a_record_that_makes_no_sense(changes: dict[str, Any], said: str) -> None:
    Target(**FACTS)
    with pytest.raises(SpecError, match=said):
        Target(**FACTS | changes)


def test_rules_by_precision() -> None:
    other = Rules(opset=17)
    profile = Target(**FACTS | {"by_precision": (("fp16", other),)})
    assert profile.rules_of("fp16") is other and profile.rules_of("fp32") is profile.rules
    with pytest.raises(dataclasses.FrozenInstanceError):
        profile.name = "x"  # type: ignore[misc]


def test_profiles_import_no_provider() -> None:
    """Nothing but the standard library, the contract and one another."""
    folder = Path(__file__).resolve().parents[2] / "targets"
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            assert not isinstance(node, ast.Import)
            if isinstance(node, ast.ImportFrom):
                own = (node.module or "").startswith(("spec_edge.targets.", "spec_edge.models."))
                assert own or node.module in ("__future__", "dataclasses")


# The command


def test_the_table_names_every_target_and_fits_the_screen() -> None:
    result = CliRunner().invoke(cli.main, ["targets"])
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == NAMES
    assert max(map(len, lines)) <= LINE
    assert "openvino-npu -> openvino-gpu -> cpu" in result.stdout
    assert result.stdout == table(rows()) + "\n"


def test_json() -> None:
    found = json.loads(CliRunner().invoke(cli.main, ["targets", "--json"]).stdout)
    by_name = {row["name"]: row for row in found}
    assert list(by_name) == NAMES
    lake = by_name["meteor-lake"]
    assert (lake["widths"], lake["prefill"], lake["buckets"]) == ([1, 8], 128, [512, 1152])
    assert lake["compiler"] == {"NPU_PLATFORM": "3720"} and lake["providers"][0] == "openvino-npu"
    assert by_name["ryzen-ai-xdna1"]["refuses"].startswith("AMD supports neither")
    assert by_name["ryzen-ai-xdna1"]["widths"] == []
