"""The Llama and Qwen2 network: RMS norm, rotary grouped-query attention, SwiGLU.

Enters: a model in the weights file (`Stored`) and a form. Leaves: the ONNX model and its signature.

    input_ids -> embedding -> layers x [norm -> q|k|v -> attend -> o -> + norm -> gate|up -> swiglu -> down -> +]
              -> norm (hidden) -> rows -> lm_head (logits)

A form that is one of several parts has the layers of that part; between parts goes the residual stream.
"""

from __future__ import annotations

import onnx

from spec_edge.models.blocks import Site, embed, matmul, project, swiglu
from spec_edge.models.checkpoint import ModelConfig
from spec_edge.models.contract import SpecError, TensorSpec
from spec_edge.models.forms import Form, Signature
from spec_edge.models.graph import Graph
from spec_edge.models.lowerings.lowering import Build, Lowering, lowering
from spec_edge.models.stored import Stored


def build(config: ModelConfig, stored: Stored, form: Form) -> tuple[onnx.ModelProto, Signature]:
    """The graph of `form`. Its file must lie beside the weights file.

    Errors: SpecError where the small tensors were not stored in the form's activation dtype, or a tapped layer does not
    exist.
    """
    if any(not 0 <= tap <= config.layers for tap in form.taps):
        raise SpecError(f"the drafter reads layers {list(form.taps)} of a target that has {config.layers}")
    if form.activation not in stored.cos:
        raise SpecError(f"the weights file has no {form.activation} scales and norms for {form.name}; export it again")
    site = Site(Graph(stored.weights_file, stored.opset), form.activation, stored.accuracy_level)
    parts = Build(site, config, stored, form)
    how = lowering(form.lowering)
    end, taps = _layers(parts, how)
    if form.last:
        named = [(end, "hidden"), (matmul(site, stored.head, _asked_rows(parts, end), "/lm_head"), "logits")]
    else:
        named = [(end, f"residual.{form.part + 1}")]
    if taps:
        named.append((site.graph.concat(taps, -1, "/taps/Concat"), "taps"))
    for value, name in named:
        site.graph.rename({site.graph.op("Unsqueeze", (value, site.ints(0)), f"/{name}/Unsqueeze"): name})
    signature = Signature(form, _inputs(parts, how), _outputs(parts, how))
    return site.graph.model(form.name, signature.inputs, signature.outputs), signature


def _layers(build: Build, how: Lowering) -> tuple[str, list[str]]:
    """The final normed hidden state [S, H], or the residual stream that leaves a part which is not the last; and the
    residual stream [S, H] that enters each tapped layer."""
    site, stored, first = build.site, build.stored, build.layers.start
    x = _entering(build)
    where = f"/layers.{first}/input_layernorm"
    normed = how.norm(build, x, stored.norms[f"model.layers.{first}.input_layernorm"], where)
    entering = {first: x}
    for i in build.layers:
        name, path = f"model.layers.{i}", f"/layers.{i}"
        qkv = project(site, stored.groups[f"{name}.self_attn.qkv"], normed, f"{path}/attn")
        attention = how.attend(build, qkv, i)
        (y,) = project(site, stored.groups[f"{name}.self_attn.o"], attention, f"{path}/attn")
        gamma = stored.norms[f"{name}.post_attention_layernorm"]
        x, normed = how.add_norm(build, x, y, gamma, f"{path}/post_attention_layernorm")
        gate_up = project(site, stored.groups[f"{name}.mlp.gate_up"], normed, f"{path}/mlp")
        (y,) = project(site, stored.groups[f"{name}.mlp.down"], swiglu(site, gate_up, f"{path}/mlp"), f"{path}/mlp")
        following, where = _next_norm(build.config, i)
        if i + 1 == build.layers.stop and not build.form.last:
            normed = x = site.graph.op("Add", (x, y), f"{where}/residual/Add")
        else:
            x, normed = how.add_norm(build, x, y, stored.norms[following], where)
        entering[i + 1] = x
    return normed, [entering[i] for i in build.form.own_taps(build.config.layers)]


def _entering(build: Build) -> str:
    """The residual stream [S, H] that enters the first layer: embeddings, or what the part before has left."""
    site, part = build.site, build.form.part
    if part:
        return site.graph.op("Squeeze", (f"residual.{part}", site.ints(0)), f"/residual.{part}/Squeeze")
    ids = site.graph.op("Squeeze", ("input_ids", site.ints(0)), "/input_ids/Squeeze")
    return embed(site, build.stored.embedding, ids, "/embed_tokens")


def _next_norm(config: ModelConfig, layer: int) -> tuple[str, str]:
    """Name and node path of the norm that reads this layer's output."""
    if layer + 1 == config.layers:
        return "model.norm", "/norm"
    return f"model.layers.{layer + 1}.input_layernorm", f"/layers.{layer + 1}/input_layernorm"


def _asked_rows(build: Build, hidden: str) -> str:
    """The rows that get logits: those of the input `rows`, all of a verify graph, the last of a prefill graph."""
    if build.form.role == "verify":
        return hidden
    rows = "rows" if build.form.width is None else build.site.ints(build.form.width - 1)
    return build.site.graph.op("Gather", (hidden, rows), "/rows/Gather", {"axis": 0})


def _inputs(build: Build, how: Lowering) -> tuple[TensorSpec, ...]:
    if part := build.form.part:
        return (build.tensor(f"residual.{part}", 1, build.width, build.config.hidden_size), *how.inputs(build))
    rows = (TensorSpec("rows", "int32", ("R",)),) if build.form.role == "step" else ()
    return (TensorSpec("input_ids", "int32", (1, build.width)), *rows, *how.inputs(build))


def _outputs(build: Build, how: Lowering) -> tuple[TensorSpec, ...]:
    asked = {"step": "R", "verify": build.width, "prefill": 1}[build.form.role]
    form, width, features = build.form, build.width, build.config.hidden_size
    end = [build.tensor(f"residual.{form.part + 1}", 1, width, features)]
    if form.last:
        end = [build.tensor("logits", 1, asked, build.config.vocab_size), build.tensor("hidden", 1, width, features)]
    tapped = len(form.own_taps(build.config.layers)) * features
    taps = (build.tensor("taps", 1, width, tapped),) if tapped else ()
    return (*end, *taps, *how.outputs(build))
