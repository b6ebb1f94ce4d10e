"""What a model family says about itself, and the tensors of a decoder.

Enters: a family's file (`models/<model_type>.py` with a module attribute `FAMILY`) and the settings of a checkpoint.
Leaves: the tensors that the network reads with their shapes, and their names in GGUF files. A tensor that is
missing, or that nobody reads, is an error: the checkpoint is of a variant whose logits would be wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module

from spec_edge.models.checkpoint import ModelConfig
from spec_edge.models.contract import SpecError
from spec_edge.models.gguf_file import Meta
from spec_edge.models.plugins import known

Json = Mapping[str, object]
Shapes = Mapping[str, tuple[int, ...]]

ROPE_FACTORS = "rope_freqs.weight"
"""GGUF tensor [D/2] that divides the inverse frequencies (Llama 3)."""


@dataclass(frozen=True)
class Family:
    """A model family.

    name              Hugging Face's `model_type`, and GGUF's `general.architecture`
    hf_architectures  accepted values of config.json's `architectures`
    config_from_hf    config.json -> ModelConfig
    config_from_gguf  metadata and tensor shapes (by GGUF name) -> ModelConfig
    permuted_qk       GGUF files hold q/k rows in the interleaved rotary order
    rope_factors      GGUF files may hold the tensor `ROPE_FACTORS`
    """

    name: str
    hf_architectures: tuple[str, ...]
    config_from_hf: Callable[[Json], ModelConfig]
    config_from_gguf: Callable[[Meta, Shapes], ModelConfig]
    permuted_qk: bool
    rope_factors: bool


def family(name: str, where: str) -> Family:
    """The family in `models/<name>.py`; SpecError naming the supported ones."""
    names = known("spec_edge.models", "FAMILY")
    if name.replace("_", "-") not in names:
        raise SpecError(f"{where}: architecture '{name}' is not supported. Supported: {', '.join(names)}")
    found: Family = import_module(f"spec_edge.models.{name.replace('-', '_')}").FAMILY
    return found


_LAYER_STEMS = {
    "blk.{}.attn_norm": "model.layers.{}.input_layernorm",
    "blk.{}.attn_q": "model.layers.{}.self_attn.q_proj",
    "blk.{}.attn_k": "model.layers.{}.self_attn.k_proj",
    "blk.{}.attn_v": "model.layers.{}.self_attn.v_proj",
    "blk.{}.attn_output": "model.layers.{}.self_attn.o_proj",
    "blk.{}.ffn_norm": "model.layers.{}.post_attention_layernorm",
    "blk.{}.ffn_gate": "model.layers.{}.mlp.gate_proj",
    "blk.{}.ffn_up": "model.layers.{}.mlp.up_proj",
    "blk.{}.ffn_down": "model.layers.{}.mlp.down_proj",
}
_OUTER_STEMS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def gguf_names(config: ModelConfig) -> dict[str, str]:
    """Hugging Face's tensor name -> GGUF's, for every tensor of `tensor_shapes`."""
    stems = {hf: gguf for gguf, hf in _OUTER_STEMS.items()}
    for i in range(config.layers):
        stems.update({hf.format(i): gguf.format(i) for gguf, hf in _LAYER_STEMS.items()})
    return {name: f"{stems[name.rpartition('.')[0]]}.{name.rpartition('.')[2]}" for name in tensor_shapes(config)}


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor that the network reads (Hugging Face's names) and its shape; no head when it is tied."""
    hidden, inner = config.hidden_size, config.intermediate_size
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (q, hidden),
        "self_attn.k_proj.weight": (kv, hidden),
        "self_attn.v_proj.weight": (kv, hidden),
        "self_attn.o_proj.weight": (hidden, q),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    if config.qkv_bias:
        layer |= {"self_attn.q_proj.bias": (q,), "self_attn.k_proj.bias": (kv,), "self_attn.v_proj.bias": (kv,)}
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    for i in range(config.layers):
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
    shapes["model.norm.weight"] = (hidden,)
    if not config.tied:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    return shapes


def check_tensors(config: ModelConfig, found: Shapes, unread: Iterable[str], where: str) -> None:
    """SpecError unless `found` holds every tensor of the network in its shape, and `unread` is empty."""
    for name, shape in tensor_shapes(config).items():
        if name not in found:
            raise SpecError(f"{where} has no tensor '{name}': it is incomplete or of another architecture")
        if found[name] != shape:
            raise SpecError(
                f"{where}: tensor '{name}' has shape {list(found[name])}, its configuration says {list(shape)}"
            )
    if extra := sorted(unread):
        more = f" and {len(extra) - 4} more" if len(extra) > 4 else ""
        raise SpecError(
            f"{where} holds tensors that the {config.family} network does not read: {', '.join(extra[:4])}{more}. "
            "It is of a variant that is not supported"
        )


def check_config(config: ModelConfig) -> ModelConfig:
    """The config itself; SpecError where its sizes contradict each other or cannot be."""
    limits = {
        "vocabulary": (config.vocab_size, 1 << 22),
        "hidden size": (config.hidden_size, 1 << 20),
        "MLP size": (config.intermediate_size, 1 << 20),
        "number of layers": (config.layers, 1 << 10),
        "number of heads": (config.heads, 1 << 12),
        "number of K/V heads": (config.kv_heads, 1 << 12),
        "head dimension": (config.head_dim, 1 << 12),
        "context": (config.context, 1 << 30),
    }
    for what, (value, most) in limits.items():
        if not 1 <= value <= most:
            raise SpecError(f"the model's {what} is {value}; 1 to {most} are accepted")
    if config.heads % config.kv_heads:
        raise SpecError(f"{config.heads} heads do not divide into {config.kv_heads} K/V heads")
    if config.head_dim % 2:
        raise SpecError(f"head dimension {config.head_dim} is odd; rotary embedding needs an even one")
    return config
