# SPDX-License-Identifier: Apache-2.0
"""Traces a model and an example into a Step, with shapes only. Paper 4.1."""

from __future__ import annotations

import contextlib
import io
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from baechi._core import InputError
from baechi.brief_errors import briefly
from baechi.torch.capture.checkpoints import AGAIN, backward_of, calls_again, twins_of
from baechi.torch.capture.joint import CONSTANT, Joint, joint_of
from baechi.torch.capture.keys import keys_of
from baechi.torch.capture.loss import LossOf, OutputOf, call_arguments
from baechi.torch.capture.step import LOSS, Input, Output, Step
from baechi.torch.private import descriptors


@briefly
def capture(
    model: nn.Module,
    example_inputs: Any,
    loss: Callable[..., torch.Tensor] | None = None,
    targets: Any = None,
    *,
    device: torch.device | str | None = None,
) -> Step:
    """Return the step of a model on an example, without running or allocating anything.

    The model may be anywhere, also on the meta device or on several devices, and is as before
    afterwards. In training mode the step is forward, loss and backward; else, and where gradients
    are off (`torch.no_grad`), the forward alone.

    Args:
        model: Any module.
        example_inputs: A mapping of keyword arguments, a tuple of arguments, or the one argument.
        loss: From the model's output, and `targets` where they are given, to a scalar. None: the
            output's own, else the sum of the means of its tensors.
        targets: What `loss` compares with, of one micro-batch like the example.
        device: Where it is traced as if all were there; None: where the weights are, else the CPU.

    """
    model = getattr(model, "_orig_mod", model)  # of torch.compile
    trained = any(p.requires_grad for p in model.parameters())
    is_training = model.training and torch.is_grad_enabled() and trained
    whole = LossOf(model, loss) if is_training else OutputOf(model, None)
    whole.training = model.training  # modules in it stay as they are
    example = (*call_arguments(example_inputs), targets)
    place = device_of(model) if device is None else torch.device(device)
    try:
        with torch.set_grad_enabled(is_training):
            joint = joint_of(whole, example, place)
    finally:  # dynamo keeps what it traced
        del whole.model
        whole.loss = None
    return _step(model, joint, _places(example), is_training)


def device_of(model: nn.Module) -> torch.device:
    """Return the one device of a model's tensors that can compute; the CPU if there is none."""
    tensors = (*model.parameters(), *model.buffers())
    devices = {t.device for t in tensors if t.device.type not in ("meta", "cpu")}
    return min(devices, key=str) if devices else torch.device("cpu")


def _places(example: tuple[Any, ...]) -> list[str]:
    """Return how a reader would name every leaf of the batch: its key, its position."""
    names = []
    for path, _ in pytree.tree_flatten_with_path(example)[0]:
        steps = [
            str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path
        ]
        kind, inside = int(steps[0]), steps[1:]
        names.append(".".join(["targets", *inside] if kind == 2 else inside))
    return names


def _named(path: str) -> str:
    """Return the name in the model of a weight of the traced module."""
    first, _, rest = path.partition(".")
    return rest if first == "model" else f"{LOSS}.{rest}"


def _step(model: nn.Module, joint: Joint, places: list[str], is_training: bool) -> Step:
    graph = joint.graph.graph
    tied = _tied(model)
    inputs = {n: _input(n.meta["desc"], places) for n in graph.nodes if n.op == "placeholder"}
    weights = dict(model.named_parameters(remove_duplicate=False))
    for node, one in inputs.items():
        if one.kind == "weight" and not one.part:
            inputs[node] = replace(one, beside=bytes_beside(weights.get(one.name)))
    results = [
        (node, _output(one, places, is_training))
        for node, one in zip(graph.output_node().args[0], joint.outputs, strict=True)
        if isinstance(node, fx.Node)
    ]
    results = _join(graph, inputs, results, tied)
    graph.output_node().args = ([node for node, _ in results],)
    for node, one in list(inputs.items()):
        is_tensor = isinstance(node.meta.get("val"), torch.Tensor)
        if not node.users and (not is_tensor or one.name in tied):
            graph.erase_node(node)  # a number that the graph was made for, another name of a weight
            del inputs[node]
    graph.set_codegen(fx.graph.CodeGen())  # a call takes a flat list and gives one
    joint.graph.recompile()
    outputs = tuple(one for _, one in results)
    keys = keys_of(graph, joint.module_of, LOSS)
    if is_training:
        _stand_twice(graph, outputs, keys)
        keys = {node: keys[node] for node in graph.nodes if node in keys}
    given = tuple(inputs.values())
    return Step(joint.graph, given, outputs, keys, tied, is_training, joint.made_by)


def _stand_twice(graph: fx.Graph, outputs: tuple[Output, ...], keys: dict[fx.Node, str]) -> None:
    """Have the calls that checkpoints of the model run again stand twice, and have a key twice."""
    kinds = [one.kind for one in outputs]
    if "gradient" not in kinds:  # runs on shapes see none of reentrant checkpoints
        return
    returned = kinds.index("gradient")
    twins = twins_of(graph, calls_again(graph), backward_of(graph, returned))
    keys |= {twin: f"{keys[node]}@{AGAIN}" for node, twin in twins.items() if node in keys}


def _join(
    graph: fx.Graph,
    inputs: dict[fx.Node, Input],
    results: list[tuple[fx.Node, Output]],
    tied: dict[str, str],
) -> list[tuple[fx.Node, Output]]:
    """Let a tied weight be one input with one gradient; what runs a model takes its names apart."""
    own = {one: node for node, one in inputs.items() if one.kind in ("weight", "buffer")}
    for given, node in own.items():
        first = own.get(replace(given, name=tied.get(given.name, given.name)), node)
        if first is not node:
            node.replace_all_uses_with(first)
    joined: dict[Output, fx.Node] = {}
    for node, one in results:
        result = Output(one.kind, tied.get(one.name, one.name))
        if result in joined and result.kind == "gradient":
            with graph.inserting_before(graph.output_node()):
                both = graph.call_function(torch.ops.aten.add.Tensor, (joined[result], node))
            both.meta = {"val": node.meta["val"], "partitioner_tag": "is_backward"}
            joined[result] = both
        else:
            joined.setdefault(result, node)
    return [(node, one) for one, node in joined.items()]


def _input(desc: Any, places: list[str]) -> Input:
    if isinstance(desc, descriptors.ParamAOTInput):
        return Input("weight", _named(desc.target))
    if isinstance(desc, descriptors.BufferAOTInput) and desc.target.startswith(CONSTANT):
        return Input("constant", desc.target)
    if isinstance(desc, descriptors.BufferAOTInput):
        return Input("buffer", _named(desc.target))
    if isinstance(desc, descriptors.PlainAOTInput):
        return Input("batch", places[desc.idx])
    if isinstance(desc, descriptors.TangentAOTInput):
        return Input("tangent", "loss")
    if isinstance(desc, descriptors.SubclassGetAttrAOTInput):
        whole = _input(desc.base, places)
        return replace(whole, part=f"{whole.part}.{desc.attr}" if whole.part else desc.attr)
    if isinstance(desc, descriptors.ForwardTokenAOTInput | descriptors.BackwardTokenAOTInput):
        return Input("token", "")  # keeps calls with effects in their order
    raise InputError(f"model: its graph has an input that is not known: {desc}")


def _output(desc: Any, places: list[str], is_training: bool) -> Output:
    if isinstance(desc, descriptors.GradAOTOutput):
        of = _input(desc.grad_of, places)
        return Output("gradient" if of.kind == "weight" else "output", of.name)
    if isinstance(desc, descriptors.InputMutationAOTOutput):
        changed = _input(desc.mutated_input, places)
        return Output("batch" if changed.kind == "batch" else "buffer", changed.name)
    if isinstance(desc, descriptors.PlainAOTOutput):
        return Output("loss", "loss") if is_training else Output("output", str(desc.idx))
    if isinstance(desc, descriptors.ForwardTokenAOTOutput | descriptors.BackwardTokenAOTOutput):
        return Output("token", "")
    raise InputError(f"model: its graph has an output that is not known: {desc}")


def _tied(model: nn.Module) -> dict[str, str]:
    first: dict[int, str] = {}
    tied = {}
    for named in (model.named_parameters, model.named_buffers):
        for name, tensor in named(remove_duplicate=False):
            if first.setdefault(id(tensor), name) != name:
                tied[name] = first[id(tensor)]
    return tied


class _Tensors(pickle.Pickler):
    """Finds the tensors that an object refers to, whatever it is made of; modules are not its."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO())
        self.found: list[torch.Tensor] = []

    def persistent_id(self, value: Any) -> str | None:
        """Let tensors and modules stand for themselves."""
        if isinstance(value, torch.Tensor):
            self.found.append(value)
            return "tensor"
        return "module" if isinstance(value, nn.Module) else None


def bytes_beside(weight: torch.Tensor | None) -> int:
    """Return what moves with a weight beside its own memory: nothing, unless its class says how.

    That is what its class keeps in attributes, as scales are.
    """
    if weight is None or type(weight).to is torch.Tensor.to:
        return 0
    tensors = _Tensors()
    with contextlib.suppress(Exception):  # what has no copy may refuse it as it likes
        tensors.dump(vars(weight))
    sizes: dict[int, int] = {}  # views of one memory count once
    for tensor in tensors.found:
        memory = _memory(tensor)
        sizes[memory] = max(sizes.get(memory, 0), tensor.nbytes)
    sizes.pop(_memory(weight), None)
    return sum(sizes.values())


def _memory(tensor: torch.Tensor) -> int:
    has_one = tensor.layout == torch.strided and not is_traceable_wrapper_subclass(tensor)
    return (tensor.untyped_storage().data_ptr() if has_one else 0) or id(tensor)
