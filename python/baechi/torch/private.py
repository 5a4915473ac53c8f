# SPDX-License-Identifier: Apache-2.0
"""Private names of PyTorch that are needed: all of them, at most ten, each with its reason.

Tests run them on the oldest and the newest version that is supported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed
from torch import nn

# Calls run as they do in C++ programs: kernels of the device itself, and no nodes of autograd.
from torch._C import _AutoDispatchBelowAutograd as BelowAutograd

# Which backward runs: -1, none. What calls a model in one is a checkpoint, which repeats a call.
from torch._C import _current_graph_task_id as graph_task

# Whether the backward that runs may run again: what it reads is freed as it goes, else.
from torch._C._autograd import _get_current_graph_task_keep_graph as keeps_graph

# Frames of our hooks that are not compiled alone: the function mode would be left in another graph.
from torch._dynamo.eval_frame import skip_code

# A model as a graph of dynamo's, without running it: torch.export loses modules of the backward.
from torch._dynamo.functional_export import dynamo_graph_capture_for_export

# What inputs and outputs of a joint graph are; by position they cannot be told. One name.
from torch._functorch._aot_autograd import descriptors

# Forward and backward as one graph whose inputs and outputs are described.
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors

# A graph of kernels as compiled code.
from torch._inductor import standalone_compile

# Tensors with shapes and a device and no memory. Documented under this name, so not one of the ten.
from torch._subclasses.fake_tensor import FakeTensorMode

CALL = "_compiled_call_impl"  # what `nn.Module.compile` sets: the call that a module makes instead


def call_compiled(model: nn.Module, function: Callable[..., Any]) -> None:
    """Have `model(...)` call a function."""
    setattr(model, CALL, function)


def call_uncompiled(model: nn.Module) -> None:
    """Have `model(...)` run its own code again."""
    vars(model).pop(CALL, None)


def group_timeout() -> Any:
    """Return how long those in the first group of processes wait; None where that is unknown."""
    try:
        return torch.distributed.group.WORLD._get_backend(torch.device("cpu")).options._timeout
    except (AttributeError, RuntimeError):
        return None


__all__ = [
    "BelowAutograd",
    "FakeTensorMode",
    "aot_export_joint_with_descriptors",
    "call_compiled",
    "call_uncompiled",
    "descriptors",
    "dynamo_graph_capture_for_export",
    "graph_task",
    "group_timeout",
    "keeps_graph",
    "skip_code",
    "standalone_compile",
]
