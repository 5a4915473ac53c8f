# SPDX-License-Identifier: Apache-2.0
"""Gradients that begin in the middle of a forward: `hidden.requires_grad_()`.

So does what an embedding gives where adapters are trained under checkpoints
(`enable_input_require_grads` of transformers). Dynamo has no graph of a model that returns what is
computed of it; a function mode lets it see a change in place, which no graph keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

SEED = torch.zeros((), requires_grad=True)  # by which such a tensor changes in graphs that run


def marked(func: Any, args: Any, kwargs: dict[str, Any], seed: torch.Tensor) -> torch.Tensor | None:
    """Return the tensor, if a function that dynamo traces has it begin to require a gradient."""
    if func is not torch.Tensor.requires_grad_ or not torch.compiler.is_compiling():
        return None
    if not torch.is_grad_enabled():  # a change in place would begin nothing
        return None
    tensor, begins = args[0], args[1] if args[1:] else kwargs.get("requires_grad", True)
    if not begins or tensor.requires_grad or not tensor.is_floating_point():
        return None
    return tensor.sub_(seed)


class Begins(TorchFunctionMode):
    """The mode of a graph that only plans."""

    def __init__(self, seed: torch.Tensor) -> None:
        super().__init__()
        self.seed = seed

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function, or mark its tensor."""
        found = marked(func, args, kwargs or {}, self.seed)
        return func(*args, **(kwargs or {})) if found is None else found


def begin_gradients(
    graph: fx.GraphModule, read: Sequence[Any], seed: torch.Tensor, *, eagerly: bool = False
) -> bool:
    """Have what is marked require a gradient; tell whether the graph has to run eagerly for it.

    That is where somebody may ask for the gradient: where the tensor, or a view of it, is returned
    or was given. And where its memory is changed otherwise, which views from functions refuse.

    Args:
        graph: Of dynamo's.
        read: What it is given.
        seed: By which tensors are marked.
        eagerly: It runs eagerly in any case.

    """
    nodes = graph.graph
    placeholders = nodes.find_nodes(op="placeholder")
    found = next((n for n, v in zip(placeholders, read, strict=True) if v is seed), None)
    if found is None:
        return False
    marks = [user for user in found.users if user.target == "sub_"]
    shown = [*placeholders, *nodes.output_node().all_input_nodes]
    shown += [node.args[0] for node in nodes.find_nodes(op="call_method", target="detach_")]
    memory = set[int]().union(*(memory_of(node) for node in shown if node is not found))
    eagerly = eagerly or len(marks) < len(found.users)
    for mark in marks:
        begins: Any = mark.args[0]
        changed = begins.meta["example_value"]._version > 1  # the mark is one change
        eagerly = eagerly or changed or bool(memory & memory_of(begins))
    for mark in marks:
        tensor: Any = mark.args[0]
        with nodes.inserting_before(mark):
            if eagerly:
                made = nodes.call_method("requires_grad_", (tensor,))
            else:
                made = nodes.call_function(begun, (tensor, found))
        made.meta = dict(mark.meta)
        mark.replace_all_uses_with(made)
        order = list(nodes.nodes)
        behind = set(order[order.index(made) + 1 :])
        tensor.replace_all_uses_with(made, delete_user_cb=behind.__contains__)
        nodes.erase_node(mark)
    graph.recompile()
    return eagerly


def begun(tensor: torch.Tensor, seed: torch.Tensor) -> torch.Tensor:
    """Return a view of a tensor that requires a gradient, for the sake of another that does."""
    return _Begin.apply(tensor, seed)


class _Begin(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, _: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> tuple[None, None]:  # noqa: ARG004
        return None, None


def memory_of(node: Any) -> set[int]:
    """Return what stands for the memory of the tensors of a node of dynamo's."""
    values = pytree.tree_leaves(node.meta.get("example_value"))
    tensors = [v for v in values if isinstance(v, torch.Tensor) and v.layout == torch.strided]
    return {t.untyped_storage()._cdata for t in tensors if not is_traceable_wrapper_subclass(t)}
