# SPDX-License-Identifier: Apache-2.0
"""Private names of PyTorch that are needed: all of them, at most ten, each with its reason.

Tests run them on the oldest and the newest version that is supported.
"""

# Calls run as they do in C++ programs: kernels of the device itself, and no nodes of autograd.
from torch._C import _AutoDispatchBelowAutograd as BelowAutograd

# A model as a graph of dynamo's, without running it: torch.export loses modules of the backward.
from torch._dynamo.functional_export import dynamo_graph_capture_for_export

# What inputs and outputs of a joint graph are; by position they cannot be told. One name.
from torch._functorch._aot_autograd import descriptors

# Forward and backward as one graph whose inputs and outputs are described.
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors

# Tensors with shapes and a device and no memory.
from torch._subclasses.fake_tensor import FakeTensorMode

__all__ = [
    "BelowAutograd",
    "FakeTensorMode",
    "aot_export_joint_with_descriptors",
    "descriptors",
    "dynamo_graph_capture_for_export",
]
