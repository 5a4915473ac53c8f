# SPDX-License-Identifier: Apache-2.0
"""Joint graphs of forward, loss and backward, made in the first of three ways that works.

Dynamo's graph is what `torch.compile` runs, too. Where dynamo makes several (a call that it does
not follow), the model's own Python is run once on tensors that have only shapes, on a copy of the
model, so that nothing that it does besides is seen; its calls get the same names. Where values
decide (an index, a size that is computed), one run with them is recorded, if the model has any.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import logging
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from baechi._core import InputError
from baechi.brief_errors import kind_and_line
from baechi.torch.capture.begun import SEED, Begins, begin_gradients
from baechi.torch.capture.keys import NOTE, module_path
from baechi.torch.capture.loss import LossOf, OutputOf
from baechi.torch.capture.recorder import hooked, record
from baechi.torch.capture.shapes import Copies, Shapes, lent
from baechi.torch.private import (
    aot_export_joint_with_descriptors,
    dynamo_graph_capture_for_export,
)

CONSTANT = "constant_"  # how names begin of what a graph reads that is no weight, by its number
_WORDS = ("debug", "info", "warn", "error", "exception", "critical", "log")
_SEVERAL = (torch._VF.lstm, torch._VF.gru, torch._VF.rnn_tanh, torch._VF.rnn_relu)
NO_GRADIENT = (
    "loss: nothing that the model returns requires a gradient, so there is no step to train: give "
    "loss=, from what it returns to a scalar, or call model.eval()"
)


@dataclass(frozen=True)
class Joint:
    """A joint graph, and the module of each node."""

    graph: fx.GraphModule
    module_of: Callable[[fx.Node], str | None]
    made_by: str

    @property
    def outputs(self) -> list[Any]:
        """What each output is: PyTorch's descriptors."""
        return list(self.graph.graph.output_node().meta["desc"])


def flags() -> dict[str, Any]:
    """Return dynamo's settings for graphs whose keys are to agree with those of a Step.

    Methods of loggers are passed over: each would end a graph. Libraries add such methods.
    """
    methods = {f for name, f in vars(logging.Logger).items() if name.startswith(_WORDS)}
    return {
        "allow_rnn": True,
        "allow_unspec_int_on_nn_module": True,
        "ignore_logging_functions": methods,
    }


@contextlib.contextmanager
def for_every_kind() -> Iterator[None]:
    """Trace calls that every kind of device has: those of the CPU, without its own libraries'."""
    libraries = torch.backends.mkldnn
    was = libraries.enabled
    libraries.enabled = False
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        libraries.enabled = was


def _of_loss(error: Exception) -> bool:
    """Whether an error comes from the loss."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code is LossOf.of.__code__ for frame, _ in frames)


def joint_of(whole: nn.Module, example: tuple[Any, ...], device: torch.device) -> Joint:
    """Return the joint graph of a model with its loss, called on an example."""
    failed: Exception | None = None
    ways = [_by_dynamo, _by_shapes]
    has_values = _has_values(whole, example)
    if has_values:
        ways.append(_by_recording)
    for way in ways:
        try:
            with _quietly(whole):
                joint = way(whole, example, device)
                _check_sizes(joint.graph)
                return joint
        except InputError:
            raise
        except Exception as error:
            failed = error if has_values else failed or error
    assert failed is not None  # no way has worked
    said = kind_and_line(failed)
    if has_values:
        if _of_loss(failed):
            name = type(whole.model).__name__
            raise InputError(f"loss: it failed with what {name} returns: {said}") from failed
        raise InputError(f"model: it does not run on the example: {said}") from failed
    raise InputError(
        f"model: its shapes alone do not decide what it does: {said}; give it, and the "
        "example, with values"
    ) from failed


def _check_sizes(graph: fx.GraphModule) -> None:
    for node in graph.graph.nodes:
        for value in pytree.tree_leaves(node.meta.get("val")):
            sizes = value.size() if isinstance(value, torch.Tensor) else ()
            if not all(isinstance(size, int) for size in sizes):
                raise ValueError(f"{node.target} gives a tensor whose size its values decide")


def _has_values(whole: nn.Module, example: tuple[Any, ...]) -> bool:
    weights = [*whole.parameters(), *whole.buffers()]
    given = pytree.tree_leaves(example)
    return not any(isinstance(t, torch.Tensor) and t.is_meta for t in (*weights, *given))


def _beside_weights(whole: nn.Module, example: tuple[Any, ...]) -> tuple[Any, ...]:
    homes = {tensor.device for tensor in (*whole.parameters(), *whole.buffers())}
    if len(homes) != 1:
        return example
    return pytree.tree_map_only(torch.Tensor, lambda t: t.to(*homes), example)


@contextlib.contextmanager
def _quietly(whole: nn.Module) -> Iterator[None]:
    """Leave no state behind, and no warning that is for those who compile.

    The collector of garbage would walk the graph again and again while it grows: of 64 layers it
    took 8 of 34 seconds.
    """
    static = torch._dynamo.config.patch(automatic_dynamic_shapes=False)
    collects = gc.isenabled()
    with warnings.catch_warnings(), torch._dynamo.config.patch(**flags()), static:
        warnings.simplefilter("ignore")
        gc.disable()
        try:
            with contextlib.ExitStack() as stack:
                stack.enter_context(torch.random.fork_rng(devices=[]))
                for device in {t.device for t in whole.parameters()} - {torch.device("cpu")}:
                    if device.type != "meta":
                        fork = torch.random.fork_rng([device.index], device_type=device.type)
                        stack.enter_context(fork)
                yield
        finally:
            if collects:
                gc.enable()
            # Dynamo keeps what it traced among these, with the loss and the model's class.
            there = LossOf.forward.__globals__
            there.update({name: None for name in there if name.startswith("__compiled_fn")})


def _by_dynamo(whole: nn.Module, example: tuple[Any, ...], device: torch.device) -> Joint:
    names = _names(whole)
    shapes = Shapes(device)
    with lent(whole, shapes):
        given = shapes.of_all(example)
        traced = _traced(whole, given, shapes)
        if not isinstance(whole, OutputOf):
            _check_loss(*traced.found)
        with shapes.mode:
            graph = exported(traced, given)
    for module in (traced, *traced.found):  # dynamo keeps what it traced
        for name, _ in list(module.named_children()):
            delattr(module, name)
    return Joint(graph, lambda node: module_path(node, names), "dynamo")


class _Traced(nn.Module):
    """A graph of dynamo's, called as what it is the graph of.

    AOTAutograd puts its own tensors where a module's weights are, which have no attributes. What
    dynamo found in such an attribute, as scales of a quantised weight are, is a constant here.
    """

    def __init__(
        self,
        whole: nn.Module,
        found: fx.GraphModule,
        values: Sequence[Any],
        given: Any,
        shapes: Shapes,
    ) -> None:
        super().__init__()
        for name, child in whole.named_children():
            setattr(self, name, child)
        self.found = (found,)  # no child, which would have the weights twice
        found.graph.set_codegen(fx.graph.CodeGen())  # it is given and gives a flat list
        self._is_training = not isinstance(whole, OutputOf)
        weights = {**dict(self.named_buffers()), **dict(self.named_parameters())}
        names = {id(tensor): name for name, tensor in weights.items()}
        places = {id(leaf): place for place, leaf in enumerate(pytree.tree_leaves(given))}
        self._read: list[tuple[str | None, int | None, Any]] = []  # a name, a place or a value
        for number, value in enumerate(values):
            name, place = names.get(id(value)), places.get(id(value))
            if isinstance(value, torch.Tensor) and name is None and place is None:
                name = f"{CONSTANT}{number}"
                self.register_buffer(name, shapes.of(value))
            self._read.append((name, place, None if name else value))

    def forward(self, *given: Any) -> Any:
        leaves = pytree.tree_leaves(given)
        tensors = dict(self.named_buffers(remove_duplicate=False))
        tensors |= self.named_parameters(remove_duplicate=False)
        values = [
            tensors[name] if name is not None else value if place is None else leaves[place]
            for name, place, value in self._read
        ]
        with fx.traceback.preserve_node_meta():
            results = fx.Interpreter(*self.found).run(*values)
        return results[0] if self._is_training else list(results)


def _traced(whole: nn.Module, given: tuple[Any, ...], shapes: Shapes) -> _Traced:
    """Return dynamo's graph; with a mode, which takes longer, where gradients begin within."""

    def captured() -> tuple[fx.GraphModule, Sequence[Any]]:
        found = dynamo_graph_capture_for_export(whole)(*given)
        return found, found.graph.process_inputs(*given)

    try:
        found, values = captured()
    except Exception as error:
        if "requires_grad_()" not in str(error):
            raise
        whole.mode = mode = Begins(shapes.of(SEED))
        try:
            found, values = captured()
        finally:
            whole.mode = None
        if begin_gradients(found, values, mode.seed):
            raise
    return _Traced(whole, found, values, given, shapes)


class LayersApart(TorchFunctionMode):
    """Recurrent layers with dropout between them run one by one: PyTorch's graphs lose it."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function, or its layers."""
        if func in _SEVERAL and not kwargs:
            packed = not isinstance(args[3], bool)  # rows of all lengths, and how many are as long
            *_, layers, dropout, training, _ = args if packed else args[:-1]
            if training and dropout and layers > 1:
                return _layer_by_layer(func, args, packed)
        return func(*args, **(kwargs or {}))


def _layer_by_layer(func: Any, args: Any, packed: bool) -> tuple[torch.Tensor, ...]:
    before = 2 if packed else 1
    given, (states, weights, biases, layers, dropout, training, both, *rest) = (
        args[:before],
        args[before:],
    )
    alone = isinstance(states, torch.Tensor)  # an LSTM has two
    each = [state.chunk(layers) for state in ([states] if alone else states)]
    count = len(weights) // layers
    ends = []
    for i in range(layers):
        begins = each[0][i] if alone else [chunks[i] for chunks in each]
        own = weights[i * count : (i + 1) * count]
        out, *end = func(*given, begins, own, biases, 1, 0.0, training, both, *rest)
        ends.append(end)
        if i < layers - 1:
            given = (torch.dropout(out, dropout, True), *given[1:])
    return (out, *(torch.cat(parts) for parts in zip(*ends, strict=True)))


def exported(module: nn.Module, given: tuple[Any, ...], **how: bool) -> fx.GraphModule:
    """Return AOTAutograd's joint graph of a module, each of its calls known as the half's it is of.

    What a function does in a backward of its own comes without: only the forward has been marked.
    """
    with contextlib.ExitStack() as stack, LayersApart():
        made = aot_export_joint_with_descriptors(stack, module, given, **how)
    graph: fx.GraphModule = made.graph_module
    halves = [node.meta.get("partitioner_tag") for node in graph.graph.nodes]
    if "is_forward" in halves:
        for node, half in zip(graph.graph.nodes, halves, strict=True):
            if half is None and node.op == "call_function":
                node.meta["partitioner_tag"] = "is_backward"
    return graph


def _by_shapes(whole: nn.Module, example: tuple[Any, ...], device: torch.device) -> Joint:
    shapes = Shapes(device)
    ran, given = _copied(whole, example, shapes)
    with shapes.mode, _annotated(ran):
        graph = exported(ran, given)
    return Joint(graph, lambda node: module_path(node, {}), "a run on shapes")


def _by_recording(whole: nn.Module, example: tuple[Any, ...], device: torch.device) -> Joint:
    example = _beside_weights(whole, example)  # where calls run
    graph = record(*_copied(whole, example, Copies(device)))
    return Joint(graph, lambda node: module_path(node, {}), "a recording of values")


def _copied(
    whole: nn.Module, example: tuple[Any, ...], shapes: Shapes
) -> tuple[nn.Module, tuple[Any, ...]]:
    """Return copies of a model and of an example, with a stand-in for every tensor."""
    with lent(whole, shapes):
        memo = shapes.memo()
        return copy.deepcopy(whole, memo), shapes.of_example(example, memo)


def _names(whole: nn.Module) -> dict[int, str]:
    """Return the path of every module of the model, by its id."""
    return {id(module): name for name, module in whole.get_submodule("model").named_modules()}


@contextlib.contextmanager
def _annotated(whole: nn.Module) -> Iterator[None]:
    """Note the module on every node that is traced while it runs."""
    names = _names(whole)
    inside: list[contextlib.ExitStack] = []

    def enter(module: nn.Module, _: Any) -> None:
        inside.append(contextlib.ExitStack())
        if id(module) in names:
            inside[-1].enter_context(fx.traceback.annotate({NOTE: names[id(module)]}))

    def leave(*_: Any) -> None:
        inside.pop().close()

    with fx.traceback.preserve_node_meta(), hooked(enter, leave):
        yield


def _check_loss(traced: fx.GraphModule) -> None:
    (results,) = traced.graph.output_node().args
    loss = results[0] if isinstance(results, (list, tuple)) and results else results
    value = loss.meta.get("example_value") if isinstance(loss, fx.Node) else None
    if not isinstance(value, torch.Tensor) or not value.requires_grad:
        raise InputError(NO_GRADIENT)
    if value.numel() != 1:
        raise InputError(f"loss: it is a tensor of shape {tuple(value.shape)}, not a scalar")
