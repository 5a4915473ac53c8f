# SPDX-License-Identifier: Apache-2.0
"""Makes functions and graphs of TensorFlow run as a plan says (Paper 3.1, the Assigner).

The operations of a traced function are given their devices, and its variables new resources on
theirs; the Python objects stay, so layers, optimizers and checkpoints go on working. Functions
traced before still hold the old resources, which are left empty: they say so, until `restore`.

Where the runtime put each operation is read back: it moves operations on a resource to the
resource, and some others to where it has kernels, without a word.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from baechi._core import InputError
from baechi.tensorflow import _private, versions
from baechi.tensorflow.devices import full_name
from baechi.tensorflow.pins import INTERFACE, asked_devices

_CALLS = frozenset(["PartitionedCall", "StatefulPartitionedCall"])
# How the runtime names what was in the branch of a tf.cond and the function that it calls.
_PROBED = re.compile(r"^\w*cond/then/_\d+/\w*cond/(?:Stateful)?PartitionedCall/")
_BODY = re.compile(r"^(.+?)/(?:body|cond|then|else)/_\d+/")


class NotAsPlanned(RuntimeError):
    """Operations did not land on the devices that were planned for them."""

    __module__ = "baechi.tensorflow"  # where a user finds it


@dataclass
class Landing:
    """Where operations ran, against where they were planned; true when all is as planned."""

    checked: int = 0
    unseen: int = 0  # planned, but not in what ran: the runtime needs no such operation
    wrong: dict[str, tuple[str, str]] = field(default_factory=dict)  # planned, found

    def __bool__(self) -> bool:
        return not self.wrong and self.checked > 0

    def __str__(self) -> str:
        if not self.wrong:
            return f"{self.checked} operations on their planned devices, {self.unseen} not needed"
        name, (planned, found) = next(iter(self.wrong.items()))
        return (
            f"{len(self.wrong)} of {self.checked} operations are not where they were planned: "
            f"{name!r} is on {found}, not on {planned}"
        )


def landing(graphs: Iterable[Any], expected: Mapping[str, str], prefix: re.Pattern[str]) -> Landing:
    """Compare partition graphs with a plan, which names operations without the prefix."""
    found = Landing()
    seen = set()
    for graph in graphs:
        for node in graph.node:
            name, matches = prefix.subn("", node.name, count=1)
            if prefix.pattern and not matches:
                continue
            if name not in expected:
                body = _BODY.match(name)  # what is in a loop or branch runs where that is
                if body is None or body.group(1) not in expected or node.op.startswith("_"):
                    continue
                if node.op == "Switch" and "/Func/" in name:
                    continue  # hands an argument on to a branch in there, where that was made
                name = body.group(1)
            seen.add(name)
            if node.device != expected[name]:
                found.wrong[name] = (expected[name], node.device)
    found.checked = len(seen)
    found.unseen = len(expected) - len(seen)
    return found


def planned_devices(
    graph: Any, device_of: Mapping[str, str], devices: Mapping[str, str]
) -> dict[str, str]:
    """Return the TensorFlow device of every operation of a graph.

    That is the planned one; operations that ask for a device besides those planned for keep it.

    Args:
        graph: A graph of TensorFlow.
        device_of: The cluster's device of every operation, by name.
        devices: The TensorFlow device of each of the cluster's.

    Raises:
        InputError: The plan is not one of this graph, or names an unknown device.

    """
    full = {name: full_name(device) for name, device in devices.items()}
    if foreign := next((d for d in device_of.values() if d not in full), None):
        raise InputError(f"the plan uses a device {foreign!r}: say which of TensorFlow's it is")
    operations = {operation.name: operation for operation in graph.get_operations()}
    unknown = next((name for name in device_of if name not in operations), None)
    missing = next(
        (n for n, o in operations.items() if n not in device_of and o.type not in INTERFACE), None
    )
    if unknown is not None or missing is not None:
        what = (
            f"it names {unknown!r}, which the graph does not have"
            if unknown is not None
            else f"the graph has {missing!r}, which it does not name"
        )
        raise InputError(f"the plan is of another graph ({what}): plan the graph that is to run")
    planned = {name: full[device] for name, device in device_of.items()}
    for name, device in asked_devices(graph).items():
        if device not in full.values():  # one that was not planned for
            try:
                planned[name] = full_name(device)
            except InputError as error:
                raise InputError(f"the operation {name!r} asks for its device: {error}") from None
    return planned


def resource_users(tensor: Any) -> list[Any]:
    """Return the operations that take a resource, or what hands it on."""
    users: dict[str, Any] = {}
    pending = [tensor]
    while pending:
        for user in pending.pop().consumers():
            if user.name not in users:
                users[user.name] = user
                pending.extend(o for o in user.outputs if o.dtype == tf.resource)
    return list(users.values())


def _kernels_of(operation: Any, device: str) -> bool:
    kind = device.split("/device:")[-1].split(":")[0]
    return kind == "CPU" or _private.has_kernel(operation, kind)


def _placed_with(variable: Any) -> Any:
    """Return the placed function that a variable was placed with, while that can be called."""
    function = getattr(variable, "_baechi_placed", None)
    return None if function is None else function()


class PlacedFunction:
    """A ConcreteFunction whose operations run where a plan says, until `restore`.

    Args:
        traced: The function; what was traced, and called, before fails from now on where it
            touches variables that move.
        device_of: The full TensorFlow device of every operation.

    """

    def __init__(self, traced: Any, device_of: Mapping[str, str]) -> None:
        versions.require_tested()
        if call := next((o for o in traced.graph.get_operations() if o.type in _CALLS), None):
            raise InputError(
                f"{call.name!r} calls another function, whose operations have no plan: trace with "
                "baechi.tensorflow.capture, which inlines them"
            )
        self.traced = traced
        self.device_of = dict(device_of)
        self.kept: set[str] = set()  # operations left to TensorFlow, for want of a kernel or move
        self._moved: list[tuple[Any, Any]] = []  # variables, and the resources they had
        self._stale: list[Any] = []  # functions traced with these resources
        self._before = {o.name: o.device for o in traced.graph.get_operations()}
        self.function: Any = None
        self.active = False
        self.install()

    def install(self) -> None:
        """Move the variables, set the devices and make the function."""
        graph = self.traced.graph
        captured = self.traced.captured_inputs
        inputs = graph.inputs[len(graph.inputs) - len(captured) :]
        variables = {id(_private.handle_of(v)): v for v in graph.variables}
        captures = []
        try:
            for outer, inner in zip(captured, inputs, strict=True):
                captures.append(self._placed_capture(outer, inner, variables.get(id(outer))))
            self._refuse_stale()
            for operation in graph.get_operations():
                if operation.type not in INTERFACE:
                    _private.set_device(operation, self._device_for(operation))
            self.function = _private.function_of(graph, self.traced.function_type, captures)
            for variable in graph.variables:
                variable._baechi_placed = weakref.ref(self.function)
        except BaseException:
            self._undo()
            raise
        self.active = True

    def _placed_capture(self, outer: Any, inner: Any, variable: Any) -> Any:
        if inner.dtype != tf.resource:
            return outer
        users = resource_users(inner)
        device = self.device_of.get(inner.op.name)
        if device is None:
            device = next((self.device_of[u.name] for u in users if u.name in self.device_of), None)
        if device is None or device == outer.device:
            return outer
        if variable is None or not all(_kernels_of(user, device) for user in users):
            # Tables, iterators and the like cannot move, nor can a variable to where no kernel is.
            self.kept.add(inner.op.name)
            for user in users:
                self.device_of[user.name] = outer.device
            return outer
        if _placed_with(variable) is not None:
            raise InputError(
                f"the variable {variable.name!r} is placed already, with another step: restore() "
                "that one first, or place both as one step"
            )
        self._moved.append((variable, _private.move(variable, device)))
        return _private.handle_of(variable)

    def _refuse_stale(self) -> None:
        """Let functions that hold what the variables have left say so when they are called."""
        if not self._moved:
            return
        reason = (
            f"the function was traced before {self._moved[0][0].name!r} and what else it uses were "
            "placed on other devices: call tf.function(...) anew on its Python function (for a "
            "Keras model, set predict_function = None), or restore() the placement"
        )
        self._stale = _private.functions_with(old for _, old in self._moved)
        for function in self._stale:
            _private.refuse_calls(function, reason)

    def _device_for(self, operation: Any) -> str:
        device = self.device_of.get(operation.name, "")
        if device and not _kernels_of(operation, device):
            self.kept.add(operation.name)
            return ""
        return device

    @property
    def expected(self) -> dict[str, str]:
        """The device of every operation that has one: arguments are where the caller has them."""
        return {
            operation.name: self.device_of[operation.name]
            for operation in self.traced.graph.get_operations()
            if operation.type not in INTERFACE
            and operation.name in self.device_of
            and operation.name not in self.kept
        }

    @property
    def variable_devices(self) -> dict[str, str]:
        """The TensorFlow device of every variable; names that several have are numbered."""
        found: dict[str, str] = {}
        for variable in self.traced.graph.variables:
            name, number = variable.name.split(":")[0], 1
            while name in found:
                number += 1
                name = f"{variable.name.split(':')[0]}_{number}"
            found[name] = _private.handle_of(variable).device
        return found

    def check(self) -> Landing:
        """Let the runtime place the function, without running it; compare with the plan."""
        with _private.without_rewriting():
            graphs = _private.partition_graphs(lambda: _not_taken(self.function))
        return landing(graphs, self.expected, _PROBED)

    def restore(self) -> None:
        """Move the variables back: functions traced before work again, the placed one does not."""
        if self.active:
            self._undo()
            self.active = False

    def _undo(self) -> None:
        for function in self._stale:
            _private.allow_calls(function)
        self._stale = []
        if self._moved:
            reason = "the placement that this function was made for is restored: place it anew"
            for function in _private.functions_with(_private.handle_of(v) for v, _ in self._moved):
                _private.refuse_calls(function, reason)
        while self._moved:
            variable, old = self._moved.pop()
            _private.move_back(variable, old)
        for variable in self.traced.graph.variables:
            if self.function is not None and _placed_with(variable) is self.function:
                del variable._baechi_placed
        for operation in self.traced.graph.get_operations():
            _private.set_device(operation, self._before[operation.name])


def _not_taken(function: Any) -> None:
    """Call a function in a branch that is not taken: it is placed whole, and nothing of it runs."""
    arguments, keywords = function.structured_input_signature
    flat = tf.nest.flatten((arguments, keywords), expand_composites=True)
    places = [i for i, spec in enumerate(flat) if isinstance(spec, tf.TensorSpec)]
    specs = [flat[i] for i in places]
    if any(_opaque(spec.dtype) for spec in specs):
        raise InputError(
            "the function takes an iterator or another resource, and cannot be read back without "
            "running it: give it tensors, step(next(iterator)), or place it with check=False"
        )
    outputs = tf.nest.flatten(function.structured_outputs, expand_composites=True)
    kept = [i for i, o in enumerate(outputs) if isinstance(o, tf.TensorSpec | tf.Tensor)]
    kinds = [(outputs[i].dtype, outputs[i].shape) for i in kept]
    kept = [i for i, (dtype, _) in zip(kept, kinds, strict=True) if not _opaque(dtype)]
    kinds = [kind for kind in kinds if not _opaque(kind[0])]

    def call(values: Any) -> list[Any]:
        filled = list(flat)
        for place, value in zip(places, values, strict=True):
            filled[place] = value
        packed_arguments, packed_keywords = tf.nest.pack_sequence_as(
            (arguments, keywords), filled, expand_composites=True
        )
        made = tf.nest.flatten(
            function(*packed_arguments, **packed_keywords), expand_composites=True
        )
        return [tf.constant(0), *(tf.identity(made[i]) for i in kept)]

    def instead() -> list[Any]:
        return [tf.constant(0), *(_zeros(dtype, shape) for dtype, shape in kinds)]

    @tf.function(autograph=False)
    def probe(taken: Any, *values: Any) -> Any:
        return tf.cond(taken, lambda: call(values), instead)

    # Traced with the sizes as open as they are: those of the zeros need not go together.
    unnamed = [tf.TensorSpec(spec.shape, spec.dtype) for spec in specs]
    traced = probe.get_concrete_function(tf.TensorSpec((), tf.bool), *unnamed)
    traced(tf.constant(False), *(_zeros(spec.dtype, spec.shape) for spec in specs))


def _opaque(dtype: Any) -> bool:
    return dtype in (tf.resource, tf.variant)


def _zeros(dtype: Any, shape: Any) -> Any:
    sizes = () if shape.rank is None else [1 if size is None else size for size in shape]
    return tf.zeros(sizes, dtype)


class PlacedGraph:
    """A TensorFlow 1 graph whose operations run where a plan says, until `restore`.

    Its sessions must be made, and variables initialized, after it was placed.
    """

    def __init__(self, graph: Any, device_of: Mapping[str, str]) -> None:
        versions.require_tested()
        self.graph = graph
        self.device_of = dict(device_of)
        self.kept: set[str] = set()
        self._before = {o.name: o.device for o in graph.get_operations()}
        for operation in graph.get_operations():
            device = self.device_of.get(operation.name, "")
            if device and not _kernels_of(operation, device):
                self.kept.add(operation.name)
                device = ""
            _private.set_device(operation, device)

    @property
    def expected(self) -> dict[str, str]:
        """The device of every operation that has one."""
        return {n: d for n, d in self.device_of.items() if n not in self.kept}

    def check(self, session: Any, fetches: Any, feed_dict: Any = None) -> Landing:
        """Run a step and compare where its operations ran with the plan."""
        options = tf.compat.v1.RunOptions(output_partition_graphs=True)
        metadata = tf.compat.v1.RunMetadata()
        session.run(fetches, feed_dict=feed_dict, options=options, run_metadata=metadata)
        fed = {getattr(key, "op", key).name for key in (feed_dict or {})}
        expected = {n: d for n, d in self.expected.items() if n not in fed}
        return landing(metadata.partition_graphs, expected, re.compile(""))

    def restore(self) -> None:
        """Set the devices that the operations had before."""
        for name, device in self._before.items():
            _private.set_device(self.graph.get_operation_by_name(name), device)
