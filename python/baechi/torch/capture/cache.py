# SPDX-License-Identifier: Apache-2.0
"""Cache of steps on disk, as JSON: a second process finds the graph that a first one made.

What is found only plans: what runs is always the graph of its own process. So a step that has
become stale unnoticed, by a change in a file that no module of the model stands in, costs time and
never a number.
"""

from __future__ import annotations

import ast
import contextlib
import json
import operator
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from baechi._core import InputError, write_text
from baechi.torch.capture.identity import identity_of
from baechi.torch.capture.step import Input, Output, Step
from baechi.torch.capture.trace import capture
from baechi.torch.native import cache_folder
from baechi.torch.private import FakeTensorMode

KEPT = 64  # files; the oldest go first


def captured(
    model: nn.Module,
    example_inputs: Any,
    loss: Callable[..., torch.Tensor] | None = None,
    targets: Any = None,
    *,
    device: torch.device | str | None = None,
) -> Step:
    """Return what `capture` does, from the disk where it was made before."""
    key = identity_of(model, example_inputs, loss, targets, device)
    path = cache_folder() / "steps" / f"{key}.json"
    found = _found(path)
    if found is not None:
        return found
    step = capture(model, example_inputs, loss, targets, device=device)
    if not step.made_by.endswith("values"):  # others would decide otherwise
        with contextlib.suppress(OSError, InputError, TypeError):  # a full disk, no plain constant
            _keep(path, written(step))
    return step


def _found(path: Path) -> Step | None:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        with contextlib.suppress(OSError):
            os.utime(path)
        return read(document)
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError):
        return None  # none, or one that is broken: it is made again


def _keep(path: Path, document: dict[str, Any]) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_text(path, json.dumps(document))
    by_age = sorted(path.parent.glob("*.json"), key=lambda one: one.stat().st_mtime)
    for old in by_age[:-KEPT]:
        old.unlink(missing_ok=True)


_PLAIN = (torch.dtype, torch.layout, torch.memory_format)
_META = ("partitioner_tag", "seq_nr")


def written(step: Step) -> dict[str, Any]:
    """Return a step as JSON; raises TypeError where a call has a constant that is no plain one."""
    nodes = list(step.graph.graph.nodes)
    index = {node: number for number, node in enumerate(nodes)}
    shapes: dict[str, int] = {}

    def shape(value: torch.Tensor) -> int:
        if value.layout != torch.strided:
            raise TypeError(value.layout)
        size, stride = [list(map(int, of)) for of in (value.size(), value.stride())]
        text = repr((str(value.dtype)[6:], size, stride, str(value.device)))
        return shapes.setdefault(text, len(shapes))

    def plain(value: Any) -> Any:
        if value is None or isinstance(value, (bool, int, str)):
            return value
        if isinstance(value, float):
            return {"float": repr(value)}
        if isinstance(value, fx.Node):
            return {"node": index[value]}
        if isinstance(value, torch.Tensor):
            return {"shape": shape(value)}
        if isinstance(value, torch.device):
            return {"device": str(value)}
        if isinstance(value, _PLAIN):
            return {"torch": str(value)[6:]}
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        raise TypeError(type(value))

    rows = [
        [
            node.op,
            node.name,
            _target(node),
            plain(node.args),
            {name: plain(value) for name, value in node.kwargs.items()},
            plain(node.meta.get("val")),
            [node.meta.get(name) for name in _META],
            step.keys.get(node),
        ]
        for node in nodes
    ]
    return {
        "nodes": rows,
        "shapes": list(shapes),
        "inputs": [[one.kind, one.name, one.part, one.beside] for one in step.inputs],
        "outputs": [[one.kind, one.name] for one in step.outputs],
        "tied": step.tied,
        "is_training": step.is_training,
        "made_by": step.made_by,
    }


def _target(node: fx.Node) -> str:
    if isinstance(node.target, torch._ops.OpOverload):
        return str(node.target)
    if node.target is operator.getitem:
        return "getitem"
    if node.op in ("placeholder", "get_attr", "output"):
        return str(node.target)
    raise TypeError(node.target)


def _operator(target: str) -> Any:
    if target == "getitem":
        return operator.getitem
    space, name, overload = target.split(".")
    return getattr(getattr(getattr(torch.ops, space), name), overload)


def read(document: dict[str, Any]) -> Step:
    """Return the step that `written` was given; shapes and constants are without memory."""
    graph, constants = fx.Graph(), torch.nn.Module()
    nodes: list[fx.Node] = []
    keys: dict[fx.Node, str] = {}
    shapes = _shapes(document["shapes"])

    def value(stored: Any) -> Any:
        if isinstance(stored, list):
            return [value(item) for item in stored]
        if not isinstance(stored, dict):
            return stored
        ((kind, what),) = stored.items()
        if kind == "node":
            return nodes[what]
        if kind == "shape":
            return shapes[what]
        if kind == "float":
            return float(what)
        return torch.device(what) if kind == "device" else getattr(torch, what)

    for op, name, target, args, kwargs, val, meta, key in document["nodes"]:
        found = _operator(target) if op == "call_function" else target
        given = {word: value(stored) for word, stored in kwargs.items()}
        node = graph.create_node(op, found, tuple(value(args)), given, name=name)
        node.meta = {word: m for word, m in zip(_META, meta, strict=True) if m is not None}
        node.meta["val"] = value(val)
        if op == "get_attr":
            constants.register_buffer(target, node.meta["val"])
        nodes.append(node)
        if key is not None:
            keys[node] = key
    return Step(
        fx.GraphModule(constants, graph),
        tuple(Input(*one) for one in document["inputs"]),
        tuple(Output(*one) for one in document["outputs"]),
        keys,
        document["tied"],
        document["is_training"],
        document["made_by"],
    )


def _shapes(texts: list[str]) -> list[torch.Tensor]:
    made = []
    with FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv()):
        for text in texts:
            kind, size, stride, device = ast.literal_eval(text)
            dtype = getattr(torch, kind)
            made.append(torch.empty_strided(size, stride, dtype=dtype, device=device))
    return made
