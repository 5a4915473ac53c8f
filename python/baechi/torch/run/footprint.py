# SPDX-License-Identifier: Apache-2.0
"""The footprint of a placed model: the most bytes on each device, by walking what has run."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn

from baechi.torch.capture.keys import base_of, is_backward
from baechi.torch.capture.step import LOSS, Step, bytes_of
from baechi.torch.graph.optimizers import Updates
from baechi.torch.program import Program
from baechi.torch.program.parts import GRADIENT
from baechi.torch.program.peaks import GRANULE, walk, whole
from baechi.torch.where.homes import named_tensors, plain_parts

if TYPE_CHECKING:
    from typing_extensions import Self

    from baechi.torch.run.graphs import Graph


@dataclass(frozen=True)
class Walk:
    """A program that has run, and the inputs that are there anyway: weights, buffers, a batch."""

    program: Program
    resident: frozenset[str]
    batch: tuple[int, ...]  # bytes on each device

    def peaks(self) -> list[int]:
        """Return the most bytes on each device beside weights and buffers."""
        kept = [slot.name for slot in self.program.inputs if slot.name.startswith(GRADIENT)]
        found, _ = walk(self.program, held=kept, resident=self.resident)
        return [peak + size for peak, size in zip(found, self.batch, strict=True)]


@dataclass(frozen=True)
class CallWalk:
    """Forward and backward of a graph, and the inputs of each that are there anyway."""

    forward: Program
    backward: Program
    resident: frozenset[str]
    batch: tuple[int, ...]  # bytes on each device
    later: tuple[int, ...]  # kept for another backward, likewise

    @classmethod
    def of(cls, graph: Graph, batch: tuple[int, ...]) -> Self | None:
        """Return the walk of a graph that was called; None: it has not run one backward."""
        if (ran := graph.ran()) is None:
            return None
        backward, kept = ran
        primals = [node for node in graph.joint.primals if _memory(node)]
        given = {_memory(node) for node in primals}
        read = graph.backward_graph.graph.find_nodes(op="placeholder")
        names = {node.name for node in (*primals, *read) if _memory(node) in given}
        later = [0 for _ in batch]
        for slot in kept:
            place = -1 if slot.device is None else slot.device
            if place >= 0 and slot.of is None and slot.name not in names:
                later[place] += whole(slot.bytes)
        return cls(graph.programs["forward"], backward, frozenset(names), batch, tuple(later))


def peaks_of_call(graphs: Sequence[CallWalk], of_loss: Sequence[int]) -> list[int]:
    """Return the most bytes on each device of a call and its backward, beside weights and buffers.

    Args:
        graphs: In the order of their forwards.
        of_loss: What the caller makes of the outputs on each device before the backward begins,
            beside the loss and its gradient, which are there until the end.

    """
    devices = range(len(of_loss))
    most, kept = [0 for _ in devices], [[0 for _ in devices]]
    for graph in graphs:
        found, left = walk(graph.forward, resident=graph.resident)
        batch = graph.batch
        most = [max(most[i], batch[i] + kept[-1][i] + found[i]) for i in devices]
        kept.append([kept[-1][i] + left[i] for i in devices])
    batches = [max(graph.batch[i] for graph in graphs) for i in devices]
    loss = [2 * GRANULE if size else 0 for size in of_loss]
    kept = [[one[i] + loss[i] for i in devices] for one in kept]
    most = [max(most[i], batches[i] + kept[-1][i] + of_loss[i]) for i in devices]
    gradients = [0 for _ in devices]
    for graph, before in reversed(list(zip(graphs, kept[:-1], strict=True))):
        held = [s.name for s in graph.backward.inputs if s.name.startswith("tangents_")]
        found, left = walk(graph.backward, held=held, resident=graph.resident)
        for i in devices:
            there = batches[i] + before[i] + gradients[i] + graph.later[i]
            most[i] = max(most[i], there + found[i])
            gradients[i] += left[i] + graph.later[i]
    return most


def peak_of_loss(step: Step) -> int:
    """Return the most bytes that a loss outside of the model holds, forward and backward.

    What one formula of autograd makes is there until its last call, as in C++.
    """
    nodes = list(step.graph.graph.nodes)
    back = [(i, node, node.meta.get("seq_nr")) for i, node in enumerate(nodes) if is_backward(node)]
    end = {formula: i for i, _, formula in back}
    until = {node: i if formula is None else end[formula] for i, node, formula in back}
    for i, node in enumerate(nodes):
        for base in {base_of(read) for read in node.all_input_nodes}:
            until[base] = max(until.get(base, i), i)
    change = [0] * (len(nodes) + 1)
    for i, node in enumerate(nodes):
        if node in step.keys and step.path_of(node) == LOSS:
            size = whole(bytes_of(node))
            change[i] += size
            change[until.get(node, i) + 1] -= size
    return max(itertools.accumulate(change))


def _memory(node: fx.Node) -> int:
    value = node.meta.get("val")
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else 0


def resident(
    model: nn.Module, devices: Sequence[torch.device], updates: Updates
) -> tuple[list[int], list[int]]:
    """Return what is there on each device, and what an optimizer's step takes beside it.

    The first are weights, buffers and the optimizer's state, the other gradients and what it makes
    of all weights at once.
    """
    found, taken, seen = [0] * len(devices), [0] * len(devices), set[int]()
    index: Mapping[torch.device, int] = {device: i for i, device in enumerate(devices)}
    for _, tensor in named_tensors(model):
        place = index.get(tensor.device)
        if place is None or id(tensor) in seen:
            continue
        seen.add(id(tensor))
        found[place] += sum(whole(part.untyped_storage().nbytes()) for part in plain_parts(tensor))
        if tensor.requires_grad:
            found[place] += sum(map(whole, updates.kept(tensor)))
            taken[place] += whole(tensor.nbytes) + whole(updates.temporary(tensor))
    return found, taken


def bytes_of_batch(
    model: nn.Module, devices: Sequence[torch.device], given: Iterable[Any]
) -> tuple[int, ...]:
    """Return what is given beside a model's own tensors takes on each device: each memory once."""
    own = {id(tensor) for _, tensor in named_tensors(model)}
    tensors = (one for one in given if isinstance(one, torch.Tensor) and id(one) not in own)
    parts = [part for tensor in tensors for part in plain_parts(tensor)]
    memories = {t.untyped_storage().data_ptr(): t for t in parts}.values()
    sizes = [(t.device, whole(t.untyped_storage().nbytes())) for t in memories]
    return tuple(sum(size for where, size in sizes if where == device) for device in devices)
