# SPDX-License-Identifier: Apache-2.0
"""The peak memory of each device in a step of micro-batches (beyond the paper).

Memory is taken and given back in the order in which the host asks for the parts of a step, whatever
order the devices work in. So that list is gone through as `run.micro_batches` goes through it, with
the sizes of a recorded step in place of tensors.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from baechi.torch.memory.step_ledger import Block, Sum, Where, held
from baechi.torch.memory.step_tapes import Place, Product
from baechi.torch.memory.step_values import StepValues
from baechi.torch.record.recorded_step import Capture, rounded
from baechi.torch.run.step_order import Part, Phase
from baechi.torch.run.step_program import StepProgram
from baechi.torch.trace.segments import Segment

_Buffers = dict[Place, Sum]


@dataclass
class _Late:
    """The gradients by the weights of a product, which are taken later."""

    product: Product
    arrived: Block | None


class StepReplay(StepValues):
    """One step of micro-batches."""

    def __init__(
        self,
        captured: Capture,
        program: StepProgram,
        home: Where = None,
        *,
        over_ranks: bool = False,
    ) -> None:
        super().__init__(captured, program, home, over_ranks=over_ranks)
        self._sums: dict[tuple[int, Place, Where], Sum] = {}  # those that came, by micro-batch
        self._back: dict[tuple[int, Place], list[Sum]] = {}  # on their way home
        self._coming: dict[tuple[int, Place], list[int]] = {}  # messages, by their bytes
        self._going: dict[Part, tuple[Place, Sum]] = {}
        self._awaited: dict[tuple[int, Place, Where], int] = {}
        self._late: dict[tuple[int, int], _Late] = {}
        self._lost = False
        segments = program.segments
        self._products = {s: self._tapes.product(segments[s]) for s in program.apart}
        self._as_given = {
            s.index: self._reached(s, [k for k, _ in self._tapes.ends[s.index]]) for s in segments
        }

    def run(self) -> dict[Where, tuple[int, Part | None]]:
        """Go through the step; return the most bytes of each device, and what ran then."""
        for part in self._program.order:
            self.ledger.part = part
            self._run_part(part)
        return self.ledger.most

    def _run_part(self, part: Part) -> None:
        m, phase = part.micro_batch, part.phase
        if phase is Phase.LOSS:
            self._lose(m)
            return
        segment = self._program.segments[part.segment]
        if phase is Phase.FORWARD:
            self._forward(segment, m)
        elif phase is Phase.SEND:
            self._send(part)
        elif phase is Phase.SEND_BACK:
            self._send_back(part)
        elif phase is Phase.AGAIN:
            self._again(segment, m)
        elif phase is Phase.BACKWARD:
            self._backward(segment, m)
        else:
            self._by_weights(segment, m)

    # Gradients between segments

    def _came(self, m: int, place: Place, where: Where, gradient: Sum | None) -> None:
        """Add up what came for a value on a device; behind the last one it goes home."""
        key, value = (m, place, where), self._tapes.values[place]
        if gradient is not None:
            held(gradient.block)
            self._add_up(key, Sum(gradient.block, gradient.bytes, addable=False))
        left = self._awaited.get(key, self._tapes.awaited[place, where]) - 1
        self._awaited[key] = left
        home = self._program.homes[value]
        is_weight = self._program.graph.nodes[value].kind == "weight"
        if left or (home == where and not is_weight):
            return
        total = self._sums.pop(key, None)
        if total is None:
            return
        if (Phase.SEND_BACK, value, where) in self._program.sent_later:
            assert where is not None
            part = Part(Phase.SEND_BACK, self._program.maker[value], m, value, where)
            self._going[part] = place, total
            return
        if self._over_ranks or home is None:
            size, device = total.bytes, total.block.device
            self.ledger.drop(total.block)
            if not is_weight and home is not None and device != home:
                self._coming.setdefault((m, place), []).append(size)
            return
        copy = None if home == where else self.ledger.take(home, total.bytes)
        if copy is not None and not is_weight:
            self._back.setdefault((m, place), []).append(Sum(copy, total.bytes, addable=True))
        else:  # it is added to the weight's gradient
            self.ledger.drop(copy)
        self.ledger.drop(total.block)

    def _send_back(self, part: Part) -> None:
        """Send a gradient when the plan says."""
        if part not in self._going:  # there is none
            return
        place, total = self._going.pop(part)
        copy = self.ledger.take(self._program.homes[part.value], total.bytes)
        found = self._back.setdefault((part.micro_batch, place), [])
        found.append(Sum(copy, total.bytes, addable=True))
        self.ledger.drop(total.block)

    def _add_up(self, key: tuple[int, Place, Where], new: Sum) -> None:
        """Add a gradient to a sum, in place where the memory was made for it."""
        old = self._sums.get(key)
        if old is None or (new.addable and not old.addable):
            self._sums[key] = new
            if old is not None:
                self.ledger.drop(old.block)
            return
        if not old.addable:
            total = self.ledger.take(old.block.device, new.bytes)
            self._sums[key] = Sum(total, new.bytes, addable=True)
            self.ledger.drop(old.block)
        self.ledger.drop(new.block)

    def _gradient(self, m: int, place: Place) -> Sum | None:
        """Return all that came for a value that a segment made, where it made it."""
        key = m, place, self._program.homes[self._tapes.values[place]]
        for arrival in self._back.pop((m, place), ()):
            self._add_up(key, arrival)
        for size in self._coming.pop((m, place), ()):
            self._add_up(key, Sum(self.ledger.take(key[2], size), size, addable=True))
        return self._sums.pop(key, None)

    # Backward

    def _backward(self, segment: Segment, m: int) -> None:
        tapes, index = self._tapes, segment.index
        buffers: _Buffers = {}
        for place in tapes.ends[index]:
            gradient = self._gradient(m, place)
            if gradient is not None:
                buffers[place] = gradient
        order = tapes.nodes[index]
        if not buffers or not order:
            self._forget(m, order)
            self._end(segment, m, {})
            return
        product = self._products.get(index)
        as_given = self._as_given[index]
        kept = [held(b.block) for p, b in buffers.items() if p[0] in as_given]
        kept += [  # what stands for a gradient that its node takes itself
            self.ledger.take(segment.device, rounded(1)) for p in buffers if p[0] not in as_given
        ]
        if product is not None:
            arrived = self._run_above(segment, m, product, buffers, kept)
            self._late[index, m] = _Late(product, arrived)
        else:
            for k in order:
                self._run_node(segment, m, k, buffers)
            self._forget(m, order)
        for block in kept:
            self.ledger.drop(block)
        self._end(segment, m, buffers)
        if product is not None:
            self._forget(m, order, until=max(map(tapes.end_of, product.above), default=0))
        for gradient in buffers.values():
            self.ledger.drop(gradient.block)

    def _run_above(
        self,
        segment: Segment,
        m: int,
        product: Product,
        buffers: _Buffers,
        kept: list[Block | None],
    ) -> Block | None:
        """Run all but what only the gradients of a product's weights need; return what arrives."""
        arrived = None
        for k in self._tapes.nodes[segment.index]:
            if k in product.weights:
                continue
            if k == product.node:
                given = next((g for (node, _), g in buffers.items() if node == k), None)
                if given is not None:
                    arrived = held(given.block)
                    kept.append(held(given.block))  # it is asked for, and so given twice
            without = product.by_weights if k == product.node else ()
            self._run_node(segment, m, k, buffers, without, product.weights, releases=False)
        return arrived

    def _run_node(
        self,
        segment: Segment,
        m: int,
        k: int,
        buffers: _Buffers,
        without: Collection[int] = (),
        not_to: Collection[int] = (),
        *,
        releases: bool = True,
    ) -> None:
        """Run a node of autograd: it takes what waits for it, and gives to others."""
        tapes, node = self._tapes, self._tapes.node(k)
        inputs = {place: buffers.pop(place) for place in list(buffers) if place[0] == k}
        made = self._made(segment.device, without)
        tapes.run_back(k, made)
        known = {node.received[s]: g.block for (_, s), g in inputs.items() if s in node.received}
        known.update(made.blocks)
        for gradient in node.gives:
            if gradient.tensor is None or gradient.target in not_to:
                continue
            block = known.get(gradient.tensor)
            if block is None:
                block = known[gradient.tensor] = self.ledger.take(segment.device, gradient.bytes)
                inputs[k, -len(inputs) - 1] = Sum(block, gradient.bytes, addable=True)
            new = Sum(block, gradient.bytes, gradient.addable)
            held(block)
            self._add(buffers, gradient.place, new)
        made.end()
        for received in inputs.values():
            self.ledger.drop(received.block)
        if releases:
            self._forget(m, [k], until=tapes.end_of(k))

    def _add(self, buffers: _Buffers, place: Place, new: Sum) -> None:
        """Add a gradient to a buffer of the engine."""
        old = buffers.get(place)
        if old is None:
            buffers[place] = new
            return
        if not (old.addable and old.block.holders == 1):
            total = self.ledger.take(new.block.device, new.bytes)
            buffers[place] = Sum(total, new.bytes, addable=True)
            self.ledger.drop(old.block)
        self.ledger.drop(new.block)

    def _forget(self, m: int, nodes: Iterable[int], until: int | None = None) -> None:
        """Let go of what the operators of nodes saved; `until`: what is gone by that event."""
        for op in {self._tapes.node(k).op for k in nodes}:
            assert op is not None
            released = self._captured.ops[op].released
            kept = []
            for storage, hold in self._saved.pop((m, op), ()):
                if until is None or released.get(storage, until + 1) <= until:
                    self._let_go(hold)
                else:
                    kept.append((storage, hold))
            if kept:
                self._saved[m, op] = kept

    def _end(self, segment: Segment, m: int, found: Mapping[Place, Sum]) -> None:
        for place in self._tapes.starts[segment.index]:
            self._came(m, place, segment.device, found.get(place))

    def _by_weights(self, segment: Segment, m: int) -> None:
        """Take what a backward left for later."""
        late = self._late.pop((segment.index, m), None)
        if late is None:
            return
        product, tapes = late.product, self._tapes
        buffers: _Buffers = {}
        if late.arrived is not None:
            slot = next(iter(tapes.node(product.node).received), 0)
            buffers[product.node, slot] = Sum(late.arrived, late.arrived.bytes, addable=False)
        others = {g.target for g in tapes.node(product.node).gives} - product.weights
        self._run_node(segment, m, product.node, buffers, product.by_inputs, others)
        for k in tapes.nodes[segment.index]:
            if k in product.weights:
                self._run_node(segment, m, k, buffers)
        self._forget(m, tapes.nodes[segment.index])
        for gradient in buffers.values():
            self.ledger.drop(gradient.block)

    def _reached(self, segment: Segment, ends: Sequence[int]) -> set[int]:
        """Return those of some nodes that others of them lead to."""
        several = set(ends)
        if len(several) < 2:
            return set()
        found: set[int] = set()
        for k in several:
            found.update(self._tapes.below(segment, k))
        return several & found

    # The loss

    def _lose(self, m: int) -> None:
        """Compute a micro-batch's loss, and its gradient."""
        where = self._program.loss_on
        if not self._lost:  # the sum of the losses, and the gradient that each begins with
            self._lost = True
            for _ in range(2):
                self.ledger.take(where, rounded(1))
        read = [self._read(m, value, where) for value in self._program.read_at_end]
        made = self._made(where)
        self._tapes.run_loss(made)
        found: _Buffers = {}
        for place, gradient in self._tapes.of_loss.items():
            block = None if gradient.tensor is None else made.blocks.get(gradient.tensor)
            size = rounded(gradient.bytes)
            mine = self.ledger.take(where, size) if block is None else held(block)
            assert mine is not None
            found[place] = Sum(mine, size, addable=False)
        made.end()
        for parts in read:
            self.ledger.drop_all(parts)
        for place, given in found.items():
            self._came(m, place, where, given)
            self.ledger.drop(given.block)
