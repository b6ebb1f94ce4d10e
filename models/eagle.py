"""EAGLE-1 and EAGLE-2 drafters: one network, they differ in the trees that are drafted.

Enters: a folder's config.json and tensors (`fc`, `layers.0.self_attn.q_proj` ..., no `hidden_norm`). Leaves: an
`OpenEagle`. The embedding in such a file is a frozen copy of the target's, and the head is the target's own: both are
borrowed.
"""

from __future__ import annotations

from spec_edge.models.checkpoint import ModelConfig
from spec_edge.models.contract import SpecError
from spec_edge.models.drafter import Description, DrafterFiles, DrafterKind
from spec_edge.models.eagle_network import EMBED, HEAD, METHOD, Eagle, Options, checked, fits
from spec_edge.models.eagle_open import OpenEagle, biased_names, decoder, own_names, sizes_of, weights_of

OWN_KEYS = frozenset({"bias", "qkv_bias", "attention_bias"})
KIND = "eagle"


def claims(files: DrafterFiles) -> bool:
    """`fc` over two hidden sizes and layers with no `hidden_norm`; without tensors, one decoder layer."""
    names = {name.removeprefix("model.") for name in files.tensors}
    if names:
        normed = any(name.endswith("hidden_norm.weight") for name in names)
        return "fc.weight" in names and "layers.0.self_attn.q_proj.weight" in names and not normed
    other = ("draft_vocab_size", "eagle_config", "speculators_model_type", "medusa_num_heads")
    named = any("Eagle3" in str(a) or "Medusa" in str(a) or "PEagle" in str(a) for a in _architectures(files))
    return files.config.get("num_hidden_layers") == 1 and not named and not any(k in files.config for k in other)


def _architectures(files: DrafterFiles) -> list[object]:
    found = files.config.get("architectures")
    return found if isinstance(found, list) else []


def _decoder(files: DrafterFiles) -> ModelConfig:
    biased = bool(files.config.get("qkv_bias") or files.config.get("attention_bias"))
    return decoder(files.config, OWN_KEYS, biased, files.name)


def _open(files: DrafterFiles, target: ModelConfig) -> OpenEagle:
    config = _decoder(files)
    fits(files, target, config.hidden_size, config.vocab_size)
    found = {name: tensor for name, tensor in own_names(files).items() if name not in (EMBED, HEAD)}
    biased = biased_names(config, found, files.name)
    stated = files.config.get("bias")
    if not found and stated is not False:
        biased |= {"fc"}
    if found and stated is not None and bool(stated) != ("fc" in biased):
        raise SpecError(f"{files.name}: its configuration says bias = {stated}, and its tensors say otherwise")
    net = Eagle(KIND, config, target, (), Options(), weights_of(found), None, False, False, biased)
    if found:
        checked(net, {name: tensor.shape for name, tensor in found.items()}, files.name)
    return OpenEagle(files.name, net)


def _describe(files: DrafterFiles) -> Description:
    dialect = "EAGLE-1 / EAGLE-2: fc, layers.0.*; embedding and lm_head are the target's"
    try:
        config = _decoder(files)
    except SpecError as error:
        return Description(dialect, {}, None, None, problems=(error.message,))
    sizes = sizes_of(config, config.vocab_size, files.tensors)
    return Description(dialect, sizes, config.hidden_size, config.vocab_size, missing=("lm_head: the target's",))


DRAFTER = DrafterKind(KIND, METHOD, claims, _describe, _open)
