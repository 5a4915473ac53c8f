# SPDX-License-Identifier: Apache-2.0
"""Runs a scheduled graph as one straight Python function (tier 2 of the Assigner).

The function is written once and then costs the host little more than the calls themselves: no
dictionary, no loop, no look at a tensor. Values are dropped behind their last use.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from baechi.torch.base import _private
from baechi.torch.base.devices import LogicalDevice
from baechi.torch.run.communication import Arrival, Links
from baechi.torch.trace.graph import ExportedGraph, Node, Ref
from baechi.torch.trace.schedule import (
    Bring,
    Return,
    Run,
    RunBlock,
    Schedule,
    Send,
    Wait,
    is_everywhere,
)
from baechi.torch.trace.segments import Segment
from baechi.torch.weights.homes import table_of

_VARIABLE = re.compile(r"\b[vas]\d+(?:_\d+)*\b")
_ANY = object()  # a line that may run under any stream: it names its own
_LITERALS = (type(None), bool, int, str)


@dataclass
class Machine:
    """What a program runs on."""

    model: nn.Module
    devices: list[LogicalDevice]
    links: Links
    bring: Callable[[torch.Tensor, LogicalDevice], torch.Tensor]  # from outside
    watch: Callable[[str, Any], None] | None = None  # told of every operator's result
    block: Callable[[Segment], Callable[..., Any]] | None = None  # returns what runs one


class _Several:
    """The arrivals of the tensors of a tuple."""

    def __init__(self, arrivals: list[Arrival]) -> None:
        self._arrivals = arrivals

    def wait(self) -> list[torch.Tensor]:
        return [arrival.wait() for arrival in self._arrivals]

    def settle(self, device: LogicalDevice) -> None:
        for arrival in self._arrivals:
            arrival.settle(device)


def _sender(links: Links) -> Callable[[Any, LogicalDevice, LogicalDevice], Any]:
    def send(value: Any, source: LogicalDevice, target: LogicalDevice) -> Any:
        if isinstance(value, torch.Tensor):
            return links.send(value, source, target)
        return _Several([links.send(tensor, source, target) for tensor in value])

    return send


class Source:
    """The text of a function, and the objects that it names."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {}
        self._known: dict[int, str] = {}
        self.lines: list[str] = []

    def name(self, thing: Any, prefix: str) -> str:
        """Return how the text calls an object."""
        known = self._known.get(id(thing))
        if known is None:
            known = self._known[id(thing)] = f"{prefix}{len(self.names)}"
            self.names[known] = thing
        return known

    def text(self, value: Any, local: Callable[[int], str], device: torch.device | None) -> str:
        """Return an argument as Python; devices are where the call runs."""
        if isinstance(value, Ref):
            return local(value.node)
        if isinstance(value, torch.device) and device is not None:
            return self.name(device, "device")
        if isinstance(value, float) and value - value == 0.0:
            return repr(value)
        if type(value) in _LITERALS:
            return repr(value)
        if type(value) is list:
            return "[" + ", ".join(self.text(v, local, device) for v in value) + "]"
        if type(value) is tuple:
            return "(" + "".join(self.text(v, local, device) + ", " for v in value) + ")"
        if isinstance(value, slice):
            parts = (value.start, value.stop, value.step)
            return "slice(" + ", ".join(self.text(v, local, device) for v in parts) + ")"
        return self.name(value, "constant")

    def compiled(self, function: str, parameters: str, returned: str) -> Any:
        """Return the function that the lines are the body of."""
        body = "".join(f"    {line}\n" for line in self.lines)
        text = f"def {function}({parameters}):\n{body}    return {returned}\n"
        exec(compile(text, f"<{function}>", "exec"), self.names)
        made = self.names[function]
        made.source = text
        return made


def call_text(source: Source, node: Node, local: Any, device: torch.device | None) -> str:
    """Return a call as Python; `local` says how it calls what it reads."""
    if node.target is operator.getitem:
        return f"{local(node.args[0].node)}[{source.text(node.args[1], local, device)}]"
    target = _private.without_python(node.target)
    arguments = [source.text(a, local, device) for a in node.args]
    for name, value in node.kwargs.items():
        if name == "pin_memory":
            continue
        arguments.append(f"{name}={source.text(value, local, device)}")
    return f"{source.name(target, 'call')}({', '.join(arguments)})"


class _Line(NamedTuple):
    device: Any  # under whose stream it runs; _ANY; None: under the caller's
    text: str
    contexts: tuple[str, ...] = ()  # that it runs in


class _Writer:
    """Writes the function of one schedule."""

    def __init__(self, graph: ExportedGraph, schedule: Schedule, machine: Machine) -> None:
        self._graph = graph
        self._schedule = schedule
        self._machine = machine
        self._source = Source()
        self._send = _sender(machine.links)
        self._constants: dict[tuple[int, int | None], Any] = {}

    def write(self) -> Callable[[list[torch.Tensor]], tuple[torch.Tensor, ...]]:
        lines: list[_Line] = []
        for step in self._schedule.steps:
            lines.extend(self._lines(step))
        outputs = [self._value(o) for o in self._graph.outputs]
        self._finish(lines, outputs)
        returned = "(" + "".join(f"{o}, " for o in outputs) + ")"
        return self._source.compiled("program", "inputs", returned)

    def _finish(self, lines: list[_Line], outputs: list[str]) -> None:
        """Put calls under their device's stream, and drop variables behind their last use."""
        last: dict[str, int] = {}
        for i, line in enumerate(lines):
            last.update(dict.fromkeys(_VARIABLE.findall(line.text), i))
        drop: dict[int, list[str]] = {}
        for name, i in last.items():
            if name not in outputs:
                drop.setdefault(i, []).append(name)
        current: LogicalDevice | None = None
        before: tuple[str, ...] = ()
        for i, (device, text, contexts) in enumerate(lines):
            if device is not _ANY:
                current = device if device is not None and device.has_streams else None
            stream = (f"{self._source.name(current, 'to')}.computing()",) if current else ()
            around = (*stream, *contexts)
            if around and around != before:
                self._source.lines.append(f"with {', '.join(around)}:")
            before = around
            indent = "    " if around else ""
            self._source.lines.append(indent + text)
            if i in drop:
                self._source.lines.append(indent + " = ".join(drop[i]) + " = None")

    def _value(self, node: int) -> str:
        return f"v{node}"

    def _local(self, reader: int) -> Callable[[int], str]:
        """Return how a call names what it reads: the value, or its copy on the call's device."""
        here = self._schedule.devices[reader]

        def local(read: int) -> str:
            version = self._schedule.copies.get((reader, read))
            if version is not None:
                return f"v{read}_{here}_{version + 1}"
            value = self._graph.nodes[read]
            if is_everywhere(self._graph, value):
                return self._constant(value, here)
            return self._value(read)

        return local

    def _constant(self, value: Node, device: int | None) -> str:
        key = (value.index, device)
        if key not in self._constants:
            where = None if device is None else self._machine.devices[device].torch_device
            self._constants[key] = value.target if where is None else value.target.to(where)
        return self._source.name(self._constants[key], "constant")

    def _lines(self, step: Any) -> list[_Line]:
        devices = self._machine.devices
        if isinstance(step, Run):
            return self._run(self._graph.nodes[step.node])
        if isinstance(step, RunBlock):
            return [self._run_block(step.segment)]
        value, copy = self._value(step.value), f"v{step.value}_{step.target}_{step.version + 1}"
        target = self._source.name(devices[step.target], "to")
        if isinstance(step, Bring):
            bring = self._source.name(self._machine.bring, "bring")
            return [_Line(None, f"{copy} = {bring}({value}, {target})")]
        home = self._source.name(devices[self._schedule.devices[step.value] or 0], "to")
        arrival = f"a{step.value}_{step.target}_{step.version + 1}"
        if isinstance(step, Send):
            send = self._source.name(self._send, "send")
            return [_Line(_ANY, f"{arrival} = {send}({value}, {home}, {target})")]
        if isinstance(step, Wait):
            return [_Line(_ANY, f"{copy} = {arrival}.wait()")]
        if isinstance(step, Return):
            send = self._source.name(self._send, "send")
            here = devices[self._schedule.devices[step.value] or 0]
            changed = f"a{step.value}_{step.target}_{step.version + 1}_{step.node}"
            contexts = self._contexts(self._graph.nodes[step.node], here.torch_device)
            return [
                _Line(_ANY, f"{changed} = {send}({copy}, {target}, {home}).wait()"),
                _Line(here, f"{value}.copy_({changed})", contexts),
            ]
        return [_Line(_ANY, f"{arrival}.settle({home})")]

    def _contexts(self, node: Node, where: torch.device | None) -> tuple[str, ...]:
        """Return what a call runs in."""
        on = self._source.name(where or torch.device("cpu"), "device") if node.contexts else ""
        return tuple(f"{self._source.name(c, 'context')}({on})" for c in node.contexts)

    def _run_block(self, segment: Segment) -> _Line:
        """Call a block; behind what it makes it returns what will make that again."""
        assert self._machine.block is not None
        schedule, nodes = self._schedule, self._graph.nodes
        again = schedule.blocks.made_again
        reader = {read: n for n in reversed(segment.nodes) for read in nodes[n].reads}
        taken = [self._local(reader[read])(read) for read in segment.reads]
        sources = [f"s{read}" if read in again else "None" for read in segment.reads]
        made = [self._value(m) for m in segment.makes]
        if segment.index in schedule.blocks.repeated:
            made += [f"s{m}" for m in segment.makes]
        block = self._source.name(self._machine.block(segment), "block")
        given = "".join(f"{s}, " for s in sources)
        line = f"({''.join(f'{m}, ' for m in made)}) = {block}({', '.join([f'({given})', *taken])})"
        return _Line(_ANY, line)

    def _run(self, node: Node) -> list[_Line]:
        name = self._value(node.index)
        if node.kind == "weight":
            table, attribute = table_of(self._machine.model, node.target)
            return [_Line(None, f"{name} = {self._source.name(table, 'weights')}[{attribute!r}]")]
        if node.kind == "input":
            return [_Line(None, f"{name} = inputs[{node.target}]")]
        index = self._schedule.devices[node.index]
        if node.kind == "constant":
            if is_everywhere(self._graph, node):
                return []
            return [_Line(None, f"{name} = {self._constant(node, index)}")]
        device = None if index is None else self._machine.devices[index]
        where = None if device is None else device.torch_device
        call = call_text(self._source, node, self._local(node.index), where)
        lines = [_Line(device, f"{name} = {call}", self._contexts(node, where))]
        if self._machine.watch is not None:
            watch = self._source.name(self._machine.watch, "watch")
            lines.append(_Line(device, f"{watch}({node.key!r}, {name})"))
        return lines


def compiled(
    graph: ExportedGraph, schedule: Schedule, machine: Machine
) -> Callable[[list[torch.Tensor]], tuple[torch.Tensor, ...]]:
    """Return the function that runs a schedule; its text is its attribute `source`."""
    return _Writer(graph, schedule, machine).write()
