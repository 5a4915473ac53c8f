# SPDX-License-Identifier: Apache-2.0
"""What each segment of a step of micro-batches makes and lets go of, from a recorded step.

The step of a graph was recorded in one piece. Here it is cut as the executor of micro-batches cuts
it: into what each call makes, and into the nodes of autograd of each segment. A gradient that a
node gives to another segment's is what a backward of that segment returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from baechi.torch.record.autograd_graph import AutogradNode, Gradient
from baechi.torch.record.recorded_step import LOSS, Capture, KernelRun
from baechi.torch.run.step_program import StepProgram
from baechi.torch.trace.segments import Segment

Place = tuple[int, int]  # a node of autograd, and which of its inputs: where gradients are added up


class NotForeseenError(Exception):
    """The peaks of a step cannot be told from its record."""


class Events(Protocol):
    """Is told of memory that a kernel takes, and of what it gives back."""

    def made(self, tensor: int) -> None:
        """A storage is made."""

    def freed(self, tensor: int) -> None:
        """A storage that was made before is let go of."""


@dataclass
class Product:
    """The one product with weights of a segment whose backward is in two."""

    node: int
    above: set[int] = field(default_factory=set)  # nodes that run before, and not below it
    weights: set[int] = field(default_factory=set)  # nodes that only lead to its weights
    by_weights: set[int] = field(default_factory=set)  # storages that it makes for these alone
    by_inputs: set[int] = field(default_factory=set)  # and the others that it gives


class StepTapes:
    """A recorded step of a graph, by the segments of a program."""

    def __init__(self, captured: Capture, program: StepProgram) -> None:
        if captured.again or any(op.inner is not None for op in captured.ops):
            raise NotForeseenError
        self.captured, self._program = captured, program
        nodes = program.graph.nodes
        number = {node.key: node.index for node in nodes if node.kind == "call"}
        self.op_of = {number[o.key]: i for i, o in enumerate(captured.ops) if o.key in number}
        self._node_of = {op: node for node, op in self.op_of.items()}
        self._begins: list[int] = []
        before = 0
        for run in captured.ops:  # they ran one behind the other
            self._begins.append(before)
            before = max(before, run.end)
        self.segment_of: dict[int, int] = {}  # of an operator
        for segment in program.segments:
            for index in segment.nodes:
                if index in self.op_of:
                    self.segment_of[self.op_of[index]] = segment.index
        self.loss = {i for i, op in enumerate(captured.ops) if op.key.startswith(LOSS)}
        self.nodes: dict[int, list[int]] = {s.index: [] for s in program.segments}
        self._loss_nodes: list[int] = []
        self._with_nodes = {node.op for node in captured.nodes}
        for k, node in enumerate(captured.nodes):
            if node.op in self.loss:
                self._loss_nodes.append(k)
            elif node.op is not None:
                self.nodes[self._segment(node.op)].append(k)
        self.starts: dict[int, list[Place]] = {}  # of the gradients that a segment returns
        self.awaited: dict[tuple[Place, int | None], int] = {}
        self._weights = {n.target: n.index for n in nodes if n.kind == "weight"}
        for name, known in captured.aliases.items():
            if name in self._weights:
                self._weights.setdefault(known, self._weights[name])
        for segment in program.segments:
            self._add_starts(segment)
        self.of_loss = self._from_loss()
        for place in self.of_loss:
            key = place, program.loss_on
            self.awaited[key] = self.awaited.get(key, 0) + 1
        self.values = {place: self._value_at(place) for place, _ in self.awaited}
        self.ends: dict[int, list[Place]] = {s.index: [] for s in program.segments}
        for place in self.values:
            op = captured.nodes[place[0]].op
            if op is not None:
                self.ends[self._segment(op)].append(place)

    def _segment(self, op: int) -> int:
        if op not in self.segment_of:
            raise NotForeseenError
        return self.segment_of[op]

    # Forward

    def run(self, op: int, events: Events) -> None:
        """Tell of what an operator makes; of what it lets go of, only if it made that."""
        self._tell(self._begins[op], self.captured.ops[op].end, events, backward=False)

    def _tell(self, begin: int, end: int, events: Events, *, backward: bool) -> None:
        mine: set[int] = set()
        for event in self.captured.trace[begin:end]:
            if isinstance(event, int):
                if event in mine:
                    events.freed(event)
            elif event.backward == backward and not (event.sums or event.again):
                mine.update(event.made)
                for tensor in event.made:
                    events.made(tensor)

    # Backward

    def run_back(self, k: int, events: Events) -> None:
        """Tell of what a node of autograd makes."""
        nodes = self.captured.nodes
        self._tell(nodes[k - 1].at if k else 0, nodes[k].at, events, backward=True)

    def end_of(self, k: int) -> int:
        """Return the events before what comes behind a node: what it let go of is gone by then."""
        trace, at = self.captured.trace, self.captured.nodes[k].at
        while at < len(trace) and isinstance(trace[at], int):
            at += 1
        return at

    def gives(self, k: int) -> Sequence[Gradient]:
        """Return what a node gives."""
        return self.captured.nodes[k].gives

    def node(self, k: int) -> AutogradNode:
        """Return a node."""
        return self.captured.nodes[k]

    def is_of(self, segment: Segment, k: int) -> bool:
        """Whether a segment's backward runs a node, or adds to the weight that it is for."""
        node = self.captured.nodes[k]
        if node.weight is not None:
            return self._weights.get(node.weight) not in segment.reads
        return node.op is not None and self.segment_of.get(node.op) == segment.index

    def _add_starts(self, segment: Segment) -> None:
        found: dict[Place, None] = {}
        for k in self.nodes[segment.index]:
            for gradient in self.captured.nodes[k].gives:
                if not self.is_of(segment, gradient.target):
                    found[gradient.place] = None
        self.starts[segment.index] = list(found)
        for place in found:
            key = place, segment.device
            self.awaited[key] = self.awaited.get(key, 0) + 1

    def _value_at(self, place: Place) -> int:
        """Return the value whose gradients are added up at a place."""
        node = self.captured.nodes[place[0]]
        if node.weight is not None:
            return self._weights[node.weight]
        if node.op is None or node.op not in self._node_of:
            raise NotForeseenError
        made = self._node_of[node.op]
        parts = [n for n in self._program.graph.users.get(made, ()) if self._is_part(n, made)]
        for part in parts:
            if self._program.graph.nodes[part].args[1:2] == (place[1],):
                return part
        makes = self._program.segments[self._segment(node.op)].makes
        return made if made in makes else next((v for v in makes if self._is_same(v, made)), made)

    def _is_same(self, value: int, other: int) -> bool:
        """Whether a call handed on what another made, as a dropout without effect does."""
        op, values = self.op_of.get(value), self.captured.values
        return values.get(value) == values.get(other) and op not in self._with_nodes

    def _is_part(self, index: int, of: int) -> bool:
        return self._program.graph.nodes[index].part_of == of

    def product(self, segment: Segment) -> Product | None:
        """Return the product of a segment whose backward is in two, if it has one alone."""
        mine = self.nodes[segment.index]
        found = [k for k in mine if self.captured.nodes[k].is_product]
        if len(found) != 1:
            return None
        product = Product(found[0])
        below = self.below(segment, found[0])
        beside: set[int] = set()
        for k in mine:
            if k not in below and k != product.node:
                product.above.add(k)
                beside.update(g.target for g in self.gives(k) if self._is_weight(g.target))
        product.weights = self._only_weights(segment, below)
        leaves = {k for k in product.weights if self._is_weight(k)}
        for gradient in self.gives(product.node):
            if gradient.tensor is not None and gradient.target not in product.weights:
                product.by_inputs.add(gradient.tensor)
        given = {g.tensor for g in self.gives(product.node) if g.tensor is not None}
        product.by_weights = given - product.by_inputs
        return product if leaves and not leaves & beside else None

    def _is_weight(self, k: int) -> bool:
        return self.captured.nodes[k].weight is not None

    def below(self, segment: Segment, k: int) -> set[int]:
        """Return the nodes of a segment that one leads to, leaves among them."""
        found: set[int] = set()
        waiting = [k]
        while waiting:
            for gradient in self.gives(waiting.pop()):
                target = gradient.target
                if target not in found and self.is_of(segment, target):
                    found.add(target)
                    waiting.append(target)
        return found

    def _only_weights(self, segment: Segment, below: set[int]) -> set[int]:
        """Return the nodes of these that lead to weights only."""
        found: set[int] = set()
        for k in sorted(below, reverse=True):  # they ran in the order of their numbers
            targets = [g.target for g in self.gives(k)]
            leads = bool(targets) and all(
                self.is_of(segment, target) and target in found for target in targets
            )
            if self._is_weight(k) or leads:
                found.add(k)
        return found

    # The loss

    def _from_loss(self) -> dict[Place, Gradient]:
        """Return what the loss gives to the nodes of the model, by place."""
        found: dict[Place, Gradient] = {}
        for k in self._loss_nodes:
            for gradient in self.gives(k):
                target = self.captured.nodes[gradient.target]
                if target.op is not None and target.op not in self.loss:
                    found[gradient.place] = gradient
        if not self._loss_nodes and self.captured.nodes:
            slot = next(iter(self.captured.nodes[0].received), 0)
            found[0, slot] = Gradient(0, slot, None, 1)
        return found

    def run_loss(self, events: Events) -> None:
        """Tell of what the loss and its backward make."""
        first = min((self._begins[op] for op in self.loss), default=0)
        last = max((self.captured.nodes[k].at for k in self._loss_nodes), default=first)
        mine: set[int] = set()
        for event in self.captured.trace[first:last]:
            if isinstance(event, KernelRun):
                mine.update(event.made)
                for tensor in event.made:
                    events.made(tensor)
            elif event in mine:
                events.freed(event)
