# SPDX-License-Identifier: Apache-2.0
"""Random joint graphs of forward and backward, for the tests of steps of several micro-batches."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch
from baechi.torch.program import Roles
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

WIDTH, ROWS = 6, 4


@dataclass
class Joint:
    """A joint graph: inputs are weights, a buffer, a batch and the loss's gradient."""

    graph: fx.GraphModule
    weights: int
    backward: set[fx.Node]

    def calls(self) -> list[fx.Node]:
        return [node for node in self.graph.graph.nodes if node.op == "call_function"]

    @property
    def roles(self) -> Roles:
        gradients = range(2, 2 + self.weights)  # behind the loss and the buffer
        return Roles(range(self.weights), gradients, {self.weights: 1})

    def inputs(self, seed: int, parts: int) -> tuple[list[Tensor], list[list[Tensor]]]:
        """Return weights and buffer, and what each part brings."""
        generator = torch.Generator().manual_seed(seed)

        def drawn(*shape: int) -> Tensor:
            return torch.randn(shape, dtype=torch.double, generator=generator)

        shared = [drawn(WIDTH, WIDTH) for _ in range(self.weights)] + [drawn(WIDTH)]
        share = torch.tensor(1 / parts, dtype=torch.double)
        return shared, [[drawn(ROWS, WIDTH), share.clone()] for _ in range(parts)]

    def expected(self, shared: list[Tensor], batches: list[list[Tensor]]) -> list[Any]:
        """Return losses, the buffer and the gradients, part after part on the host."""
        buffer, losses, sums = shared[-1], [], [None] * self.weights
        for batch in batches:
            loss, buffer, *gradients = self.graph(*shared[:-1], buffer, *batch)
            losses.append(loss)
            sums = [g if s is None else s + g for s, g in zip(sums, gradients, strict=True)]
        return [*losses, buffer, *sums]


def _layer(pick: random.Random, x: Tensor, weights: list[Tensor], dropout: bool) -> Tensor:
    w = pick.choice(weights)  # some are tied, some are unread
    kind = pick.randrange(7 if dropout else 6)
    if kind == 0:
        return torch.tanh(x @ w.t())
    if kind == 1:
        return x + torch.nn.functional.layer_norm(x, (WIDTH,), w[0], w[1])
    if kind == 2:
        a, b = (x @ w).chunk(2, -1)
        return torch.cat([a.sigmoid() * b, b], -1)
    if kind == 3:
        return torch.softmax(x @ w.t(), -1) * x
    if kind == 4:
        return torch.nn.functional.gelu(x) - x.mean(0)
    if kind == 5:
        return (x.unsqueeze(1) * w.unsqueeze(0)).sum(-1)
    return torch.ops.aten.native_dropout(x, 0.3, True)[0]


def random_joint(seed: int, *, layers: int = 8, dropout: bool = False) -> Joint:
    """Return a joint graph that the seed decides."""
    pick = random.Random(seed)
    count = pick.randint(2, 4)

    def function(*inputs: Tensor) -> list[Any]:
        weights = [w.detach().requires_grad_() for w in inputs[:count]]
        buffer, x, tangent = inputs[count:]
        new = buffer * 0.9 + x.mean(0) * 0.1
        known = [x + buffer]
        for _ in range(layers):
            known.append(_layer(pick, pick.choice(known[-2:]), weights, dropout))
        loss = sum((y.square().mean() for y in known[-2:]), start=sum(w.sum() for w in weights) * 0)
        gradients = torch.autograd.grad(loss, weights, tangent)
        return [loss.detach(), new, *gradients]

    shapes = [(WIDTH, WIDTH)] * count + [(WIDTH,), (ROWS, WIDTH), ()]
    graph = make_fx(function, tracing_mode="fake")(
        *(torch.ones(shape, dtype=torch.double) for shape in shapes)
    )
    graph.graph.eliminate_dead_code()
    tangent = [node for node in graph.graph.nodes if node.op == "placeholder"][-1]
    backward = {tangent}
    for node in graph.graph.nodes:
        if backward & set(node.all_input_nodes):
            backward.add(node)
    return Joint(graph, count, backward - {tangent})
