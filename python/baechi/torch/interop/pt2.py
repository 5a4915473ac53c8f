# SPDX-License-Identifier: Apache-2.0
"""Programs saved by torch.export (.pt2) as graphs, with costs estimated from their shapes."""

from __future__ import annotations

import math
import operator
import os
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch.utils.flop_counter import FlopCounterMode

from baechi._core import Graph, GraphBuilder, InputError, roofline_time
from baechi.brief_errors import briefly
from baechi.torch.record.recorded_step import PRECISIONS

# Every reader holds its own copy of a shared weight up to this size, as of an ONNX initializer.
_REPLICATED = 64 * 1024
# Nothing runs on a device: the same storage, seen otherwise.
_VIEWS = frozenset(
    [
        "alias", "as_strided", "detach", "diagonal", "expand", "expand_as", "narrow", "permute",
        "reshape", "select", "slice", "split", "split_with_sizes", "squeeze", "t", "transpose",
        "unbind", "unfold", "unsqueeze", "view", "view_as", "_unsafe_view",
    ]
)  # fmt: skip


@briefly
def load_pt2(
    path: str | os.PathLike[str],
    costs: str,
    *,
    dimensions: Mapping[str, int] | int | None = None,
) -> Graph:
    """Read a file that ``torch.export.save`` wrote.

    Args:
        path: The file.
        costs: Device kinds and the presets to estimate times for, such as "gpu=rtx3090,cpu=cpu".
        dimensions: The sizes of dynamic dimensions, by the name that torch.export gave them, or
            one size for all.

    Returns:
        One operator per input and per call. Weights are permanent memory of the call that reads
        them; one of more than 64 KiB that several calls read keeps these on one device.

    Raises:
        InputError: The file is none, or a dimension has no size.

    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
        if any(name.endswith("/data.pkl") for name in names) and not any(
            name.endswith("archive_format") for name in names
        ):
            raise ValueError(
                "torch.save or torch.jit.save wrote it; torch.export.save writes programs"
            )
        with (
            warnings.catch_warnings()
        ):  # PyTorch 2.9 reads weights into memory that it may not write
            warnings.filterwarnings("ignore", "The given buffer is not writable")
            program = torch.export.load(Path(path))
    except OSError as error:
        raise InputError(f"{path}: cannot open: {error.strerror or error}") from None
    except Exception as error:  # PyTorch's reader raises whatever the bytes lead it to
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{path}: no program of torch.export: {reason}") from error
    return graph_of_program(program, costs, name=Path(path).stem, dimensions=dimensions)


def graph_of_program(
    program: torch.export.ExportedProgram,
    costs: str,
    *,
    name: str = "",
    dimensions: Mapping[str, int] | int | None = None,
) -> Graph:
    """Return the graph of an exported program; see `load_pt2`."""
    return _Reader(program, costs, dimensions).read(name)


class _Reader:
    def __init__(
        self,
        program: torch.export.ExportedProgram,
        costs: str,
        dimensions: Mapping[str, int] | int | None,
    ) -> None:
        self._program = program
        self._kinds = [tuple(part.split("=", 1)) for part in costs.split(",")]
        if any(len(kind) != 2 for kind in self._kinds):
            raise InputError(f"costs {costs!r}: expected KIND=PRESET,... as in gpu=rtx3090")
        self._dimensions = dimensions
        self._weights: dict[fx.Node, str] = {}
        self._readers: dict[fx.Node, int] = {}
        self._ports: dict[fx.Node, tuple[str, int]] = {}  # the tensor that a node stands for

    def read(self, name: str) -> Graph:
        signature = self._program.graph_signature
        weights = {
            **signature.inputs_to_parameters,
            **signature.inputs_to_buffers,
            **signature.inputs_to_lifted_tensor_constants,
        }
        nodes = list(self._program.graph.nodes)
        for node in nodes:
            if node.op == "placeholder" and node.name in weights:
                self._weights[node] = weights[node.name]
                self._readers[node] = sum(user.op == "call_function" for user in node.users)
        builder = GraphBuilder(name)
        held: set[fx.Node] = set()
        for node in nodes:
            if node.op == "placeholder" and node not in self._weights:
                self._add_input(builder, node)
            elif node.op == "call_function":
                self._add_call(builder, node, held)
            elif node.op not in ("placeholder", "output"):
                raise InputError(f"node {node.name!r}: a graph inside the graph ({node.op})")
        return builder.build()

    def _add_input(self, builder: GraphBuilder, node: fx.Node) -> None:
        sizes = [self._bytes(value) for value in _tensors(node.meta.get("val"))]
        builder.add(node.name, self._times(0, 0, kernel=False), kind="input", outputs=sizes)
        self._ports[node] = (node.name, 0)

    def _add_call(self, builder: GraphBuilder, node: fx.Node, held: set[fx.Node]) -> None:
        sources = list(dict.fromkeys(node.all_input_nodes))
        if node.target is operator.getitem:
            made, port = self._ports.get(sources[0], ("", 0))
            self._ports[node] = (made, port + int(node.args[1]))
            return
        name = _name(node)
        outputs = [self._bytes(value) for value in _tensors(node.meta.get("val"))]
        inputs = [self._ports[s] for s in sources if s in self._ports and self._has_tensor(s)]
        after = [self._ports[s][0] for s in sources if s in self._ports and not self._has_tensor(s)]
        permanent, groups = 0, []
        for weight in (s for s in sources if s in self._weights):
            size = sum(self._bytes(value) for value in _tensors(weight.meta.get("val")))
            if self._readers[weight] <= 1 or size <= _REPLICATED:
                permanent += size
                continue
            groups.append(self._weights[weight])
            if weight not in held:
                permanent += size
                held.add(weight)
        read = sum(self._bytes(v) for s in sources for v in _tensors(s.meta.get("val")))
        short = _operation(node)
        builder.add(
            name,
            self._times(self._flops(node), read + sum(outputs), kernel=short not in _VIEWS,
                        precision=_precision(node)),
            kind=short,
            permanent=permanent,
            outputs=outputs,
            inputs=list(dict.fromkeys(inputs)),
            after=list(dict.fromkeys(after)),
            colocate=groups,
        )  # fmt: skip
        self._ports[node] = (name, 0)

    def _has_tensor(self, node: fx.Node) -> bool:
        return any(True for _ in _tensors(node.meta.get("val")))

    def _times(
        self, flops: int, moved: int, *, kernel: bool, precision: str = "fp32"
    ) -> dict[str, int]:
        if not kernel:
            return {kind: 1000 for kind, _ in self._kinds}  # the host's bookkeeping
        return {
            kind: roofline_time(preset, flops, moved, precision=precision)
            for kind, preset in self._kinds
        }

    def _size(self, size: int | torch.SymInt) -> int:
        if isinstance(size, int):
            return size
        expression = size.node.expr
        values = {}
        for symbol in expression.free_symbols:
            given = self._dimensions
            if isinstance(given, Mapping):
                given = given.get(str(symbol), given.get(self._given_name(symbol)))
            if given is None:
                known = self._given_name(symbol)
                raise InputError(f"dimension {known!r} is open: give its size in `dimensions`")
            values[symbol] = given
        return int(expression.subs(values))

    def _given_name(self, symbol: Any) -> str:
        """The name that the user gave a dimension, where the program keeps it."""
        for node in self._program.graph.nodes:
            value = node.meta.get("val")
            if node.op != "placeholder" or not isinstance(value, torch.Tensor):
                continue
            for axis, size in enumerate(value.shape):
                if not isinstance(size, int) and size.node.expr == symbol:
                    return f"{node.name}.{axis}"
        return str(symbol)

    def _shape(self, value: torch.Tensor) -> list[int]:
        return [self._size(size) for size in value.shape]

    def _bytes(self, value: torch.Tensor) -> int:
        return math.prod(self._shape(value)) * value.element_size()

    def _flops(self, node: fx.Node) -> int:
        """Return what PyTorch's own counter counts, and where that is nothing one per element."""

        def meta(value: Any) -> Any:
            if isinstance(value, fx.Node):
                return fx.node.map_aggregate(value.meta.get("val"), meta)
            if isinstance(value, torch.Tensor):
                return torch.empty(self._shape(value), dtype=value.dtype, device="meta")
            return self._size(value) if isinstance(value, torch.SymInt) else value

        with FlopCounterMode(display=False) as counter:
            try:
                node.target(
                    *fx.node.map_aggregate(node.args, meta),
                    **fx.node.map_aggregate(node.kwargs, meta),
                )
            except (RuntimeError, TypeError, ValueError, NotImplementedError):
                pass  # it computes with values, not only with shapes
            else:
                if counter.get_total_flops() > 0:
                    return int(counter.get_total_flops())
        sizes = [
            math.prod(self._shape(value))
            for made in (node, *node.all_input_nodes)
            for value in _tensors(made.meta.get("val"))
        ]
        return max(sizes, default=0)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)


def _operation(node: fx.Node) -> str:
    packet = getattr(node.target, "overloadpacket", None)
    return str(getattr(packet, "__name__", None) or getattr(node.target, "__name__", node.target))


def _name(node: fx.Node) -> str:
    """The module that makes the call, and the call: "layers.0.up/linear_3"."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    module = str(stack[-1][0]) if stack else ""
    return f"{module}/{node.name}" if module else node.name


def _precision(node: fx.Node) -> str:
    for source in (*node.all_input_nodes, node):
        for value in _tensors(source.meta.get("val")):
            if value.dtype in PRECISIONS:
                return PRECISIONS[value.dtype]
    return "fp32"
