# SPDX-License-Identifier: Apache-2.0
"""Losses: how a model is called on an example, and what its output is trained for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode


def call_arguments(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return how a model is called: a mapping is keywords, a tuple or list arguments."""
    if isinstance(example, Mapping):
        return (), dict(example)
    if isinstance(example, (tuple, list)):
        return tuple(example), {}
    return (example,), {}


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in nested containers and dataclasses."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (list, tuple, set)):
        for item in value:
            yield from tensors_in(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors_in(getattr(value, field.name, None))


def own_loss(output: Any) -> torch.Tensor:
    """Return the model's own loss, else the sum of the means of what can be trained."""
    loss = getattr(output, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss
    parts = [t for t in tensors_in(output) if t.requires_grad and t.is_floating_point()]
    if len(parts) == 1 and parts[0].dim() == 0:
        return parts[0]
    total = torch.zeros(())
    for number, part in enumerate(parts):
        total = total + part.float().mean() if number else part.float().mean()
    return total


class LossOf(nn.Module):
    """A model and the loss of its output, called as one."""

    def __init__(self, model: nn.Module, loss: Callable[..., torch.Tensor] | None) -> None:
        super().__init__()
        self.model = model
        self.loss = loss
        self.mode: TorchFunctionMode | None = None  # in which the model is called

    def forward(self, args: tuple[Any, ...], kwargs: dict[str, Any], targets: Any) -> Any:
        """Return the loss."""
        if self.mode is None:
            return self.of(self.model(*args, **kwargs), targets)
        with self.mode:
            return self.of(self.model(*args, **kwargs), targets)

    def of(self, output: Any, targets: Any) -> Any:
        """Return the loss of an output."""
        if self.loss is None:
            return own_loss(output)
        return self.loss(output) if targets is None else self.loss(output, targets)


class OutputOf(LossOf):
    """A model whose output is wanted, not a step: its tensors alone."""

    def of(self, output: Any, targets: Any) -> Any:  # noqa: ARG002
        """Return the output's tensors."""
        return list(tensors_in(output))
