# SPDX-License-Identifier: Apache-2.0
"""Keys: names of calls that agree between the graphs which one model gives.

A call is a node that makes memory. Its key is `module.path:name:k`: the module whose forward it is
part of, the operator, and the how manyth of these two it is in the joint graph of forward and
backward. Copies that only change the device are not counted, so that a graph on one device and one
on several agree.
"""

from __future__ import annotations

import functools
import operator
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

_UNMARKED_VIEWS = ("aten::_unsafe_view",)  # views whose schema does not say so
OUTSIDE = "(loss)"  # the path of what runs outside of the model; no module is called so
NOTE = "baechi.module"  # what nodes that no dynamo saw are annotated with
# Behind a key: what adds its last gradients to the others, and what writes its buffers.
SUM, WRITE = "sum", "write"
TANGENT = "tangents_"  # how names of gradients of outputs begin
_MOVES = ("aten::_to_copy", "prims::device_put")


def name_of(node: fx.Node) -> str:
    """Return the operator that a node calls, with its namespace: `aten::mm`."""
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target.name().partition(".")[0]
    return str(getattr(node.target, "__name__", node.target))


def shown_by(node: fx.Node) -> fx.Node | None:
    """Return the argument whose memory a view or a part of a tuple shows; None: of none."""
    if node.op != "call_function":
        return None
    if node.target is operator.getitem:
        return node.args[0] if isinstance(node.args[0], fx.Node) else None
    if not isinstance(node.target, torch._ops.OpOverload):
        return None
    place = _shown_argument(node.target)
    if place is None:
        return None
    position, name = place
    given = node.args[position] if len(node.args) > position else node.kwargs.get(name)
    return given if isinstance(given, fx.Node) else None


@functools.cache
def _shown_argument(target: torch._ops.OpOverload) -> tuple[int, str] | None:
    """Return the place and the name of the argument whose memory an operator's result shows."""
    for position, argument in enumerate(target._schema.arguments):
        alias = argument.alias_info
        marked = alias is not None and not alias.is_write
        if marked or (position == 0 and target.name() in _UNMARKED_VIEWS):
            return position, argument.name
    return None


def is_view(node: fx.Node) -> bool:
    """Whether a node only shows memory that another one made: a view, or a part of a tuple."""
    return shown_by(node) is not None


def base_of(node: fx.Node) -> fx.Node:
    """Return the node that made the memory which a node shows."""
    while (shown := shown_by(node)) is not None:
        node = shown
    return node


def is_move(node: fx.Node) -> bool:
    """Whether a node is a copy that changes the device of a tensor, and at most its strides."""
    if node.op != "call_function" or name_of(node) not in _MOVES:
        return False
    before, after = node.all_input_nodes[0].meta.get("val"), node.meta.get("val")
    if not isinstance(before, torch.Tensor) or not isinstance(after, torch.Tensor):
        return False
    same = before.dtype == after.dtype and before.layout == after.layout
    return same and before.device != after.device


def keeps_strides(move: fx.Node) -> bool:
    """Whether the copy that a move makes is laid out as what it copies."""
    before, after = move.all_input_nodes[0].meta["val"], move.meta["val"]
    return before.layout != torch.strided or before.stride() == after.stride()


def is_call(node: fx.Node) -> bool:
    """Whether a node makes memory by computing: neither a view, nor a move, nor a number."""
    if node.op != "call_function" or is_view(node) or is_move(node):
        return False
    value = node.meta.get("val", ())
    values = value if isinstance(value, (list, tuple)) else [value]
    return "val" not in node.meta or any(isinstance(v, torch.Tensor) for v in values)


def is_random(call: Any) -> bool:
    """Tell whether a call may draw random numbers: a node, or an instruction of a program.

    Attention without dropout draws none.
    """
    target = call.target
    if not isinstance(target, torch._ops.OpOverload):
        return isinstance(target, torch._ops.HigherOrderOperator) or getattr(target, "draws", False)
    if torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    for position, argument in enumerate(target._schema.arguments):
        if argument.name == "dropout_p":
            given = (
                call.args[position] if position < len(call.args) else call.kwargs.get("dropout_p")
            )
            return bool((argument.default_value if given is None else given) != 0)
    return True


def is_tangent(node: fx.Node) -> bool:
    """Tell whether a placeholder of a joint graph is the gradient of an output."""
    return node.name.startswith(TANGENT)


def is_backward(node: fx.Node) -> bool:
    """Whether a node of a joint graph is of its backward."""
    return node.meta.get("partitioner_tag") == "is_backward"


def module_path(node: fx.Node, names_by_id: Mapping[int, str]) -> str | None:
    """Return the innermost known module that a node, or the one whose backward it is, is part of.

    Args:
        node: Of a graph that dynamo made, or AOTAutograd of that.
        names_by_id: The path of every module of the model, by its id.

    """
    noted = node.meta.get("custom", {}).get(NOTE)
    if noted is not None:
        return str(noted)
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    for key in reversed(stack):
        number = str(key).partition("@")[0]  # a second call of a module is "id@1"
        if number.isdecimal() and int(number) in names_by_id:
            return names_by_id[int(number)]
    return None


def outside_of(graph: fx.Graph, names_by_id: Mapping[int, str]) -> str:
    """Return what calls of no module are of in a graph: the model itself, or what called it.

    Where the model is called by what was compiled (a step and its loss), its calls say so.
    """
    for node in graph.nodes:
        for key in node.meta.get("nn_module_stack") or ():
            number = str(key).partition("@")[0]
            if number.isdecimal() and names_by_id.get(int(number)) == "":
                return OUTSIDE
    return ""


def adds_gradients(node: fx.Node) -> bool:
    """Whether a call of a backward adds two gradients of one tensor.

    Autograd's own additions are part of no module; what they carry is of another call.
    """
    if not is_backward(node) or name_of(node) != "aten::add":
        return False
    return len(node.all_input_nodes) == 2 and all(map(is_backward, node.all_input_nodes))


def keys_of(
    graph: fx.Graph, module_of: Callable[[fx.Node], str | None], outside: str = ""
) -> dict[fx.Node, str]:
    """Return the key of every call of a joint graph.

    A sum of gradients has the key, with a plus, of what it adds: of the later of the two that it is
    the first to add up, whatever they were summed with before. So all sums of one tensor's
    gradients together have the same keys in whatever order autograd adds, which copies change.
    What else autograd calls for no module (the gradient of a tensor that was changed in place) is
    of the module whose backward gave it its first gradient.

    Args:
        graph: A joint graph.
        module_of: The module of a node, None: of none.
        outside: What calls of no module are of: the model itself, or what calls it.

    """
    seen: Counter[str] = Counter()
    keys: dict[fx.Node, str] = {}

    def note(node: fx.Node, name: str) -> None:
        keys[node] = f"{name}:{seen[name]}"
        seen[name] += 1

    sums = []
    for node in filter(is_call, graph.nodes):
        if adds_gradients(node):  # what it carries of a module is of any other call
            sums.append(node)
        else:
            path = module_of(node)
            if path is None:
                path = _path_of_reads(node, keys)
            note(node, f"{outside if path is None else path}:{name_of(node).rpartition('::')[2]}")
    place = {node: i for i, node in enumerate(graph.nodes)}
    first: dict[fx.Node, tuple[int, int, fx.Node]] = {}  # of what a sum adds up, by place and part
    for node in sums:
        made = [maker_of(read) for read in node.all_input_nodes]
        added = [first.get(maker, (place[maker], part, maker)) for maker, part in made]
        first[node], (_, part, maker) = sorted(added, key=lambda one: one[:2])
        path, name, number = keys.get(maker, f"{outside}:tangent:0").rsplit(":", 2)
        note(node, f"{path}:{name}.{number}.{part}+" if part else f"{path}:{name}.{number}+")
    return {node: keys[node] for node in graph.nodes if node in keys}


def _path_of_reads(node: fx.Node, keys: Mapping[fx.Node, str]) -> str | None:
    """Return whose backward makes what autograd's own call reads; None: it is of a forward call."""
    if not is_backward(node) or "fwd_nn_module_stack" in node.meta:
        return None
    makers = (maker for maker, _ in map(maker_of, node.all_input_nodes))
    made = (keys[maker] for maker in makers if maker in keys and is_backward(maker))
    return next((key.rsplit(":", 2)[0] for key in made), None)


def maker_of(node: fx.Node) -> tuple[fx.Node, int]:
    """Return what made the memory that a node shows or has a copy of, and which result it is."""
    part = 0
    while True:
        if node.op == "call_function" and node.target is operator.getitem:
            part = int(node.args[1])
        shown = shown_by(node)
        if shown is None and is_move(node):
            shown = node.all_input_nodes[0]
        if shown is None:
            return node, part
        node = shown
