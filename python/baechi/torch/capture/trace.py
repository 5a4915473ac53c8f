# SPDX-License-Identifier: Apache-2.0
"""Traces a model and an example into a Step: dynamo, then AOTAutograd, both with shapes only."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx, nn
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree

from baechi._core import InputError
from baechi.torch.capture.keys import keys_of, module_path
from baechi.torch.capture.loss import LossOf, OutputOf, call_arguments
from baechi.torch.capture.shapes import Shapes, lent
from baechi.torch.capture.step import LOSS, Input, Output, Step
from baechi.torch.private import (
    FakeTensorMode,
    aot_export_joint_with_descriptors,
    descriptors,
    dynamo_graph_capture_for_export,
)

_WORDS = ("debug", "info", "warn", "error", "exception", "critical", "log")


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
    afterwards. In training mode the step is forward, loss and backward, else the forward alone.

    Args:
        model: Any module.
        example_inputs: A mapping of keyword arguments, a tuple of arguments, or the one argument.
        loss: From the model's output, and `targets` where they are given, to a scalar. None: the
            output's own, else the sum of the means of its tensors.
        targets: What `loss` compares with, of one micro-batch like the example.
        device: Where it is traced as if all were there; None: where the weights are, else the CPU.

    """
    model = getattr(model, "_orig_mod", model)  # of torch.compile
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    shapes = Shapes(mode, _device_of(model) if device is None else torch.device(device))
    is_training = model.training and any(p.requires_grad for p in model.parameters())
    whole = LossOf(model, loss) if is_training else OutputOf(model)
    whole.train(model.training)
    example = (*call_arguments(example_inputs), targets)
    with lent(model, shapes), _quietly(), torch.set_grad_enabled(is_training):
        given = shapes.of_all(example)
        graph, descriptions = _joint(whole, given, mode)
    return _step(model, graph, descriptions, _places(example), is_training)


def _device_of(model: nn.Module) -> torch.device:
    """Return the one device of a model's tensors that can compute; the CPU if there is none."""
    tensors = (*model.parameters(), *model.buffers())
    devices = {t.device for t in tensors if t.device.type not in ("meta", "cpu")}
    return min(devices, key=str) if devices else torch.device("cpu")


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Leave no state of dynamo's behind, and no warning that is for those who compile."""
    static = torch._dynamo.config.patch(automatic_dynamic_shapes=False)
    with warnings.catch_warnings(), torch._dynamo.config.patch(**flags()), static:
        warnings.simplefilter("ignore")
        yield


def _joint(
    whole: nn.Module, given: tuple[Any, ...], mode: FakeTensorMode
) -> tuple[fx.GraphModule, list[Any]]:
    try:
        with mode:
            traced = dynamo_graph_capture_for_export(whole)(*given)
            if isinstance(whole, LossOf):
                _check_loss(traced)
        with contextlib.ExitStack() as stack, mode:
            joint = aot_export_joint_with_descriptors(stack, traced, given)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"model: it is no single graph: {_first_line(error)}") from error
    graph: fx.GraphModule = joint.graph_module
    return graph, list(graph.graph.output_node().meta["desc"])


def _check_loss(traced: fx.GraphModule) -> None:
    (results,) = traced.graph.output_node().args
    loss = results[0] if isinstance(results, (list, tuple)) and results else results
    value = loss.meta.get("example_value") if isinstance(loss, fx.Node) else None
    if not isinstance(value, torch.Tensor) or not value.requires_grad:
        raise InputError(
            "loss: nothing that the model returns requires a gradient, so there is no step to "
            "train: give loss=, from what it returns to a scalar, or call model.eval()"
        )
    if value.numel() != 1:
        raise InputError(f"loss: it is a tensor of shape {tuple(value.shape)}, not a scalar")


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


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


def _step(
    model: nn.Module,
    graph: fx.GraphModule,
    descriptions: list[Any],
    places: list[str],
    is_training: bool,
) -> Step:
    tied = _tied(model)
    inputs = []
    for node in [node for node in graph.graph.nodes if node.op == "placeholder"]:
        one = _input(node.meta["desc"], places)
        is_tensor = isinstance(node.meta.get("val"), torch.Tensor)
        if node.users or (is_tensor and one.name not in tied):
            inputs.append(one)
        else:  # a number that the graph was made for, another name of a weight
            graph.graph.erase_node(node)
    results = zip(graph.graph.output_node().args[0], descriptions, strict=True)
    given = [
        (node, _output(one, is_training)) for node, one in results if isinstance(node, fx.Node)
    ]
    graph.graph.output_node().args = ([node for node, _ in given],)
    outputs = tuple(one for _, one in given)
    graph.graph.set_codegen(fx.graph.CodeGen())  # a call takes a flat list and gives one
    graph.recompile()
    names = {id(module): name for name, module in model.named_modules()}
    keys = keys_of(graph.graph, lambda node: module_path(node, names), LOSS)
    return Step(graph, tuple(inputs), outputs, keys, tied, is_training)


def _input(desc: Any, places: list[str]) -> Input:
    if isinstance(desc, descriptors.ParamAOTInput):
        return Input("weight", _named(desc.target))
    if isinstance(desc, descriptors.BufferAOTInput):
        return Input("buffer", _named(desc.target))
    if isinstance(desc, descriptors.PlainAOTInput):
        return Input("batch", places[desc.idx])
    if isinstance(desc, descriptors.TangentAOTInput):
        return Input("tangent", "loss")
    raise InputError(f"model: its graph has an input that is not known: {desc}")


def _output(desc: Any, is_training: bool) -> Output:
    if isinstance(desc, descriptors.GradAOTOutput):
        return Output("gradient", _input(desc.grad_of, []).name)
    if isinstance(desc, descriptors.InputMutationAOTOutput):
        return Output("buffer", _input(desc.mutated_input, []).name)
    if isinstance(desc, descriptors.PlainAOTOutput):
        return Output("loss", "loss") if is_training else Output("output", str(desc.idx))
    raise InputError(f"model: its graph has an output that is not known: {desc}")


def _tied(model: nn.Module) -> dict[str, str]:
    first: dict[int, str] = {}
    tied = {}
    for named in (model.named_parameters, model.named_buffers):
        for name, tensor in named(remove_duplicate=False):
            if first.setdefault(id(tensor), name) != name:
                tied[name] = first[id(tensor)]
    return tied
