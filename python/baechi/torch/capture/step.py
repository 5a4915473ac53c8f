# SPDX-License-Identifier: Apache-2.0
"""Step: one functional graph of forward, loss and backward of one micro-batch."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import fx

from baechi.torch.capture.keys import OUTSIDE
from baechi.torch.capture.loss import tensors_in

LOSS = OUTSIDE


@dataclass(frozen=True)
class Input:
    """What a placeholder of the graph stands for."""

    kind: str  # "weight", "buffer", "batch", "tangent", "constant"; "token": no tensor of anybody's
    name: str  # the path of the weight or buffer, the place of a tensor in the batch
    part: str = ""  # the attribute of a tensor that holds others, as those of quantised weights do
    beside: int = 0  # bytes of what the weight's class keeps beside it, as scales are

    @property
    def operator(self) -> str:
        """What it is called in a graph."""
        return f"{self.name}.{self.part}" if self.part else self.name


@dataclass(frozen=True)
class Output:
    """What a value that the graph returns is."""

    kind: str  # "loss", "output", "gradient", "token"; "buffer", "batch": the new value of one
    name: str  # the path of the weight or buffer, the place of a tensor in the batch


@dataclass(frozen=True)
class Step:
    """A step as one graph of aten calls; every `meta["val"]` has shapes and no memory."""

    graph: fx.GraphModule
    inputs: tuple[Input, ...]  # in the order of the placeholders
    outputs: tuple[Output, ...]  # in the order of what the output node returns
    keys: dict[fx.Node, str]  # of every call
    tied: dict[str, str] = field(default_factory=dict)  # a weight's other names, and its first
    is_training: bool = True
    made_by: str = "dynamo"  # "a run on shapes" or "a recording of values"

    def placeholders(self) -> list[fx.Node]:
        """Return the nodes of the inputs, in their order."""
        return [node for node in self.graph.graph.nodes if node.op == "placeholder"]

    def results(self) -> list[fx.Node]:
        """Return the nodes of the outputs, in their order."""
        return list(self.graph.graph.output_node().args[0])

    def path_of(self, node: fx.Node) -> str:
        """Return the module whose forward or backward a call is part of."""
        return self.keys[node].rsplit(":", 2)[0]

    def __str__(self) -> str:
        """Write the graph, a call a line."""
        given = zip(self.inputs, self.placeholders(), strict=True)
        lines = [f"{one.kind} {one.operator}: {_shape(node)}" for one, node in given]
        lines += [f"{key}: {_shape(node)}" for node, key in self.keys.items()]
        return "\n".join(lines)


def tensors_of(node: fx.Node) -> list[torch.Tensor]:
    """Return the tensors that a node gives, shapes only."""
    return list(tensors_in(node.meta.get("val")))


def bytes_of(node: fx.Node) -> int:
    """Return the bytes of the tensors that a node gives."""
    return sum(int(t.numel()) * t.element_size() for t in tensors_of(node))


def _shape(node: fx.Node) -> str:
    return ", ".join(f"{str(t.dtype)[6:]}{list(t.shape)}" for t in tensors_of(node))
