# SPDX-License-Identifier: Apache-2.0
"""Programs saved by torch.export (.pt2) as graphs, with costs estimated from their shapes."""

from __future__ import annotations

import os
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import fx

from baechi._core import Graph, InputError
from baechi.brief_errors import briefly, first_line
from baechi.torch.capture.keys import keys_of
from baechi.torch.capture.shapes import settle
from baechi.torch.capture.step import Input, Output, Step
from baechi.torch.costs.roofline import estimated
from baechi.torch.graph.graph import graph_of


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
        The graph of its forward, as `plan` makes one: an operator for every input, weight and
        call that makes memory. Calls that read a weight are on its device.

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
        program = torch.export.load(Path(path))
    except OSError as error:
        raise InputError(f"{path}: cannot open: {error.strerror or error}") from None
    except Exception as error:  # PyTorch's reader raises whatever the bytes lead it to
        reason = first_line(error) or type(error).__name__
        raise InputError(f"{path}: no program of torch.export: {reason}") from error
    return graph_of_program(program, costs, dimensions=dimensions)


def graph_of_program(
    program: torch.export.ExportedProgram,
    costs: str,
    *,
    dimensions: Mapping[str, int] | int | None = None,
) -> Graph:
    """Return the graph of an exported program; see `load_pt2`."""
    kinds = dict(part.partition("=")[::2] for part in costs.split(","))
    if not all(kinds.values()):
        raise InputError(f"costs {costs!r}: expected KIND=PRESET,... as in gpu=rtx3090")
    step = step_of(program, dimensions)
    return graph_of(step, estimated(step.keys, kinds), kinds, None).graph


def step_of(
    program: torch.export.ExportedProgram, dimensions: Mapping[str, int] | int | None
) -> Step:
    """Return an exported program as a step without a backward, its shapes all numbers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own graphs
        table = torch.export.default_decompositions()
        table.pop(torch.ops.aten.scaled_dot_product_attention.default)  # devices have a kernel
        program = program.run_decompositions(table)
    graph = program.graph
    known = "placeholder", "call_function", "output"
    if strange := next((node for node in graph.nodes if node.op not in known), None):
        raise InputError(f"node {strange.name!r}: a graph inside the graph ({strange.op})")
    settle(graph, _Sizes(graph, dimensions).number)
    signature = program.graph_signature
    weights = {
        **{name: ("weight", weight) for name, weight in signature.inputs_to_parameters.items()},
        **{name: ("buffer", buffer) for name, buffer in signature.inputs_to_buffers.items()},
    }
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    inputs = [Input(*weights.get(node.name, ("batch", node.name))) for node in placeholders]
    changed = signature.buffers_to_mutate
    (results,) = graph.output_node().args
    outputs = [
        Output("buffer", changed[node.name])
        if isinstance(node, fx.Node) and node.name in changed
        else Output("output", str(number))
        for number, node in enumerate(results)
    ]
    kept = [(n, one) for n, one in zip(results, outputs, strict=True) if isinstance(n, fx.Node)]
    graph.output_node().args = ([node for node, _ in kept],)
    return Step(
        program.graph_module,
        tuple(inputs),
        tuple(one for _, one in kept),
        keys_of(graph, _module_of),
        is_training=False,
        made_by="torch.export",
    )


def _module_of(node: fx.Node) -> str | None:
    stack = list(node.meta.get("nn_module_stack", {}).values())
    return str(stack[-1][0]) if stack else None


class _Sizes:
    """Gives the dynamic dimensions of a graph the sizes that were asked for."""

    def __init__(self, graph: fx.Graph, given: Mapping[str, int] | int | None) -> None:
        self._given = given
        self._name_of = self._names(graph)

    def number(self, size: torch.SymInt) -> int:
        expression = size.node.expr
        values = {}
        for symbol in expression.free_symbols:
            name, given = self._name_of.get(symbol, str(symbol)), self._given
            if isinstance(given, Mapping):
                given = given.get(str(symbol), given.get(name))
            if given is None:
                raise InputError(f"dimension {name!r} is open: give its size in `dimensions`")
            values[symbol] = given
        return int(expression.subs(values))

    @staticmethod
    def _names(graph: fx.Graph) -> dict[Any, str]:
        """Return the first input and axis that have each dimension."""
        found: dict[Any, str] = {}
        for node in graph.nodes:
            value = node.meta.get("val")
            if node.op == "placeholder" and isinstance(value, torch.Tensor):
                for axis, size in enumerate(value.shape):
                    if not isinstance(size, int):
                        found.setdefault(size.node.expr, f"{node.name}.{axis}")
        return found
