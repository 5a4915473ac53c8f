# SPDX-License-Identifier: Apache-2.0
"""Puts the bodies of called functions into the GraphDef that calls them (Paper 4.1).

Operators of a body are named after the call, as in "StatefulPartitionedCall/dense/MatMul"; those of
the gradient of a call as a tape names them, "gradient_tape/StatefulPartitionedCall/dense/MatMul",
so that backward operators find their forward ones. Loops and branches stay as they are.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from baechi.tensorflow import _private

_CALLS = frozenset(["PartitionedCall", "StatefulPartitionedCall"])
_GRADIENT = re.compile(r"^gradients/(.*?)_grad(/|$)")
_SAME_PLACE = b"loc:@"


def split_input(text: str) -> tuple[str, int]:
    """Return the operator and the port of an input such as "a", "a:1" or "^a"."""
    name, _, port = text.removeprefix("^").partition(":")
    return name, int(port or 0)


@dataclass
class Inlined:
    """A GraphDef without calls, and where things of the one with calls are now."""

    definition: Any
    outputs: list[str]  # the tensors asked for
    last: list[str]  # the operators asked for


@dataclass
class _Scope:
    """One body while it is put in: the whole graph, or that of one call."""

    nodes: Sequence[Any]
    prefix: str
    parent: _Scope | None = None
    arguments: Mapping[str, str] = field(default_factory=dict)  # tensors of the parent
    results: Sequence[str] = ()  # tensors, by the port of the call
    last: Sequence[str] = ()  # operators that must have run when the call returns
    names: dict[str, str] = field(default_factory=dict)  # in the result, of what is no call
    calls: dict[str, _Scope] = field(default_factory=dict)
    begin: str | None = None  # what its first operators wait for
    end: str | None = None  # what waits for it
    device: str = ""  # of what asks for none


class _Inliner:
    def __init__(self, definition: Any) -> None:
        self._functions = {f.signature.name: f for f in definition.library.function}
        self._bodies = _private.bodies_of(definition)
        self._gradients: dict[str, bool] = {}  # by function
        self._taken: set[str] = set()
        self._result = tf.compat.v1.GraphDef(
            library=definition.library, versions=definition.versions
        )
        self._scopes: list[_Scope] = []
        self._ends: list[_Scope] = []  # calls that something waits for

    def run(self, nodes: Sequence[Any], outputs: Sequence[str], last: Sequence[str]) -> Inlined:
        top = _Scope(nodes, "")
        self._name(top)
        for scope in self._scopes:
            self._emit(scope)
        ends = [n for operator in last for n in self._controls(top, operator)]
        for called in self._ends:  # grows: the end of a call may wait for that of another
            self._emit_end(called)
        tensors = [self._tensor(top, output) for output in outputs]
        return Inlined(self._result, tensors, list(dict.fromkeys(ends)))

    # Names first: an input may name what comes later.

    def _called(self, node: Any) -> str | None:
        """Return the name of the function that a node calls."""
        if node.op in _CALLS:
            return str(node.attr["f"].func.name)
        return node.op if node.op in self._functions else None

    def _unique(self, name: str) -> str:
        made, number = name, 0
        while made in self._taken:
            number += 1
            made = f"{name}_{number}"
        self._taken.add(made)
        return made

    def _name(self, scope: _Scope) -> None:
        self._scopes.append(scope)
        for node in scope.nodes:
            if self._called(node) is None and node.name not in scope.arguments:
                scope.names[node.name] = self._unique(_name_in(scope.prefix, node.name))
        for node in scope.nodes:
            function = self._called(node)
            if function is not None:
                scope.calls[node.name] = self._enter(scope, node, function)

    def _enter(self, scope: _Scope, node: Any, function: str) -> _Scope:
        body, tensors = self._bodies[function]
        signature = self._functions[function].signature
        ret, control = self._functions[function].ret, self._functions[function].control_ret
        data = [text for text in node.input if not text.startswith("^")]
        called = _Scope(
            nodes=body.node,
            prefix=self._prefix(scope, node, function),
            parent=scope,
            arguments=dict(zip((a.name for a in signature.input_arg), data, strict=True)),
            results=[tensors[ret[a.name]] for a in signature.output_arg],
            last=[control[name] for name in signature.control_output],
            device=node.device or scope.device,
        )
        if any(text.startswith("^") for text in node.input):
            called.begin = self._unique(f"{called.prefix}begin")
        self._name(called)
        return called

    def _prefix(self, scope: _Scope, node: Any, function: str) -> str:
        """Name a body after its call, or after the call that it is the gradient of.

        That one is where most of its arguments come from: what the forward body kept.
        """
        if not self._is_gradient(function):
            return f"{scope.prefix}{node.name}/"
        by_name = {n.name: n for n in scope.nodes}
        kept = collections.Counter(
            name
            for name in (split_input(text)[0] for text in node.input if text[0] != "^")
            if name in by_name
            and (called := self._called(by_name[name])) is not None
            and not self._is_gradient(called)
        )
        if not kept:
            return f"{scope.prefix}{node.name}/"
        return f"{scope.prefix}gradient_tape/{kept.most_common(1)[0][0]}/"

    def _is_gradient(self, function: str) -> bool:
        if function not in self._gradients:
            body, _ = self._bodies[function]
            self._gradients[function] = any(n.name.startswith("gradients/") for n in body.node)
        return self._gradients[function]

    # Then the nodes.

    def _tensor(self, scope: _Scope, text: str) -> str:
        name, port = split_input(text)
        if name in scope.arguments:
            assert scope.parent is not None
            return self._tensor(scope.parent, scope.arguments[name])
        if name in scope.calls:
            return self._tensor(scope.calls[name], scope.calls[name].results[port])
        return f"{scope.names[name]}:{port}"

    def _controls(self, scope: _Scope, name: str) -> list[str]:
        if name in scope.arguments:
            return [split_input(self._tensor(scope, name))[0]]
        if name in scope.calls:
            called = scope.calls[name]
            if called.end is None:
                called.end = self._unique(f"{called.prefix}end")
                self._ends.append(called)
            return [called.end]
        return [scope.names[name]]

    def _inputs(self, scope: _Scope, node: Any) -> tuple[list[str], list[str]]:
        """Return the tensors and the operators that a node waits for, in the whole graph."""
        data, controls, inside = [], [], False
        for text in node.input:
            name = split_input(text)[0]
            inside = inside or name not in scope.arguments
            if text.startswith("^"):
                controls += self._controls(scope, name)
            else:
                data.append(self._tensor(scope, text).removesuffix(":0"))
        if scope.begin is not None and not inside:
            controls.append(scope.begin)
        return data, [f"^{control}" for control in dict.fromkeys(controls)]

    def _emit(self, scope: _Scope) -> None:
        for node in scope.nodes:
            if node.name in scope.names:
                made = self._result.node.add()
                made.CopyFrom(node)
                made.name = scope.names[node.name]
                made.device = node.device or scope.device
                del made.input[:]
                data, controls = self._inputs(scope, node)
                made.input.extend(data + controls)
                rename_class(made, scope.names)
            elif node.name in scope.calls and scope.calls[node.name].begin is not None:
                begin = self._result.node.add(name=scope.calls[node.name].begin, op="NoOp")
                begin.input.extend(self._inputs(scope, node)[1])

    def _emit_end(self, called: _Scope) -> None:
        waits = [c for name in called.last for c in self._controls(called, name)]
        waits += [split_input(self._tensor(called, result))[0] for result in called.results]
        end = self._result.node.add(name=called.end, op="NoOp")
        end.input.extend(f"^{wait}" for wait in dict.fromkeys(waits))


def _name_in(prefix: str, name: str) -> str:
    """Return the name of an operator of a body in the whole graph."""
    if "gradient_tape/" in prefix:
        return prefix + _GRADIENT.sub(r"\1\2", name)
    return prefix + name


def rename_class(node: Any, names: Mapping[str, str]) -> None:
    """Let a node's colocation name operators as they are called now; what is gone is not named."""
    if "_class" not in node.attr:
        return
    kept = []
    for place in node.attr["_class"].list.s:
        name = place.removeprefix(_SAME_PLACE).decode()
        if name in names:
            kept.append(_SAME_PLACE + names[name].encode())
    del node.attr["_class"].list.s[:]
    node.attr["_class"].list.s.extend(kept)
    if not kept:
        del node.attr["_class"]


def calls_in(definition: Any) -> list[str]:
    """Return the names of the nodes that call functions of the library."""
    functions = {f.signature.name for f in definition.library.function}
    return [n.name for n in definition.node if n.op in _CALLS or n.op in functions]


def inline(definition: Any, outputs: Sequence[str], last: Sequence[str]) -> Inlined:
    """Return a GraphDef without calls.

    Args:
        definition: A GraphDef with the functions that it calls in its library.
        outputs: Tensors whose names in the result are wanted.
        last: Operators that the result's `last` shall wait for as these do.

    """
    if not calls_in(definition):
        return Inlined(definition, list(outputs), list(last))
    return _Inliner(definition).run(list(definition.node), outputs, last)
