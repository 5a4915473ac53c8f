# SPDX-License-Identifier: Apache-2.0
"""What a recorded step of a PyTorch model is, as plain values (Paper 4.1).

A tensor is a *storage*: views are the same tensor, and an operator that only makes views is none.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import torch

from baechi._core import InputError
from baechi.torch.record.autograd_graph import AutogradNode

BACKWARD = ":backward"  # behind the key of an operator: its backward
BY_WEIGHTS = ":weight_gradient"  # or, of a backward in two, what only its weights get
LOSS = ">loss"  # where the functions of the loss are; no module is called so
_ALLOCATION = 512  # bytes that caching allocators round sizes up to


def rounded(size: int) -> int:
    """Return what an allocator takes for `size` bytes."""
    return -(-size // _ALLOCATION) * _ALLOCATION


@dataclass
class Work:
    """What an operator does to the hardware in one direction."""

    flops: int = 0
    bytes: int = 0  # read and written
    kernels: int = 0
    temporary: int = 0  # bytes alive only while it runs

    def add(self, other: Work) -> None:
        """Take over the work of an operator that is folded into this one."""
        self.flops += other.flops
        self.bytes += other.bytes
        self.kernels += other.kernels
        self.temporary = max(self.temporary, other.temporary)


@dataclass
class Halves:
    """The backward of one product with weights, when its two gradients are taken apart."""

    by_inputs: Work
    by_weights: Work


@dataclass
class Tensor:
    """A storage that operators share. Without a producer it came from outside."""

    bytes: int
    producer: int | None
    requires_grad: bool = False
    returned: bool = False  # part of what the model returns
    writers: list[int] = field(default_factory=list)  # producer first, then changes in place


@dataclass
class TensorObject:
    """A tensor as the model's own code holds it: of one storage there may be several."""

    tensor: int
    bytes: int
    given: list[int] = field(default_factory=list)  # operators that returned it, its maker first
    kept: list[int] = field(default_factory=list)  # operators whose backward keeps it, or a view
    node: tuple[int, int] | None = None  # of autograd, and which of its outputs it is
    until: int | None = None  # events of the trace before the code let go of it; None: it did not
    returned: bool = False  # by the model
    reader: int | None = None  # an operator where autograd has taken it in a forward: it is there
    handed: int | None = None  # which one it is, or is a view of, that its giver was handed itself

    @property
    def maker(self) -> int | None:
        """The operator that returned it first."""
        return self.given[0] if self.given else None

    def sender(self, reader: int) -> int | None:
        """The operator that returned it last before `reader` took it: behind it, it is sent."""
        return max((op for op in self.given if op < reader), default=None)


@dataclass
class Weight:
    """A parameter or a buffer; tied ones are one."""

    name: str
    bytes: int
    trained: bool
    gradient: int | None = None  # bytes of the one that it has behind the step: few of a sparse one


@dataclass
class Op:
    """A module call or a torch function."""

    key: str
    kind: str
    module: str | None  # path of the unit; None for a function
    scope: str = ""  # path of the module that calls a function
    reads: dict[int, int | None] = field(default_factory=dict)  # tensor -> who wrote it last
    made: list[int] = field(default_factory=list)
    changed: list[int] = field(default_factory=list)  # made by others, changed in place
    saved: list[int] = field(default_factory=list)  # kept for its backward
    # The storage of each tensor that it returns, or the name of the weight.
    returned: list[int | str | None] = field(default_factory=list)
    weights: list[str] = field(default_factory=list)
    changes_weights: bool = False  # in place, as averages in buffers are
    random: bool = False  # draws random numbers
    forward: Work = field(default_factory=Work)
    backward: Work = field(default_factory=Work)
    halves: Halves | None = None  # of the backward, where it is that of one product with weights
    arrives: dict[int, int] = field(default_factory=dict)  # bytes of its arguments, by tensor
    feeds: dict[int, list[int]] = field(default_factory=dict)  # readers of each output as it is
    takes: list[int] = field(default_factory=list)  # its arguments, as numbers of Capture.seen
    # Events of the trace before autograd let go of what it saved; none where it did not.
    released: dict[int, int] = field(default_factory=dict)
    end: int = 0  # events of the trace before its end
    shapes: str = ""
    grads: bool = False  # it has a backward
    told: bool = False  # by an argument, on which device to make something
    repeats: bool = True  # can run again with the same arguments, as far as Python sees
    # What `torch.autograd.grad` ran of another operator's backward, where that one runs: of which.
    inner: int | None = None

    @property
    def only_views(self) -> bool:
        """Whether it makes nothing new: where it runs follows from its input."""
        return not (self.made or self.changed or self.changes_weights)


@dataclass(frozen=True)
class KernelRun:
    """A kernel that an operator ran: one event of the recorded step."""

    op: int
    backward: bool
    reads: tuple[tuple[int, int], ...]  # tensor and the bytes of it that were read
    made: tuple[int, ...]
    sums: bool = False  # two gradients, between the runs of two nodes
    again: bool = False  # of the forward, in the backward: what it makes is where `op` runs


@dataclass
class Again:
    """A run of an operator in the backward, for activations that were not kept."""

    op: int
    begin: int  # events of the trace before it
    end: int = 0  # and before its end
    until: int = 0  # and before the end of all that is computed again with it
    takes: list[TensorObject] = field(default_factory=list)
    makes: list[TensorObject] = field(default_factory=list)
    planned: bool = False  # as a plan says: what it reads was held for it, or made again, too


@dataclass
class Capture:
    """A recorded step: operators in the order of the forward, and what flows between them."""

    ops: list[Op]
    tensors: list[Tensor]
    weights: dict[str, Weight]
    aliases: dict[str, str]  # the weight that a tied name stands for
    units: set[str]  # the paths of the units that were called
    entries: dict[str, set[int]]  # the tensors that came in by arguments, by module around units
    exits: dict[str, list[tuple[int, int] | None]]  # operator and output behind theirs, by call
    trace: list[KernelRun | int]  # what ran and, as a number, which tensor was freed, in order
    nodes: list[AutogradNode]  # of autograd, in the order in which they ran
    seen: list[TensorObject]
    training: bool
    dtype: str  # of the weights, as the presets name it
    name: str
    values: dict[int, list[tuple[int | None, int]]] = field(default_factory=dict)
    # of a graph: storage (None: a weight's) and bytes of each tensor that a node is
    again: list[Again] = field(default_factory=list)


PRECISIONS = {torch.float16: "fp16", torch.bfloat16: "bf16"}


def kept_ops(captured: Capture) -> dict[int, int | None]:
    """Return for every recorded operator the one that stands for it in the graph.

    An operator that only makes views is part of the one that made their storage.
    """
    stands: dict[int, int | None] = {}
    for index, op in enumerate(captured.ops):
        if not op.only_views:
            stands[index] = index
            continue
        writer = _writer_behind(op)
        stands[index] = None if writer is None else stands[writer]
    return stands


def repeated_ops(captured: Capture, again: Collection[str]) -> set[int]:
    """Return the operators that run again where those of a plan do: views of theirs, too."""
    stands = kept_ops(captured)
    planned = {index for index, op in enumerate(captured.ops) if op.key in again}
    return {index for index in range(len(captured.ops)) if stands[index] in planned}


def planned_ops(captured: Capture) -> list[Op]:
    """Return the operators that a plan knows: those that stand for themselves in the graph."""
    stands = kept_ops(captured)
    return [op for index, op in enumerate(captured.ops) if stands[index] == index]


def check_is_of(
    captured: Capture,
    known: Collection[str],
    made_with: str = "example inputs and the units",
) -> None:
    """Raise InputError unless a plan that knows these operators is of this step.

    Args:
        captured: The step.
        known: The operators of the plan.
        made_with: What decides which operators there are.

    """
    missing = next((op.key for op in planned_ops(captured) if op.key not in known), None)
    if missing is not None:
        raise InputError(
            f"the plan is of another step: it says nothing of operator {missing!r} of "
            f"{captured.name}; give the {made_with} that it was made with"
        )


def _writer_behind(op: Op) -> int | None:
    """Return what wrote the storage that a view is of: an index that is a tensor is only read."""
    if op.returned:
        first = op.returned[0]
        return op.reads.get(first) if isinstance(first, int) else None
    return next((w for w in op.reads.values() if w is not None), None)
