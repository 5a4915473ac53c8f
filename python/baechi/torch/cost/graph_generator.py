# SPDX-License-Identifier: Apache-2.0
"""The ML graph of a recorded step (Paper 4.1): forward and backward operators, tensors, colocation.

An operator and its backward run where its weights are, so they are one colocation group; so are all
users of a weight, and a storage with what changes it in place. What the backward keeps is an edge
from its producer to the backward operator: the planner then knows how long it lives. The backward
of a product with weights may be two operators: by its inputs, and by its weights.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from baechi._core import Graph, GraphBuilder, InputError
from baechi.torch.base.function_rules import TRANSFORMS
from baechi.torch.cost.optimizers import OPTIMIZERS, optimizer_name
from baechi.torch.cost.profiler import Costs, OpCost, costed_ops
from baechi.torch.record.recorded_step import (
    BACKWARD,
    BY_WEIGHTS,
    LOSS,
    Capture,
    Op,
    kept_ops,
)

INPUTS = "inputs"


@dataclass
class ModelGraph:
    """A baechi graph, and which module call or function each of its operators is."""

    graph: Graph
    capture: Capture
    modules: dict[str, str]  # path of the unit by operator, for those that are modules


class _Assembly:
    """The graph while it is put together."""

    def __init__(
        self,
        captured: Capture,
        costs: Costs,
        state: int,
        together: Sequence[Sequence[str]],
        in_two: Collection[str],
        held_gradients: bool,
        repeated: Collection[str] | None,
    ) -> None:
        self._in_two = in_two
        self._held_gradients = held_gradients
        self._together: dict[str, list[str]] = {}
        for number, keys in enumerate(together):
            for key in keys:
                self._together.setdefault(key, []).append(f"together:{number}")
        self._captured = captured
        self._costs = costs
        self._state = state  # bytes of optimizer state per byte of a trained parameter
        stands = kept_ops(captured)
        self._kept = [i for i in stands if stands[i] == i]
        self._stands = stands
        self._readers: dict[int, list[int]] = {}
        for i in self._kept:
            for tensor in self._tensors_read(i):
                self._readers.setdefault(tensor, []).append(i)
        self._savers: dict[int, list[int]] = {}
        for index, op in enumerate(captured.ops):
            stand = stands[index]
            for tensor in op.saved if stand is not None else []:
                self._savers.setdefault(tensor, []).append(stand)  # type: ignore[arg-type]
        self._users: dict[str, list[int]] = {}
        for i in self._kept:
            for name in captured.ops[i].weights:
                self._users.setdefault(name, []).append(i)
        self._viewed: dict[int, list[str]] = {}  # groups of whose results cannot be copied
        for index, op in enumerate(captured.ops):
            read = {captured.tensors[t].producer for t in op.reads}
            changed = any(len(captured.tensors[t].writers) > 1 for t in op.reads)
            if op.kind in TRANSFORMS:  # what it reads beside its arguments does not come to it
                named = op.reads.keys() - op.arrives.keys()
                read = {index, *(captured.tensors[t].producer for t in named)}
            elif not (op.only_views and len(op.reads) > 1 and changed):
                continue  # a view of a copy would not see the change
            for producer in read - {None}:
                self._viewed.setdefault(producer, []).append(f"beside:{op.key}")  # type: ignore[arg-type]
        self._inner: dict[int, list[str]] = {}  # what runs of an operator's backward, with it
        for index, op in enumerate(captured.ops):
            base = None if op.inner is None else stands[op.inner]
            if base is not None:
                for one in (index, base):
                    self._inner.setdefault(one, []).append(f"inner:{self._name(base)}")
        self._sums_backward = {  # what they receive is not what arrives
            stand
            for index, stand in costed_ops(captured).items()
            if stand is not None and _sums(captured.ops[index], stand == index)
        }
        self._earlier = _in_order(captured, stands)
        self._repeatable = repeatable_ops(captured)
        if repeated is not None:
            self._repeatable = {i for i in self._repeatable if captured.ops[i].key in repeated}
        self._inputs = INPUTS
        if any(op.key == INPUTS for op in captured.ops):
            self._inputs = ">" + INPUTS  # no module is called so
        self._port: dict[int, int] = {}
        self._from_outside: list[int] = []
        self._incoming: dict[int, list[tuple[str, int]]] = {}  # gradients, by who receives them
        self._builder = GraphBuilder(captured.name, memory_mode="dataflow")

    def build(self) -> Graph:
        self._add_inputs()
        for i in self._kept:
            self._add_forward(i)
        if self._captured.training:
            for i in reversed(self._kept):
                if self._captured.ops[i].grads:
                    self._add_backward(i)
        return self._builder.build()

    def _name(self, index: int) -> str:
        return self._captured.ops[index].key

    def _cost(self, index: int) -> OpCost:
        cost = self._costs.ops.get(self._name(index))
        if cost is None:
            raise InputError(
                f"the costs say nothing of operator {self._name(index)!r}: they are of another "
                "model or of other units; estimate or measure them for this capture"
            )
        return cost

    def _tensors_read(self, index: int) -> list[int]:
        return list(self._captured.ops[index].reads)

    def _add_inputs(self) -> None:
        tensors = self._captured.tensors
        used = set(self._readers) | set(self._savers)
        self._from_outside = sorted(t for t in used if tensors[t].producer is None)
        for port, tensor in enumerate(self._from_outside):
            self._port[tensor] = port
        if self._from_outside:
            sizes = [tensors[t].bytes for t in self._from_outside]
            self._builder.add(self._inputs, {"*": 0}, kind="inputs", outputs=sizes)

    def _source(self, tensor: int) -> tuple[str, int] | None:
        if tensor not in self._port:
            return None
        producer = self._captured.tensors[tensor].producer
        return (self._inputs if producer is None else self._name(producer), self._port[tensor])

    def _groups(self, index: int) -> list[str]:
        op = self._captured.ops[index]
        groups = [f"weight:{n}" for n in op.weights if len(self._users[n]) > 1]
        changed = set(op.changed)
        changed.update(t for t in op.made if len(self._captured.tensors[t].writers) > 1)
        groups += [
            f"storage:{t}"
            for t in sorted(changed)
            if self._captured.tensors[t].producer is not None
        ]
        if op.grads and self._captured.training:
            groups.append(f"pair:{op.key}")
        groups += dict.fromkeys(self._inner.get(index, []))
        return groups + self._viewed.get(index, []) + self._together.get(op.key, [])

    def _add_forward(self, index: int) -> None:
        op, cost = self._captured.ops[index], self._cost(index)
        outputs: list[int] = []
        for tensor in op.made:
            used = tensor in self._readers or tensor in self._savers
            if used or self._captured.tensors[tensor].returned:
                self._port[tensor] = len(outputs)
                outputs.append(self._captured.tensors[tensor].bytes)
        inputs, after = [], []
        for tensor, writer in op.reads.items():
            source = self._source(tensor)
            if source is not None and source[0] != op.key:
                inputs.append(source)
            stand = None if writer is None else self._stands[writer]
            if (
                stand is not None
                and stand != index
                and stand != self._captured.tensors[tensor].producer
            ):
                after.append(self._name(stand))
        made_by = {source for source, _ in inputs}
        earlier = map(self._name, self._earlier.get(index, ()))
        after += [name for name in earlier if name not in made_by]
        trained = cost.parameters if self._captured.training else 0
        held = cost.gradients if self._held_gradients else 0
        self._builder.add(
            op.key,
            cost.forward,
            kind=op.kind,
            permanent=cost.parameters + cost.buffers + self._state * trained + held,
            temporary=cost.forward_temporary,
            outputs=outputs,
            inputs=inputs,
            after=sorted(set(after)),
            colocate=self._groups(index),
            recompute=index in self._repeatable,
        )

    def _gradient_targets(self, index: int) -> list[tuple[int, int]]:
        """Return the operators that the gradients of an operator's inputs go to, with the bytes."""
        targets = []
        for tensor, writer in self._captured.ops[index].reads.items():
            known = self._captured.tensors[tensor]
            stand = None if writer is None else self._stands[writer]
            if stand is None or stand == index or not known.requires_grad:
                continue
            if self._captured.ops[stand].grads:
                targets.append((stand, known.bytes))
        return targets

    def _add_backward(self, index: int) -> None:
        op, cost = self._captured.ops[index], self._cost(index)
        name = op.key + BACKWARD
        incoming = self._incoming.pop(index, [])
        kept = [
            source
            for tensor, savers in self._savers.items()
            if index in savers and (source := self._source(tensor)) is not None
        ]
        outputs: list[int] = []
        for target, size in self._gradient_targets(index):
            self._incoming.setdefault(target, []).append((name, len(outputs)))
            outputs.append(size)
        if not (outputs and self._is_apart(index)):
            gradients = 0 if self._held_gradients else cost.gradients
            outputs += [gradients] if gradients else []
            added = cost.gradients - gradients
            self._add_gradients(name, op, cost.backward, kept + incoming, outputs, held=added)
            return
        arriving = incoming
        if len(incoming) != 1 or index in self._sums_backward:  # it is summed up here, and held
            arriving = [(name, len(outputs))]
            outputs.append(sum(self._captured.tensors[t].bytes for t in op.made))
        by_inputs = {kind: time - cost.by_weights[kind] for kind, time in cost.backward.items()}
        self._add_gradients(name, op, by_inputs, kept + incoming, outputs)
        gradients = 0 if self._held_gradients else cost.gradients
        self._add_gradients(
            op.key + BY_WEIGHTS,
            op,
            cost.by_weights,
            kept + arriving,
            [gradients] if gradients else [],
            held=cost.gradients - gradients,
            after=[name],
        )

    def _is_apart(self, index: int) -> bool:
        """Whether the gradient by an operator's weights is an operator of its own."""
        op = self._captured.ops[index]
        divisible = op.key in self._in_two and index not in self._inner
        return divisible and op.halves is not None and bool(self._cost(index).by_weights)

    def _add_gradients(
        self,
        name: str,
        op: Op,
        times: Mapping[str, int],
        inputs: list[tuple[str, int]],
        outputs: list[int],
        *,
        held: int = 0,
        after: Sequence[str] = (),
    ) -> None:
        self._builder.add(
            name,
            times,
            kind=op.kind,
            temporary=self._costs.ops[op.key].backward_temporary + held,
            outputs=outputs,
            inputs=sorted(set(inputs)),
            after=[op.key, *after],
            colocate=[f"pair:{op.key}"],
            forward=op.key,
            backward=True,
        )


def repeatable_ops(captured: Capture) -> set[int]:
    """Return the operators that make the same when they run again, and change nothing.

    What is returned, or kept for the next call, is held anyway, and so is what the caller's loss
    makes. A model with checkpoints of its own says itself what is computed again.
    """
    if captured.again or not captured.training:
        return set()
    freed = {event for event in captured.trace if isinstance(event, int)}
    changing = {n for op in captured.ops if op.changes_weights for n in op.weights}
    found = set()
    for index, op in enumerate(captured.ops):
        made = [captured.tensors[tensor] for tensor in op.made]
        same = not any(len(t.writers) > 1 or t.returned for t in made) and freed.issuperset(op.made)
        for tensor in op.reads:  # nor is what it reads changed later
            same &= all(writer < index for writer in captured.tensors[tensor].writers)
        reaches = not op.reads.keys() <= op.arrives.keys()
        changes = op.random or op.changed or op.changes_weights or op.inner is not None
        loss = op.key.startswith(LOSS)
        if same and op.repeats and not (changes or reaches or loss or changing & {*op.weights}):
            found.add(index)
    return found


def check_again(captured: Capture, again: Collection[str]) -> None:
    """Raise InputError unless the operators named can run again."""
    may = {captured.ops[index].key for index in repeatable_ops(captured)}
    wrong = next((key for key in sorted(again) if key not in may), None)
    if wrong is not None:
        raise InputError(
            f"the plan has {wrong!r} run again, which does not make the same a second time in this "
            "step, or changes something: make the plan of this model in this mode"
        )


def _sums(op: Op, itself: bool) -> bool:
    """Whether kernels run in a backward before that of the product, in views of it or in it."""
    if itself:
        return op.halves is not None and op.halves.by_inputs.kernels > 1
    return op.backward.kernels > 0


def _in_order(captured: Capture, stands: Mapping[int, int | None]) -> dict[int, list[int]]:
    """Return which operators come before each because of what one of the two changes in place.

    Those that read a tensor come before its next change; those that read or change a weight or a
    buffer also come behind the last one. (Behind what changed a tensor last its readers are by
    what they read.)
    """
    earlier: dict[int, set[int]] = {}
    readers: dict[int | str, set[int]] = {}  # since the last change
    last: dict[int | str, int] = {}
    for index, op in enumerate(captured.ops):
        stand = stands[index]
        if stand is None:
            continue
        changed: list[int | str] = [*op.changed, *(op.weights if op.changes_weights else ())]
        before = {last[name] for name in op.weights if name in last}
        for one in changed:
            before |= readers.pop(one, set())
            last[one] = stand
        earlier.setdefault(stand, set()).update(other for other in before if other < stand)
        read: list[int | str] = [*op.reads, *op.weights]
        for one in read:
            readers.setdefault(one, set()).add(stand)
    return {index: sorted(others) for index, others in earlier.items()}


def graph_of(
    captured: Capture,
    costs: Costs,
    *,
    optimizer: Any = "adam",
    together: Sequence[Sequence[str]] = (),
    in_two: Collection[str] = (),
    held_gradients: bool = False,
    repeated: Collection[str] | None = None,
) -> ModelGraph:
    """Return the graph of a recorded step.

    Args:
        captured: The recorded step.
        costs: What its operators cost.
        optimizer: Whose state is held beside each trained parameter: one of OPTIMIZERS, a
            class or an instance.
        together: More operators that must share a device, by key.
        in_two: The operators whose backward may run in two, by key; those of them that are a
            product with weights are planned so, where the costs say what either takes.
        held_gradients: Those of the step before are there while the forward runs, and added to.
        repeated: The operators that whoever runs the step can run again, by key; None: all that
            make the same.

    """
    state = OPTIMIZERS[optimizer_name(optimizer)] if captured.training else 0
    graph = _Assembly(captured, costs, state, together, in_two, held_gradients, repeated).build()
    stands = kept_ops(captured)
    kept = [op for i, op in enumerate(captured.ops) if stands[i] == i]
    modules = {op.key: op.module for op in kept if op.module is not None}
    return ModelGraph(graph, captured, modules)
