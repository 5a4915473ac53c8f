# SPDX-License-Identifier: Apache-2.0
"""Recorder of one run: a graph of what a model's kernels did, forward and backward.

It sees what no tracer follows: sizes and branches that values decide, kernels that cannot say the
shape of their result. It runs a copy of the model, so the model stays as it is.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

from baechi._core import InputError
from baechi.torch.capture.keys import NOTE
from baechi.torch.capture.loss import OutputOf, tensors_in
from baechi.torch.private import FakeTensorMode, descriptors


@contextlib.contextmanager
def hooked(enter: Callable[..., None], leave: Callable[..., None]) -> Iterator[None]:
    """Call functions before and after the forward of every module meanwhile."""
    hooks = nn.modules.module
    with contextlib.ExitStack() as stack:
        stack.callback(hooks.register_module_forward_pre_hook(enter).remove)
        stack.callback(hooks.register_module_forward_hook(leave, always_call=True).remove)
        yield


class _Modules:
    """Knows which module runs: by hooks in the forward, by nodes of autograd in the backward."""

    def __init__(self, model: nn.Module) -> None:
        self._names = {id(module): name for name, module in model.named_modules()}
        self._inside: list[tuple[str | None, set[Any]]] = []
        self._of: dict[Any, str | None] = {}  # nodes of autograd
        self.now: str | None = None

    def enter(self, module: nn.Module, given: Any) -> None:
        begins = {t.grad_fn for t in tensors_in(given) if t.grad_fn is not None}
        self._inside.append((self.now, begins))
        self.now = self._names.get(id(module), self.now)

    def leave(self, module: nn.Module, _: Any, output: Any) -> None:
        outer, begins = self._inside.pop()
        if id(module) in self._names:
            for tensor in tensors_in(output):
                for node in behind([tensor.grad_fn], begins):
                    self._of.setdefault(node, self.now)  # else of a module inside
        self.now = outer

    def follow_backward(self, loss: torch.Tensor) -> None:
        """Say of each node of autograd, when it runs, whose it is."""
        for node in list(behind([loss.grad_fn], ())):
            node.register_prehook(functools.partial(self._set, self._of.get(node)))

    def _set(self, path: str | None, _: Any) -> None:
        self.now = path


def behind(first: Iterable[Any], ends: Iterable[Any]) -> Iterator[Any]:
    """Yield the nodes of autograd from some on, up to `ends`."""
    todo, seen = [*first], {None, *ends}
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            yield node
            todo += [follower for follower, _ in node.next_functions]


class _Recording(TorchDispatchMode):
    """Makes a node of every kernel that runs."""

    def __init__(self, graph: fx.Graph, modules: _Modules) -> None:
        super().__init__()
        self._graph, self._modules = graph, modules
        self._nodes: dict[int, fx.Node] = {}
        self._kept: list[torch.Tensor] = []  # so that no id is used twice
        self._shapes = FakeTensorMode(allow_non_fake_inputs=True)
        self.constants: dict[str, torch.Tensor] = {}
        self.is_backward = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(map(is_traceable_wrapper_subclass, pytree.tree_leaves((args, kwargs)))):
            return NotImplemented  # its class makes calls of plain tensors of it
        read = pytree.tree_map_only(torch.Tensor, self.node_of, (args, kwargs))
        out = func(*args, **kwargs)
        node = self._graph.call_function(_functional(func), *read)
        self._note(node, out)
        if isinstance(out, (list, tuple)):
            for part, tensor in enumerate(out):
                if isinstance(tensor, torch.Tensor):
                    getitem = self._graph.call_function(operator.getitem, (node, part))
                    self._note(getitem, tensor)
        return out

    def _note(self, node: fx.Node, out: Any) -> None:
        node.meta["val"] = pytree.tree_map_only(torch.Tensor, self._shape, out)
        if self._modules.now is not None:
            node.meta["custom"] = {NOTE: self._modules.now}
        if self.is_backward:
            node.meta["partitioner_tag"] = "is_backward"
        if isinstance(out, torch.Tensor):
            self.know(out, node)

    def know(self, tensor: torch.Tensor, node: fx.Node) -> None:
        """Say which node gave a tensor."""
        self._nodes[id(tensor)] = node
        self._kept.append(tensor)

    def node_of(self, tensor: torch.Tensor) -> fx.Node:
        """Return the node that gave a tensor, a constant if it was there before and no weight."""
        if id(tensor) not in self._nodes:
            name = f"constant_{len(self._kept)}"
            node = self._graph.create_node("get_attr", name)
            node.meta["val"] = self.constants[name] = self._shape(tensor)
            self.know(tensor, node)
        return self._nodes[id(tensor)]

    def placeholder(self, tensor: torch.Tensor, desc: Any) -> None:
        """Add an input."""
        node = self._graph.placeholder(f"input_{len(self._kept)}")
        node.meta = {"val": self._shape(tensor), "desc": desc}
        self.know(tensor, node)

    def _shape(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout != torch.strided:
            return self._shapes.from_tensor(tensor, static_shapes=True)
        size, stride = tensor.size(), tensor.stride()
        with self._shapes:
            return torch.empty_strided(size, stride, dtype=tensor.dtype, device=tensor.device)


def _plain(tensor: torch.Tensor, desc: Any) -> Iterator[tuple[torch.Tensor, Any]]:
    """Yield a tensor and what it is, or so those that it wraps."""
    if not is_traceable_wrapper_subclass(tensor):
        yield tensor, desc
        return
    for name in tensor.__tensor_flatten__()[0]:
        inner = getattr(tensor, name)
        yield from _plain(inner, descriptors.SubclassGetAttrAOTInput(desc, name))


def _functional(func: Any) -> Any:
    """Return what gives the result of a call in place; the graph is one of values."""
    name = func.name().partition("::")[2].partition(".")[0]
    if not name.endswith("_") or name.endswith("__"):
        return func
    packet = getattr(torch.ops.aten, name[:-1], None)
    return getattr(packet, func._overloadname, func)


def record(whole: nn.Module, given: tuple[Any, ...]) -> fx.GraphModule:
    """Return the graph of one run of a copy of a model."""
    graph = fx.Graph()
    modules = _Modules(whole.get_submodule("model"))
    recording = _Recording(graph, modules)
    weights = list(whole.named_parameters())
    buffers = dict(whole.named_buffers())
    for name, weight in weights:
        for part, desc in _plain(weight, descriptors.ParamAOTInput(name)):
            recording.placeholder(part, desc)
    for name, buffer in buffers.items():
        recording.placeholder(buffer, descriptors.BufferAOTInput(name))
    for place, leaf in enumerate(pytree.tree_leaves(given)):
        if isinstance(leaf, torch.Tensor):
            recording.placeholder(leaf, descriptors.PlainAOTInput(place))
    before = {name: recording.node_of(buffer) for name, buffer in buffers.items()}
    with hooked(modules.enter, modules.leave), recording:
        output = whole(*given)
    results: list[tuple[Any, Any]] = []
    if not isinstance(whole, OutputOf):
        results += _backward(output, weights, recording, modules)
    else:
        results += [(t, descriptors.PlainAOTOutput(i)) for i, t in enumerate(output)]
    found = [(recording.node_of(tensor), desc) for tensor, desc in results]
    for name, buffer in buffers.items():
        if recording.node_of(buffer) is not before[name]:
            kept = descriptors.InputMutationAOTOutput(descriptors.BufferAOTInput(name))
            found.append((recording.node_of(buffer), kept))
    node = graph.output([node for node, _ in found])
    node.meta["desc"] = [desc for _, desc in found]
    graph.eliminate_dead_code()
    return fx.GraphModule(recording.constants, graph)


def _backward(
    loss: Any, weights: list[tuple[str, nn.Parameter]], recording: _Recording, modules: _Modules
) -> list[tuple[Any, Any]]:
    if not isinstance(loss, torch.Tensor) or not loss.requires_grad or loss.numel() != 1:
        raise InputError("loss: it is no scalar that requires a gradient")
    results: list[tuple[Any, Any]] = [(loss, descriptors.PlainAOTOutput(0))]
    trained = [(name, weight) for name, weight in weights if weight.requires_grad]
    tangent = torch.ones_like(loss)
    recording.placeholder(tangent, descriptors.TangentAOTInput(descriptors.PlainAOTOutput(0)))
    modules.follow_backward(loss)
    recording.is_backward = True
    with recording:
        wanted = [weight for _, weight in trained]
        gradients = torch.autograd.grad(loss, wanted, [tangent], allow_unused=True)
    for (name, _), gradient in zip(trained, gradients, strict=True):
        if gradient is not None:
            results.append((gradient, descriptors.GradAOTOutput(descriptors.ParamAOTInput(name))))
    return results
