# SPDX-License-Identifier: Apache-2.0
"""Private names of PyTorch that baechi.torch uses.

All of them are in this file and its neighbours `_private_*`; `versions` tests each.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils import flop_counter


def version() -> tuple[int, ...]:
    """Return PyTorch's version, major and minor."""
    return tuple(int(part) for part in torch.__version__.split(".")[:2])


pop_function_mode = torch._C._pop_torch_function_stack
push_function_mode = torch._C._push_on_torch_function_stack


def seen_by(package: str) -> bool:
    """Whether function modes of a package see the calls of this thread."""
    modes = _get_current_function_mode_stack()
    return any(type(mode).__module__.partition(".")[0] == package for mode in modes)


def follower() -> str | None:
    """Return what turns the calls of this thread into something else; None where nothing does."""
    if torch._C._get_tracing_state() is not None:
        return "torch.jit.trace"
    if torch._C._functorch.maybe_current_level() is not None:
        return "a transform of torch.func"
    modes = torch._C._TorchDispatchModeKey
    if any(torch._C._get_dispatch_mode(mode) is not None for mode in (modes.FAKE, modes.PROXY)):
        return "torch.export"
    return None


def is_transformed(tensor: torch.Tensor) -> bool:
    """Whether a tensor stands for several, or for a derivative, inside a function of torch.func."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def _untransformed(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor behind one that stands for several, or for a derivative."""
    while is_transformed(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def group_timeout() -> Any:
    """Return how long those in the present group of processes wait; None where that is unknown."""
    try:
        backend = torch.distributed.group.WORLD._get_backend(torch.device("cpu"))
        return backend.options._timeout
    except (AttributeError, RuntimeError):
        return None


def store_of_processes() -> Any:
    """Return where processes leave notes for each other; None where that is unknown."""
    try:
        return torch.distributed.distributed_c10d._get_default_store()
    except (AttributeError, ValueError):
        return None


class on_stream:  # noqa: N801
    """Makes a stream the current one of its device, and that device the current one.

    PyTorch's streams are such contexts themselves, but keep what was before in the stream: 2.9
    cannot enter one that is entered already, and threads find what another thread left.
    """

    __slots__ = ("_before", "_device", "_stream")

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __enter__(self) -> None:
        stream = self._stream
        self._device = torch._C._accelerator_getDeviceIndex()
        self._before = torch._C._accelerator_getStream(stream.device_index)
        torch._C._accelerator_setStream(stream)

    def __exit__(self, *_: object) -> None:
        torch._C._accelerator_setStream(self._before)
        _go_back_to(self._device)


current_device = torch._C._accelerator_getDeviceIndex  # its number
# Back to a device, unless the process has nothing there: CUDA would take memory for it.
_go_back_to = torch._C._accelerator_maybeExchangeDevice


class on_device:  # noqa: N801
    """Makes a device the current one: Triton's kernels, and others of no library, start there."""

    __slots__ = ("_before", "_number")

    def __init__(self, number: int) -> None:
        self._number = number

    def __enter__(self) -> None:
        self._before = torch._C._accelerator_exchangeDevice(self._number)

    def __exit__(self, *_: object) -> None:
        _go_back_to(self._before)


def out_of_memory(error: BaseException) -> bool:
    """Whether a device had too little memory; what CUDA's libraries say has no class of its own."""
    said = ("CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in said)


def is_seeing(mode: TorchFunctionMode) -> bool:
    """Whether a function mode is on in this thread."""
    return mode in _get_current_function_mode_stack()


def has_global_module_hooks() -> bool:
    """Whether there are hooks that run at every call of every module."""
    return bool(nn.modules.module._has_any_global_hook())


def storage_address(tensor: torch.Tensor) -> int:
    """Return what identifies the storage of a tensor while the storage lives."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except NotImplementedError:
        if not is_transformed(tensor):
            raise
        return storage_address(_untransformed(tensor))


def scale_of(scaler: Any) -> torch.Tensor | None:
    """Return the scale of a GradScaler; None until it is first used, or where it is off."""
    scale: torch.Tensor | None = scaler._get_scale_async() if scaler.is_enabled() else None
    return scale


Unscaling = Callable[..., dict[torch.device, torch.Tensor]]  # what it found, by device


def unscaling_of(scaler: Any) -> Unscaling:
    """Return what divides the gradients of an optimizer by the scale, and looks for infinities."""
    known: Unscaling = scaler._unscale_grads_
    return known


def unscale_by(scaler: Any, call: Unscaling) -> None:
    """Have a GradScaler divide gradients so from now on."""
    scaler._unscale_grads_ = call


def version_of(tensor: torch.Tensor) -> int:
    """Return how often a tensor was changed in place; inference tensors do not count."""
    return 0 if tensor.is_inference() else tensor._version


@contextlib.contextmanager
def same_versions(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Have tensors count no changes in place meanwhile: what has no memory has no values either."""
    versions = tuple(version_of(tensor) for tensor in tensors)
    try:
        yield
    finally:
        torch._C._autograd._unsafe_set_version_counter(tuple(tensors), versions)


def as_stored(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor that is conjugated or negated lazily as it lies in memory."""
    if not (tensor.is_conj() or tensor.is_neg()):
        return tensor
    with torch.no_grad():
        stored = tensor.conj() if tensor.is_conj() else tensor
        return torch._neg_view(stored) if stored.is_neg() else stored


def be_lazy(stored: torch.Tensor, *, conj: bool, neg: bool) -> None:
    """Have a tensor conjugated and negated lazily, or not."""
    torch._C._set_conj(stored, conj)
    torch._C._set_neg(stored, neg)


def be_as_lazy(stored: torch.Tensor, tensor: torch.Tensor) -> None:
    """Have a tensor conjugated and negated lazily where another one is."""
    be_lazy(stored, conj=tensor.is_conj(), neg=tensor.is_neg())


def keep_for(tensor: torch.Tensor, stream: torch.Stream) -> None:
    """Have the allocator keep a tensor's memory until a stream is past what it was asked so far.

    `record_stream` of a tensor that is conjugated or negated lazily keeps the memory of a copy, and
    leaks it: PyTorch looks for a result that there is not. Where a tensor stands for several,
    PyTorch 2.9 knows no `record_stream`.
    """
    as_stored(_untransformed(tensor)).record_stream(stream)


def only_autograd_holds(tensor: torch.Tensor) -> bool:
    """Whether an argument of an operator that the engine calls is held by nothing else.

    Then the engine would have added to it in place, were it not watched by a dispatch mode.
    """
    storage = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
    return tensor._base is None and tensor._use_count() <= 4 and storage <= 2


def references(tensor: torch.Tensor) -> tuple[int, int]:
    """Return how many refer to a tensor, and to its storage; all of Python's count as one."""
    storage = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
    return tensor._use_count(), storage - 1  # which Python has just been given


def without_python(call: Any) -> Any:
    """Return an aten operator without the Python around it, anything else as it is."""
    return getattr(call, "_op", call) if isinstance(call, torch._ops.OpOverload) else call


def as_its_parts(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an aten operator that is the same calls of others on every device."""
    return func._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, *args, **kwargs)


class MemoryInside:
    """What runs in a ``with`` block had this much more memory of a device than before and after.

    The device's statistics of peaks begin anew. Where its allocator has none, nothing is seen.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device.index
        self._statistics = getattr(torch._C, "_accelerator_getDeviceStats", None)
        self._before = 0
        self.bytes = 0

    def __enter__(self) -> MemoryInside:
        if self._statistics is None:
            return self
        try:
            torch._C._accelerator_resetPeakStats(self._device)
            self._before = self._statistics(self._device)["allocated_bytes"]["all"]["current"]
        except RuntimeError:  # an allocator of the user's
            self._statistics = None
        return self

    def __exit__(self, *_: object) -> None:
        if self._statistics is not None:
            found = self._statistics(self._device)["allocated_bytes"]["all"]
            self.bytes = found["peak"] - max(found["current"], self._before)


def flop_formulas() -> dict[Any, Any]:
    """Return the functions that count the FLOPs of an aten operator, by overload packet."""
    return flop_counter.flop_registry


def refresh_flat_weights(module: nn.Module) -> None:
    """Make a recurrent module see parameters that were replaced by others."""
    if isinstance(module, nn.RNNBase):
        module._flat_weights = [getattr(module, name, None) for name in module._flat_weights_names]


@contextlib.contextmanager
def without_flat_weights(model: nn.Module) -> Iterator[None]:
    """Have recurrent modules hold no weak references to parameters that are swapped meanwhile."""
    recurrent = [module for module in model.modules() if isinstance(module, nn.RNNBase)]
    for module in recurrent:
        module._flat_weight_refs = []
    try:
        yield
    finally:
        for module in recurrent:
            module._init_flat_weights()


def swap_memory(tensor: torch.Tensor, other: torch.Tensor) -> None:
    """Exchange what two tensors of one class are, but for their attributes.

    `torch.utils.swap_tensors` does so, too, and refuses tensors that weak references are kept of,
    as a recorder does to know them again: they are the same ones behind it.
    """
    torch._C._swap_tensor_impl(tensor, other)


def moves_in_place(tensor: torch.Tensor, device: torch.device) -> bool:
    """Whether `tensor.data` may be replaced by one that lives on `device`."""
    other = torch.empty(0, dtype=tensor.dtype, device=device)
    return bool(torch._has_compatible_shallow_copy_type(tensor, other))


def work_for(device: torch.device, seconds: float) -> Callable[[], None]:
    """Return what keeps the current stream of an accelerator busy for about so long."""
    module = getattr(torch, device.type)
    if hasattr(module, "work"):  # simulated devices

        def work() -> None:
            module.work(seconds, device)

    elif hasattr(module, "_sleep"):  # in cycles of a clock of 1 to 2 GHz

        def work() -> None:
            with module.device(device):
                module._sleep(round(2e9 * seconds))

    else:  # bytes that take so long at 1 TB/s
        idle = torch.empty(round(1e12 * seconds), dtype=torch.uint8, device=device)

        def work() -> None:
            idle.zero_()

    return work
