"""What is taken for an EAGLE checkpoint, what is said of it, what is refused and with which words."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from spec_edge.export.drafters import attach
from spec_edge.models.contract import SpecError
from spec_edge.models.drafter import DrafterFiles, kind_of
from spec_edge.models.safetensors_file import read_safetensors

Change = Callable[[dict[str, Any], dict[str, torch.Tensor]], None]
IDS = "eagle_aux_hidden_state_layer_ids"


def files(folder: Path) -> DrafterFiles:
    config = json.loads((folder / "config.json").read_text("utf-8"))
    return DrafterFiles(folder.name, config, read_safetensors(folder / "model.safetensors"))


def three(lab: Any, folder: Path, change: Change | None = None, **options: Any) -> Path:
    """A SpecForge drafter of 40 ids, changed before it is written."""
    shape = replace(lab.Shape(taps=(2, 2, 1), drafted=40), **options)
    config = lab.base_config(shape, architectures=["LlamaForCausalLMEagle3"], draft_vocab_size=40)
    state = lab.random_state(shape)
    ids = state.pop("ids")
    known = torch.zeros(lab.vocab, dtype=torch.bool)
    known[ids] = True
    tensors = {lab.midlayer(n): t for n, t in state.items()} | {"d2t": ids - torch.arange(40), "t2d": known}
    if change:
        change(config, tensors)
    full = lab.Shape(taps=(2, 2, 1))
    return lab.write_drafter(folder / "drafter", full, tensors, lab.Dialect(config))


def one(lab: Any, folder: Path, change: Change | None = None, **options: Any) -> Path:
    shape = replace(lab.Shape(own_head=False), **options)
    config, tensors = lab.base_config(shape), lab.random_state(shape)
    del tensors["ids"]
    if change:
        change(config, tensors)
    return lab.write_drafter(folder / "drafter", shape, tensors, lab.Dialect(config))


def setting(**values: Any) -> Change:
    def change(config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        del tensors
        config.update(values)

    return change


def without(*names: str) -> Change:
    def change(config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        del config
        for name in names:
            del tensors[name]

    return change


def tensor(**values: torch.Tensor) -> Change:
    """`__` stands for a dot."""

    def change(config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        del config
        tensors.update({n.replace("__", "."): v for n, v in values.items()})

    return change


REFUSED = [
    ("no map", without("d2t", "t2d"), "drafts 40 of 96 ids and has no tensor 'd2t'"),
    ("map too far", tensor(d2t=torch.full((40,), 90)), "does not map 40 ids to different ones of 96"),
    ("map twice", tensor(d2t=-torch.arange(40)), "does not map 40 ids to different ones of 96"),
    ("map short", tensor(d2t=torch.zeros(39, dtype=torch.int64)), r"has shape \[39\], not \[40\]"),
    ("map of floats", tensor(d2t=torch.zeros(40)), "'d2t' is of type F32; a map is one of I64, I32, BOOL"),
    ("maps differ", tensor(t2d=torch.ones(96, dtype=torch.bool)), "'d2t' and 't2d' do not name the same ids"),
    ("hidden size", setting(target_hidden_size=64), "its hidden size is 64, the target's is 32"),
    ("vocabulary", setting(vocab_size=128), "its vocabulary is 128, the target's is 96"),
    ("too many ids", setting(draft_vocab_size=97), "drafts 97 ids, more than its target's 96"),
    ("taps", setting(**{IDS: [1, 2, 9]}), r"reads what enters layers \[2, 3, 10\]; this target has 4 layers"),
    ("taps that are none", setting(**{IDS: "last"}), f"'{IDS}' must be layer numbers, not 'last'"),
    ("count of taps", setting(num_aux_hidden_states=4), r"reads 4 layers of the target, and 3 are named: \[2, 2, 1\]"),
    ("fc of two taps", setting(**{IDS: [0, 1]}), r"'fc.weight' has shape \[32, 96\].* ask for \[32, 64\]"),
    ("P-EAGLE", setting(architectures=["PEagleDraftModel"]), r"architecture \['PEagleDraftModel'\] is not supported"),
    ("speculator", setting(speculators_model_type="peagle"), "speculators_model_type 'peagle' is not supported"),
    ("no aux", setting(eagle_config={"use_aux_hidden_state": False}), "'use_aux_hidden_state' = False is not supp"),
    ("parallel", setting(eagle_config={"parallel_draft_step": 4}), "'parallel_draft_step' = 4 is not supported"),
    ("strange option", setting(eagle_config={"swirl": 1}), "eagle_config 'swirl' = 1 is not supported"),
    ("strange key", setting(logit_scale=2.0), "config.json: 'logit_scale' = 2.0 is not supported"),
    ("flag", setting(norm_output="yes"), "'norm_output' must be true or false, not 'yes'"),
    ("type", setting(model_type="deepseek_v3"), "layers of type 'deepseek_v3' are not supported"),
    ("rope", setting(rope_scaling={"rope_type": "yarn", "factor": 4.0}), "rope type 'yarn' is not supported"),
    ("window", setting(sliding_window=128, use_sliding_window=True), "'sliding_window' is in use"),
    ("fc_norm", setting(fc_norm=True), "has no tensor 'fc_norm.0.weight'"),
    ("norm_before_fc", setting(norm_before_fc=True), "has no tensor 'input_norm.weight'"),
    ("biases", setting(attention_bias=True), "says that q, k and v have biases, which it does not hold"),
    ("a bias", tensor(midlayer__self_attn__q_proj__bias=torch.zeros(32)), "holds a bias of some of q, k and v only"),
    ("q norm", tensor(midlayer__self_attn__q_norm__weight=torch.ones(16)), "does not read: layers.0.self_attn.q_norm"),
    ("twice", tensor(layers__0__hidden_norm__weight=torch.ones(32)), "'layers.0.hidden_norm.weight' twice"),
    ("layers", setting(num_hidden_layers=2), "has no tensor 'layers.1.self_attn.q_proj.weight'"),
    ("no head", without("lm_head.weight"), "has no tensor 'lm_head.weight'"),
    ("no config", lambda config, _: config.clear(), "drafter has no config.json"),
    ("class", setting(architectures=5), "'architectures' must be a list of names, not 5"),
    ("limit", setting(intermediate_size=10**18), "'intermediate_size' must be below 2147483648"),
    ("narrow", setting(hidden_size=24, target_hidden_size=32), r"'fc.weight' has shape \[32, 96\]"),
]


@pytest.mark.parametrize(("change", "words"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_what_is_not_understood_is_refused_by_name(eagle: Any, tmp_path: Path, change: Change, words: str) -> None:
    path = three(eagle, tmp_path, change)
    with ExitStack() as stack, pytest.raises(SpecError, match=words) as caught:
        attach({"eagle": path}, eagle.target_config(), stack)
    assert "\n" not in caught.value.message and "drafter" in caught.value.message


OLDER = [
    ("bias", setting(bias=True), "says bias = True, and its tensors say otherwise"),
    ("hidden size", setting(hidden_size=64, num_attention_heads=4), "hidden size is 64, the target's is 32"),
    ("vocabulary", setting(vocab_size=95), "its vocabulary is 95, the target's is 96"),
    ("layernorm", tensor(layers__0__input_layernorm__weight=torch.ones(32)), "does not read: layers.0.input_layernorm"),
    ("no config", lambda config, _: config.clear(), "has no config.json"),
    ("class", setting(architectures=5), "'architectures' must be a list of names, not 5"),
    ("fc", tensor(fc__weight=torch.zeros(32, 96)), r"'fc.weight' has shape \[32, 96\].*\[32, 64\]"),
]


@pytest.mark.parametrize(("change", "words"), [r[1:] for r in OLDER], ids=[r[0] for r in OLDER])
def test_eagle1_is_refused_by_name(eagle: Any, tmp_path: Path, change: Change, words: str) -> None:
    path = one(eagle, tmp_path, change)
    with ExitStack() as stack, pytest.raises(SpecError, match=words):
        attach({"eagle": path}, eagle.target_config(), stack)


def test_speculators_must_say_where_the_residual_comes_from(eagle: Any, tmp_path: Path) -> None:
    def nested(config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        del tensors
        inner = {k: v for k, v in config.items() if k not in ("architectures", "draft_vocab_size")}
        config.clear()
        config |= {"architectures": ["Eagle3Speculator"], "draft_vocab_size": 40, "transformer_layer_config": inner}

    with ExitStack() as stack, pytest.raises(SpecError, match="has no 'norm_before_residual'"):
        attach({"eagle": three(eagle, tmp_path, nested)}, eagle.target_config(), stack)


def test_a_target_with_too_few_layers_for_the_default(eagle: Any, tmp_path: Path) -> None:
    with ExitStack() as stack, pytest.raises(SpecError, match=r"enters layers \[2, 1, -1\]; this target has 2 layers"):
        attach({"eagle": three(eagle, tmp_path)}, eagle.target_config(layers=2), stack)


def test_kinds_and_descriptions(eagle: Any, tmp_path: Path) -> None:
    found = files(three(eagle, tmp_path / "three"))
    kind = kind_of(found)
    assert kind is not None and kind.name == "eagle3" and kind.method == "eagle"
    told = kind.describe(found)
    assert told.dialect == "EAGLE-3: midlayer.*" and (told.hidden_size, told.vocab_size) == (32, 96)
    assert told.sizes["drafted ids"] == 40 and told.missing == ("embed_tokens: the target's",) and not told.problems
    lost = files(three(eagle, tmp_path / "lost", without("d2t")))
    assert kind.describe(lost).problems == ("it drafts 40 of 96 ids and has no 'd2t' that says which",)
    odd = files(three(eagle, tmp_path / "odd", setting(architectures=["PEagleDraftModel"])))
    assert kind_of(odd) is kind and "PEagleDraftModel" in kind.describe(odd).problems[0]
    older = files(one(eagle, tmp_path / "one"))
    kind = kind_of(older)
    assert kind is not None and kind.name == "eagle"
    assert kind.describe(older).hidden_size == 32 and "EAGLE-2" in kind.describe(older).dialect


LLAMA8B = {"architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": 4096, "model_type": "llama"}
LLAMA8B |= {"intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 1}
LLAMA8B |= {"rms_norm_eps": 1e-5, "vocab_size": 128256, "max_position_embeddings": 2048, "torch_dtype": "float16"}
LLAMA8B |= {"rope_theta": 500000.0, "pad_token_id": 0, "use_cache": True, "tie_word_embeddings": False}


@pytest.mark.parametrize(
    ("config", "name", "parameters"),
    [
        # fc 4096 x 8192 + attention + MLP + one norm; with a bias of fc where the configuration does not deny it
        ({**LLAMA8B, "bias": False}, "eagle", 4096 * 8192 + 41943040 + 3 * 4096 * 14336 + 4096),
        (LLAMA8B, "eagle", 4096 * 8192 + 41943040 + 3 * 4096 * 14336 + 4096 + 4096),
        # fc 4096 x 12288, q, k and v of 8192, own head of 32000 ids with its map, four norms
        (
            {**LLAMA8B, "draft_vocab_size": 32000},
            "eagle3",
            4096 * 12288 + 41943040 + 8192 * 3072 + 3 * 4096 * 14336 + 4 * 4096 + 32000 * 4096 + 32000,
        ),
    ],
)
def test_published_configs_give_sizes_without_tensors(
    eagle: Any, config: dict[str, Any], name: str, parameters: int
) -> None:
    target = eagle.target_config(
        hidden_size=4096, intermediate_size=14336, layers=32, heads=32, kv_heads=8, head_dim=128, vocab_size=128256
    )
    found = DrafterFiles("EAGLE-8B", config, {})
    kind = kind_of(found)
    assert kind is not None and kind.name == name
    drafter = kind.open(found, target)
    assert drafter.taps == (() if name == "eagle" else (2, 16, 29))
    assert sum(int(np.prod(shape)) for shape in drafter.tensors.values()) == parameters
    assert drafter.cache is not None and (drafter.cache.kv_heads, drafter.cache.head_dim) == (8, 128)


def test_a_copy_of_the_targets_embedding_is_borrowed(eagle: Any, tmp_path: Path) -> None:
    tiny = eagle.tiny()
    table = torch.from_numpy(tiny.weights.dense("model.embed_tokens.weight"))
    rounded = (table * 64).round() / 64
    other = table + 0.1 * torch.randn(table.shape)
    owned = {}
    for name, own in (("same", table), ("rounded", rounded), ("other", other)):
        path = three(eagle, tmp_path / name, tensor(embed_tokens__weight=own))
        bundle = eagle.make_bundle(tmp_path / name / "bundle", tiny, path)
        step = bundle.graphs("eagle", "step")[0]
        owned[name] = "model.embed_tokens" not in step.borrows
    assert owned == {"same": False, "rounded": False, "other": True}
