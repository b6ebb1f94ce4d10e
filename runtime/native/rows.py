"""Operators that give rows: embedding, norms, attention, rows that are asked for, rows side by side."""

from __future__ import annotations

from spec_edge.runtime.native import laws
from spec_edge.runtime.native.mirror import ATTEND, EMBED, GATHER, JOIN, NONE, NORM, ROPE, WIDEST_HEAD
from spec_edge.runtime.native.program import Heads, Rows, Step, View
from spec_edge.runtime.native.state import BLOCK, LANES, Ids, Part, Places, State, TableOffsets
from spec_edge.runtime.onnx_nodes import Node

ATTENTION = frozenset({"num_heads", "kv_num_heads", "do_rotary", "rotary_interleaved"})
"""Whole-number options of attention that mean something here."""


def alias(t: State, node: Node) -> None:
    """Another axis over the same numbers; block sums and outputs know themselves by name."""
    source = node.inputs[0]
    if source in t.values:
        t.values[node.outputs[0]] = t.values[source]


def embed(t: State, node: Node) -> None:
    numbers = node.numbers
    codes, scale = t.constant(node.inputs[0], "uint8"), t.constant(node.inputs[2], "float32")
    if numbers.get("gather_axis", 0) or numbers.get("quantize_axis", 1) != 1 or t.values.get(node.inputs[1]) != Ids():
        raise t.refused("the table is laid out or read another way")
    bits, block, shape = numbers.get("bits", 4), numbers.get("block_size", 128), t.tensors[codes].shape
    if len(shape) != 2 or bits not in (4, 8):
        raise t.refused("the table has another form")
    width = shape[1] * 8 // bits
    buffer = t.floats(width)
    t.values[node.outputs[0]] = View(buffer, 0, width)
    t.program.steps.append(Step(EMBED, [buffer], table=Rows(bits, block, codes, scale)))


def gather(t: State, node: Node) -> None:
    places = t.values.get(node.inputs[1])
    if isinstance(places, Places):
        laws.name_ids(t, node, places)
        return
    if isinstance(t.values.get(node.inputs[0]), Part):
        laws.part(t, node)
        return
    if node.numbers.get("axis", 0):
        raise t.refused("it gathers columns")
    if node.inputs[0] in t.tensors:
        if t.values.get(node.inputs[1]) != Ids():
            raise t.refused("it looks up something else than tokens")
        t.values[node.outputs[0]] = TableOffsets(t.constant(node.inputs[0], "float32"))
        return
    if node.inputs[1] != "rows":
        raise t.refused("it gathers other rows than those that are asked for")
    view = t.whole(node.inputs[0])
    f, q = t.made(node.outputs[0], view.width, asked=True)
    t.program.steps.append(Step(GATHER, [view.buffer, f], [q]))


def norm(t: State, node: Node) -> None:
    view = t.whole(node.inputs[0])
    f, q = t.made(node.outputs[0], view.width)
    _put_norm(t, node, [view.buffer, NONE, NONE, f], q, view.width, node.inputs[1])


def skip_norm(t: State, node: Node) -> None:
    x, y = t.whole(node.inputs[0]), t.whole(node.inputs[1])
    if x.width != y.width:
        raise t.refused("it adds rows of different lengths")
    total = t.floats(x.width)
    t.values[node.outputs[3]] = View(total, 0, x.width)
    f, q = t.made(node.outputs[0], x.width)
    _put_norm(t, node, [x.buffer, y.buffer, total, f], q, x.width, node.inputs[2])


def _put_norm(t: State, node: Node, f: list[int], q: int, width: int, gamma: str) -> None:
    if width % LANES:
        raise t.refused(f"its rows of {width} are no multiple of {LANES}")
    gamma = t.constant(gamma, "float32", width)
    epsilon = node.reals.get("epsilon", 1e-5)
    t.program.steps.append(Step(NORM, f, [q], epsilon=epsilon, gamma=gamma))


def attend(t: State, node: Node) -> None:
    numbers = node.numbers
    heads, kv_heads = numbers.get("num_heads", 0), numbers.get("kv_num_heads", 0)
    layer = node.inputs[3].removeprefix("past_key.")
    places = [f"past_key.{layer}", f"past_value.{layer}", "seqlens_k", "total_len"]
    if (
        list(node.inputs[3:7]) != places
        or list(node.inputs[9:]) != ["position_ids", "bias"]
        or not layer.isdecimal()
        or not layer.isascii()
    ):
        raise t.refused("its cache, positions or mask come from elsewhere")
    views = _queries(t, node, heads, kv_heads)
    dim = views[0].width // max(heads, 1)
    if [v.width for v in views] != [heads * dim, kv_heads * dim, kv_heads * dim] or dim % BLOCK or dim > WIDEST_HEAD:
        raise t.refused(f"heads of {dim} have no kernel")
    if numbers.get("do_rotary", 0) != 1 or numbers.get("rotary_interleaved", 0):
        raise t.refused("it rotates another way")
    if not set(numbers) <= ATTENTION or not set(node.reals) <= {"scale"}:
        raise t.refused("it has options that no kernel knows")
    cos, sin = (t.constant(name, "float32") for name in node.inputs[7:9])
    shape = Heads(int(layer), heads, kv_heads, dim)
    columns = tuple(v.column for v in views)
    rope = Step(ROPE, [v.buffer for v in views], columns=columns, cos=cos, sin=sin, heads=shape)
    f, q = t.made(node.outputs[0], heads * dim)
    scale = node.reals.get("scale", dim**-0.5)
    if not 0 < scale < float("inf"):
        raise t.refused(f"its scale is {scale}")
    attend = Step(ATTEND, [views[0].buffer, f], [q], columns=columns[:1], scale=scale, heads=shape)
    t.program.steps += [rope, attend]


def _queries(t: State, node: Node, heads: int, kv_heads: int) -> list[View]:
    """Queries, keys and values: of one value or three."""
    whole = t.view(node.inputs[0])
    if node.inputs[1] or node.inputs[2]:
        return [whole, t.view(node.inputs[1]), t.view(node.inputs[2])]
    dim, rest = divmod(whole.width, max(heads + 2 * kv_heads, 1))
    if rest:
        raise t.refused("queries, keys and values are not one value of whole heads")
    columns = (whole.column, whole.column + heads * dim, whole.column + (heads + kv_heads) * dim)
    return [View(whole.buffer, c, n * dim) for c, n in zip(columns, (heads, kv_heads, kv_heads), strict=True)]


def concat(t: State, node: Node) -> None:
    if node.numbers.get("axis") not in (-1, 1):
        raise t.refused("it joins rows, not columns")
    views = [t.whole(name) for name in node.inputs]
    buffer = t.floats(sum(v.width for v in views))
    t.values[node.outputs[0]] = View(buffer, 0, t.program.floats[buffer].width)
    column = 0
    for view in views:
        t.program.steps.append(Step(JOIN, [view.buffer, buffer], columns=(column,), width=view.width))
        column += view.width
