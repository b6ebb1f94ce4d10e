"""EAGLE-3 drafters, with the options of EAGLE-3.1.

Enters: a folder's config.json and tensors. Leaves: an `OpenEagle`, or one line that names what is not understood.

| dialect                                         | tensors                  | `eagle_aux_hidden_state_layer_ids`     |
| SafeAILab/EAGLE ("LlamaForCausalLM")            | midlayer.*               | not used: inputs of 2, N // 2, N - 3   |
| SpecForge, ModelOpt ("LlamaForCausalLMEagle3")  | midlayer.*, layers.0.*   | OUTPUTS of these layers: SpecForge     |
|                                                 |                          | takes [1, N // 2 - 1, N - 4] otherwise |
| vLLM ("Eagle3LlamaForCausalLM"), speculators    | layers.0.*, also behind  | INPUTS of these layers, as in `taps`   |
|                                                 | model.                   |                                        |

SGLang, which runs SpecForge's files, adds 1 to each id before it takes inputs; vLLM takes any file's ids as inputs.
We follow whoever trained it. `norm_output` is vLLM's and SGLang's: what is fed back has passed the final norm.
"""

from __future__ import annotations

from dataclasses import replace

from spec_edge.models.checkpoint import ModelConfig
from spec_edge.models.contract import SpecError
from spec_edge.models.drafter import Description, DrafterFiles, DrafterKind
from spec_edge.models.eagle_network import EMBED, HEAD, IDS, METHOD, Eagle, Options, checked, drafted_ids, fits
from spec_edge.models.eagle_open import OpenEagle, biased_names, decoder, own_names, sizes_of, weights_of
from spec_edge.models.family import Json

KIND = "eagle3"
OUTPUTS = ("LlamaForCausalLMEagle3",)
"""Architectures whose layer ids name outputs."""

INPUTS = ("LlamaForCausalLM", "Eagle3LlamaForCausalLM", "Eagle3Speculator", "Eagle3DraftModel")
LAYERS, EAGLE, NESTED = "eagle_aux_hidden_state_layer_ids", "eagle_config", "transformer_layer_config"
FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
OWN_KEYS = frozenset(
    {
        *FLAGS,
        LAYERS,
        EAGLE,
        NESTED,
        "attention_bias",
        "auto_map",
        "draft_vocab_size",
        "embed_requires_grad",
        "modal_type",
        "num_aux_hidden_states",
        "qkv_bias",
        "speculators_config",
        "speculators_model_type",
        "speculators_version",
        "target_hidden_size",
        "target_model_type",
        "target_vocab_size",
    }
)
STATED = {
    "use_aux_hidden_state": True,
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
    "next_layer_regular": True,
    "parallel_draft_step": 1,
}
"""Options of `eagle_config` that describe this network; another value is another network."""


def claims(files: DrafterFiles) -> bool:
    """`hidden_norm` beside the input norm; without tensors, what the configuration calls itself."""
    if files.tensors:
        return any(name.endswith("hidden_norm.weight") for name in files.tensors)
    named = files.config.get("architectures")
    speculator = files.config.get("speculators_model_type")
    eagle = any("Eagle3" in str(a) or "PEagle" in str(a) for a in named) if isinstance(named, list) else False
    return eagle or "draft_vocab_size" in files.config or EAGLE in files.config or speculator in ("eagle3", "peagle")


def _open(files: DrafterFiles, target: ModelConfig) -> OpenEagle:
    config, found = _flat(files), own_names(files)
    layers = _decoder(files, config)
    drafted = _whole(config, "draft_vocab_size", layers.vocab_size, files)
    vocabulary = _whole(config, "target_vocab_size", layers.vocab_size, files)
    fits(files, target, _whole(config, "target_hidden_size", layers.hidden_size, files), vocabulary)
    if drafted > vocabulary:
        raise SpecError(f"{files.name} drafts {drafted} ids, more than its target's {vocabulary}")
    layers = replace(layers, vocab_size=drafted)
    ids = drafted_ids(found, drafted, vocabulary, files.name) if found and drafted < vocabulary else None
    net = Eagle(
        kind=KIND,
        config=layers,
        target=target,
        taps=_taps(files, config, target.layers),
        options=_options(files, config),
        weights=weights_of(found),
        ids=ids,
        own_embedding=EMBED in found or layers.hidden_size != target.hidden_size,
        own_head=HEAD in found or not found or (drafted, layers.hidden_size) != (vocabulary, target.hidden_size),
        biased=biased_names(layers, found, files.name),
    )
    if found:
        checked(net, {name: tensor.shape for name, tensor in found.items()}, files.name)
    return OpenEagle(files.name, net)


def _flat(files: DrafterFiles) -> Json:
    """The configuration with what speculators nests brought up; SpecError for another kind of drafter."""
    config = files.config
    named, speculator = config.get("architectures"), config.get("speculators_model_type", "eagle3")
    if isinstance(named, list) and any(a not in (*OUTPUTS, *INPUTS) for a in named):
        raise SpecError(
            f"{files.name}: architecture {named} is not supported. Supported: {', '.join(OUTPUTS + INPUTS)}"
        )
    if speculator != "eagle3":
        raise SpecError(f"{files.name}: speculators_model_type '{speculator}' is not supported; eagle3 is")
    nested = config.get(NESTED)
    return {**config, **nested, "architectures": named} if isinstance(nested, dict) else config


def _decoder(files: DrafterFiles, config: Json) -> ModelConfig:
    biased = bool(config.get("qkv_bias", config.get("attention_bias")))
    return decoder(config, OWN_KEYS, biased, files.name)


def _whole(config: Json, key: str, default: int, files: DrafterFiles) -> int:
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise SpecError(f"{files.name}: config.json: '{key}' must be a positive integer, not {value!r}")
    return value


def _eagle_config(config: Json) -> Json:
    found = config.get(EAGLE)
    return found if isinstance(found, dict) else {}


def _options(files: DrafterFiles, config: Json) -> Options:
    """The flags, of the file or of its `eagle_config`. SpecError names one that is not understood or not stated."""
    inner = _eagle_config(config)
    for key in sorted(inner.keys() - {LAYERS, *FLAGS}):
        if inner[key] not in (None, STATED.get(key)):
            raise SpecError(f"{files.name}: eagle_config '{key}' = {str(inner[key])[:60]} is not supported")
    if NESTED in config and "norm_before_residual" not in config:
        raise SpecError(f"{files.name}: config.json has no 'norm_before_residual'; it changes every draft, so state it")
    values = []
    for key in FLAGS:
        value = inner.get(key, config.get(key))
        if value not in (None, False, True):
            raise SpecError(f"{files.name}: config.json: '{key}' must be true or false, not {value!r}")
        values.append(bool(value))
    return Options(values[0], values[2], values[1], values[3])


def _taps(files: DrafterFiles, config: Json, layers: int) -> tuple[int, ...]:
    """Target layers whose inputs are read. SpecError where the target has no such layer."""
    ids = _eagle_config(config).get(LAYERS) or config.get(LAYERS)
    if ids is None or ids == []:
        taps = (2, layers // 2, layers - 3)
    elif isinstance(ids, list) and all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
        named = config.get("architectures")
        shift = int(isinstance(named, list) and any(a in OUTPUTS for a in named))
        taps = tuple(i + shift for i in ids)
    else:
        raise SpecError(f"{files.name}: config.json: '{LAYERS}' must be layer numbers, not {ids!r}")
    if any(not 0 <= tap <= layers for tap in taps):
        raise SpecError(f"{files.name} reads what enters layers {list(taps)}; this target has {layers} layers")
    count = _whole(config, "num_aux_hidden_states", len(taps), files)
    if count != len(taps):
        raise SpecError(f"{files.name} reads {count} layers of the target, and {len(taps)} are named: {list(taps)}")
    return taps


def _describe(files: DrafterFiles) -> Description:
    names = [name.removeprefix("model.") for name in files.tensors]
    layer = "midlayer.*" if any(name.startswith("midlayer.") for name in names) else "layers.0.*"
    dialect = f"EAGLE-3: {layer}" if names else "EAGLE-3: a configuration without tensors"
    try:
        config = _flat(files)
        decoder_config = _decoder(files, config)
        options = _options(files, config)
        drafted = _whole(config, "draft_vocab_size", decoder_config.vocab_size, files)
        reads = _whole(config, "target_hidden_size", decoder_config.hidden_size, files)
        vocabulary = _whole(config, "target_vocab_size", decoder_config.vocab_size, files)
    except SpecError as error:
        return Description(dialect, {}, None, None, problems=(error.message,))
    flags = ", ".join(name for name, on in vars(options).items() if on)
    sizes = sizes_of(decoder_config, drafted, files.tensors) | ({"options": flags} if flags else {})
    missing, problems = _lacks(names, drafted, vocabulary)
    return Description(dialect, sizes, reads, vocabulary, missing=missing, problems=problems)


def _lacks(names: list[str], drafted: int, vocabulary: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(what is borrowed, what makes the checkpoint unusable)."""
    if not names:
        return (), ()
    lent = tuple(f"{name.partition('.')[0]}: the target's" for name in (EMBED, HEAD) if name not in names)
    lost = drafted < vocabulary and IDS not in names
    return lent, (f"it drafts {drafted} of {vocabulary} ids and has no '{IDS}' that says which",) if lost else ()


DRAFTER = DrafterKind(KIND, METHOD, claims, _describe, _open)
