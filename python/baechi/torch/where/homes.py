# SPDX-License-Identifier: Apache-2.0
"""The devices of a model's weights and buffers, and moving them there and back. Paper 4.3."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from baechi._core import InputError
from baechi.torch.where.pinned import pin, unpin


class Homes:
    """Where each parameter and buffer of a model lives; `move` and `move_back` bring them there.

    Parameters and buffers keep their identity. Those that share memory share a device. What is
    away is on the host, in pinned memory, and modules run where ``runs_on`` says; other modules run
    where their weights are, or where ``read_on`` has those that are another's, too.
    """

    def __init__(
        self,
        model: nn.Module,
        device_of: Mapping[str, torch.device],
        runs_on: Mapping[str, torch.device] | None = None,
        read_on: Mapping[str, torch.device] | None = None,
    ) -> None:
        self.model = model
        self.device_of = dict(device_of)
        self.runs_on = dict(runs_on or {})  # by the name of what is away
        self._run_on = {**(read_on or {}), **self.runs_on}
        self._before: list[tuple[torch.Tensor, torch.device]] = []

    def of_module(self, module: nn.Module, path: str) -> torch.device | None:
        """Return the device of a module's own weights; None where it has none."""
        for own, _ in own_tensors(module):
            name = f"{path}.{own}" if path else own
            device = self._run_on.get(name, self.device_of.get(name))
            if device is not None:
                return device
        return None

    def move(self) -> None:
        """Bring all weights and buffers to their devices, gradients with them."""
        shared: dict[tuple[int, int], torch.device] = {}
        away: list[torch.Tensor] = []
        wholes = _Wholes(tensor for _, tensor in named_tensors(self.model))
        for name, tensor in [*named_tensors(self.model)]:
            device = self.device_of.get(name)
            if device is None:
                continue
            memory = (id(tensor), 0) if tensor.is_meta else _memory(tensor)
            device = self.device_of[name] = shared.setdefault(memory, device)
            before = tensor.device
            if before != device:
                tensor = self._put(tensor, device, wholes)
                self._before.append((tensor, before))
            if name in self.runs_on:
                away += plain_parts(tensor)
        why = pin(away) if away else None
        if why is not None:
            warnings.warn(
                f"weights on the host are not all in pinned memory: {why}; each of the others is "
                "copied while nothing else is asked for, at about half the rate",
                stacklevel=2,
            )

    def move_back(self) -> None:
        """Bring all weights and buffers to where they were."""
        wholes = _Wholes(tensor for tensor, _ in self._before)
        for tensor, device in self._before:
            if tensor.device != device:
                self._put(tensor, device, wholes)
        self._before.clear()
        if self.runs_on:
            own = (tensor for name, tensor in named_tensors(self.model) if name in self.runs_on)
            unpin(part for tensor in own for part in plain_parts(tensor))

    def _put(self, tensor: torch.Tensor, device: torch.device, wholes: _Wholes) -> torch.Tensor:
        """Bring a tensor to a device; return it, or what stands for it if it wraps others.

        Those, and sparse ones, cannot be given other data, and are swapped as by `Module.to`; where
        PyTorch refers to one weakly, as what traced the model does, that cannot be.
        """
        if not is_traceable_wrapper_subclass(tensor) and tensor.layout == torch.strided:
            put(tensor, device, wholes)
            return tensor
        moved = tensor.detach().to(device)
        if isinstance(tensor, nn.Parameter):
            moved = nn.Parameter(moved, requires_grad=tensor.requires_grad)
        try:
            torch.utils.swap_tensors(tensor, moved)
            return tensor
        except RuntimeError:
            if tensor.requires_grad:
                raise InputError(
                    f"model: a trained weight of type {type(tensor).__name__} cannot be moved: "
                    "place the model before anything refers to it, or freeze it"
                ) from None
        for module in self.model.modules():
            for name, own in [*own_tensors(module)]:
                if own is tensor:
                    setattr(module, name, moved)
        return moved


class _Wholes:
    """Memory that several weights show, which moves once: they show it on its device, too."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        plain = {id(t): t for t in tensors if not (t.is_meta or is_traceable_wrapper_subclass(t))}
        self._memory = {key: _memory(tensor) for key, tensor in plain.items()}
        self._counts = Counter(self._memory.values())
        self._moved: dict[tuple[int, int], torch.Tensor] = {}

    def moved(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Return what a tensor is on a device."""
        memory = self._memory.get(id(tensor), (0, 0))
        if self._counts[memory] < 2 or tensor.layout != torch.strided:
            return tensor.to(device)
        if memory not in self._moved:
            count = tensor.untyped_storage().nbytes()
            whole = tensor.detach().as_strided((0,), (1,), 0).view(torch.uint8)
            self._moved[memory] = whole.as_strided((count,), (1,), 0).to(device)
        whole = self._moved[memory]
        size = len(whole) // tensor.element_size() * tensor.element_size()
        whole = whole[:size].view(tensor.dtype)
        return whole.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


def put(tensor: torch.Tensor, device: torch.device, wholes: _Wholes) -> None:
    """Bring a parameter or buffer, and its gradient, to a device; it stays the same object."""
    with torch.inference_mode(mode=False):  # what is moved within it could not be trained
        gradient = tensor.grad
        tensor.grad = None
        with torch.no_grad():  # as Module.to does, since a class of its own may move more with it
            tensor.data = wholes.moved(tensor, device).data
        if gradient is None:
            return
        if gradient.layout == torch.strided:
            gradient.data = gradient.data.to(device)
            tensor.grad = gradient
        else:
            tensor.grad = gradient.to(device)


def plain_parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the tensors with memory that a tensor consists of: itself, or those that it wraps."""
    if is_traceable_wrapper_subclass(tensor):
        for name in tensor.__tensor_flatten__()[0]:
            yield from plain_parts(getattr(tensor, name))
    else:
        yield tensor


def _memory(tensor: torch.Tensor) -> tuple[int, int]:
    tensor = next(plain_parts(tensor))
    try:
        return tensor.untyped_storage().data_ptr(), tensor.device.index or 0
    except (RuntimeError, NotImplementedError):  # a tensor that wraps others has none of its own
        return id(tensor), 0


def own_tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield a module's own parameters and buffers by name."""
    yield from module.named_parameters(recurse=False, remove_duplicate=False)
    yield from module.named_buffers(recurse=False, remove_duplicate=False)


def named_tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield all parameters and buffers by name; one that has several names with each."""
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)
