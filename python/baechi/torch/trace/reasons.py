# SPDX-License-Identifier: Apache-2.0
"""Says in one clause why torch.export could not make a graph of a model (for tier 2)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import fx, nn

from baechi.torch.base import _private
from baechi.torch.base.nested import held_tensors
from baechi.torch.trace.call_structure import has_gaps
from baechi.torch.trace.graph import NotExportedError

_DATA = "a turn that its code takes, or a size, is data-dependent"
_SHAPES = "an operator is called whose shapes PyTorch cannot tell without running it"
# By the class of the error, the nearest cause first.
_CLAUSES = {
    "GuardOnDataDependentSymNode": _DATA,
    "PendingUnbackedSymbolNotFound": _DATA,
    "DataDependentOutputException": _DATA,
    "DynamicOutputShapeException": _DATA,
    "UnsupportedOperatorException": _SHAPES,
    "UnsupportedFakeTensorException": _SHAPES,
    "ConstraintViolationError": "its code allows fewer sizes than its inputs have",
    "SpecViolationError": "its graph is none that torch.export vouches for",
    "FakeTensorDeviceMismatchError": "it mixes tensors of several devices",
}


_WITHOUT_SHAPES = re.compile(r"no fake impl registered for <CustomOpDef\((.*?)\)>")


def reason_of(error: Exception, where: str | None, behind: str | None) -> NotExportedError:
    """Return why a model has no graph.

    Args:
        error: What torch.export raised.
        where: The call that failed, if it is known.
        behind: The last call before.

    """
    causes = list(_causes(error))
    for cause in causes:
        if isinstance(cause, NotExportedError):
            return cause
    at = f", in {where!r}" if where else f", behind {behind!r}" if behind else ""
    for cause in causes:
        clause = _CLAUSES.get(type(cause).__name__)
        if clause is not None:
            return NotExportedError(f"{clause}{_operator(cause)}{at}")
    unknown = next(filter(None, map(_WITHOUT_SHAPES.search, map(str, causes))), None)
    if unknown is not None:
        return NotExportedError(
            f"{_SHAPES} ({unknown.group(1)}){at}; `torch.library.register_fake` tells it"
        )
    return NotExportedError(f"tracing it fails{at}: {_first_line(error)}")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _operator(error: BaseException) -> str:
    """Return the aten operator that an error names."""
    found = re.search(r"\b(?:aten|prims|torchvision|[a-z_]\w*)\.\w+\.\w+\b", str(error))
    names = type(error).__name__ not in ("GuardOnDataDependentSymNode", "ConstraintViolationError")
    return f" ({found.group()})" if found and names else ""


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).strip().splitlines()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def check_layouts(graph: fx.Graph, given: list[torch.Tensor]) -> None:
    """Raise NotExportedError where a trace looks by strides at what has gaps.

    On another device it has none.
    """
    if any(map(has_gaps, given)) and any("as_strided" in str(node.target) for node in graph.nodes):
        raise NotExportedError("it calls as_strided, and an argument has gaps in memory")


def check_constants(
    constants: Mapping[str, Any], model: nn.Module, parameters: Mapping[str, torch.Tensor]
) -> None:
    """Raise NotExportedError where a trace took a weight for a constant.

    It knows weights as the attributes of modules. By another way, as from a list that holds
    parameters, they would be neither trained nor moved, and have no values while on a device.
    """
    values = [value for value in constants.values() if isinstance(value, torch.Tensor)]
    taken = set(map(_private.storage_address, values))
    if not taken:
        return
    for name, weight in parameters.items():
        if _private.storage_address(weight) in taken:
            raise NotExportedError(
                f"its code has {name} from elsewhere than the module's attribute"
            )
    for path, module in model.named_modules():
        for tensor in held_tensors(vars(module)):
            if tensor.requires_grad and _private.storage_address(tensor) in taken:
                raise NotExportedError(
                    f"{path or 'the model'} holds a tensor with a gradient that is no parameter"
                )
