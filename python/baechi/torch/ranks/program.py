# SPDX-License-Identifier: Apache-2.0
"""Programs over ranks: each rank runs the part of its device, and draws numbers of its own."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from baechi._core import InputError
from baechi.torch.capture.joint import flags
from baechi.torch.capture.keys import TANGENT
from baechi.torch.program import Program, Slot
from baechi.torch.program.cutting import EVERYWHERE, Ranks, part_of
from baechi.torch.program.peaks import walk
from baechi.torch.ranks.errors import RankError, digest, facts_of
from baechi.torch.ranks.processes import Processes
from baechi.torch.ranks.replicas import Buckets
from baechi.torch.ranks.transport import Transport
from baechi.torch.ranks.weights import RankWeights
from baechi.torch.run import executor
from baechi.torch.run.joint import plain
from baechi.torch.run.placement import Placement
from baechi.torch.where.moving import listed, moved

_GRAPHS = 64  # one for each size of a batch, as messages have sizes
READ = "values of tensors that the model reads"
_SPREAD = 1_000_003  # between the seeds of streams
_MOST_ERRORS = 16  # that streams of a device may still have


class RankPlacement(Placement):
    """A placement whose devices are other processes': weights are found by what they are."""

    weights: RankWeights
    buckets: Buckets

    def __init__(self, processes: Processes, *given: Any, **how: Any) -> None:
        super().__init__(*given, **how)
        self.processes = processes

    def homes_of(self, inputs: Sequence[Any]) -> dict[int, int]:
        """Return the device of each input that is a weight or a buffer, by its place."""
        return {i: self.homes.get(name, 0) for i, name in self.weights_in(inputs).items()}

    def weights_in(self, inputs: Sequence[Any]) -> dict[int, str]:
        """Return the names of inputs that are weights or buffers, by their place."""
        known = self.weights.names
        return {i: known[id(value)] for i, value in enumerate(inputs) if id(value) in known}

    def traced(self, batch: Any) -> Any:
        """Return a batch where it is traced: on the CPU a store is, too, and ranks of others."""
        processes = self.processes
        if self.away.store is None and processes.are_alike:
            return batch
        return moved(batch, processes.traced, {torch.device("cpu"), processes.device})

    @contextlib.contextmanager
    def tracing(self) -> Iterator[None]:
        """Trace as all ranks do, as if all weights were here; by a graph for each size."""
        flagged = torch._dynamo.config.patch(recompile_limit=_GRAPHS, **flags())
        with self.weights.shaped(), self.processes.tracing(), flagged:
            yield

    def no_graph(self, what: str, why: str) -> InputError:
        """Return the error for what dynamo does not make one graph of."""
        return InputError(
            f"over ranks a {what} of {type(self.model).__name__} has to be one graph: {why}; "
            "change the model so that it is, or place it in one process with ranks=False"
        )

    def facts_of(self, batch: Any) -> dict[str, str]:
        """Return what ranks must have alike before they run what they trace."""
        on = [k for k in ("cpu", self.processes.traced.type) if torch.is_autocast_enabled(k)]
        return {
            "shapes of the batch": facts_of(batch, with_values=False),
            "values of the batch": facts_of(batch),
            "autocast": str([(kind, torch.get_autocast_dtype(kind)) for kind in on]),
        }

    def others_of(self, args: Sequence[Any], batch: Any) -> list[torch.Tensor]:
        """Return the tensors that a graph reads beside the batch and weights."""
        known = {*map(_memory, listed(batch))}
        parts = {id(part): part for part in plain([*{id(arg): arg for arg in args}.values()])}
        tensors = (part for i, part in parts.items() if i not in self.weights.names)
        return [t for t in tensors if isinstance(t, torch.Tensor) and _memory(t) not in known]


class RankProgram:
    """A rank's part of a program, run as the whole is: by all inputs, to all outputs.

    Args:
        whole: The program.
        owners: Who has each input; None: all.
        homes: Where each output is wanted; None: where it is made.
        placement: Of all.

    """

    def __init__(
        self,
        whole: Program,
        owners: Sequence[int | None],
        homes: Sequence[int | None],
        placement: RankPlacement,
    ) -> None:
        self.whole = whole
        inputs = zip(whole.inputs, owners, strict=True)
        self.where = {slot.name: EVERYWHERE if at is None else at for slot, at in inputs}
        for out, home in zip(whole.outputs, homes, strict=True):
            if isinstance(out, Slot) and home is not None:
                self.where.setdefault(out.name, home)
        self.digest = digest(f"{whole} {facts_of([whole.table[i] for _, i in whole.constants])}")
        self.processes = processes = placement.processes
        store = placement.away.store
        self.ranks = Ranks(processes.replicas.of_parts(processes.replica), store)
        self.transport = Transport(processes)
        self.part = part_of(whole, processes.part, self.where, self.ranks, self.transport)
        ends = [processes.device, *([] if store is None else [placement.devices[store]])]
        self.run = executor.compile(self.part.program, ends)
        self.took = 0.0  # seconds, when it ran last

    def of(self, device: int) -> Program:
        """Return the part of a device, as its rank runs it."""
        unused = Transport(self.processes)
        return part_of(self.whole, device, self.where, self.ranks, unused).program

    def peaks_of(self, device: int) -> list[int]:
        """Return the most bytes of a device, and of its rank's store, beside weights and batch."""
        here = self.processes.is_traced[device]  # else it has copies of the batch
        names = [slot.name for slot in self.whole.inputs if not slot.name.startswith(TANGENT)]
        given = [name for name in names if here or self.where[name] != EVERYWHERE]
        return walk(self.of(device), resident=given)[0]

    def __call__(self, values: list[Any]) -> list[Any]:
        """Run it; what other ranks have is None."""
        pairs = zip(self.part.inputs, self.part.program.inputs, strict=True)
        here = self.processes.device
        own = [values[i].to(here) if slot.device == 0 else values[i] for i, slot in pairs]
        values.clear()
        begin = time.perf_counter()
        found: list[Any] = self.run(own)
        self.took = time.perf_counter() - begin
        return found

    def tried(
        self, call: Callable[[], list[Any]], stream: int
    ) -> tuple[list[Any], Exception | None]:
        """Do what runs it; return what that gives, or its error once all messages have ended.

        Args:
            call: What runs it.
            stream: Which random numbers this rank draws.

        Raises:
            Exception: Ranks do not agree on it, or one was lost.

        """
        processes, found, error = self.processes, list[Any](), None
        with own_random_numbers(processes.device, stream):
            try:
                found = call()
                if processes.device.type != "cpu":  # what failed there shows where somebody waits
                    torch.accelerator.synchronize(processes.device)
            except Exception as failed:
                error = failed
                _settle(processes.device)
            try:
                processes.agreed()
            except Exception:
                processes.asked = None
                self.transport.forget()
                raise
        if processes.failed:
            raise RankError(processes.failed) from None
        self.transport.finish()
        return found, error


def _settle(device: torch.device) -> None:
    """Wait for what still runs behind an error: later calls are not to report that it failed, too.

    A device that stays broken fails each time.
    """
    for _ in range(_MOST_ERRORS if device.type != "cpu" else 0):
        try:
            torch.accelerator.synchronize(device)
        except Exception:  # of another stream
            continue
        break


@contextlib.contextmanager
def own_random_numbers(device: torch.device, stream: int) -> Iterator[None]:
    """Draw numbers of a stream, from one that all draw; what follows is the same on all."""
    devices = [] if device.type == "cpu" else [device]
    kind = devices[0].type if devices else "cuda"
    with torch.random.fork_rng(devices, device_type=kind):
        seed = _drawn()
        torch.default_generator.manual_seed(seed + _SPREAD * stream)
        if devices:  # torch.manual_seed would note it for all that may come
            current = torch.accelerator.current_device_index()  # whose generator that seeds
            torch.accelerator.set_device_index(device)
            torch.get_device_module(kind).manual_seed(seed + _SPREAD * stream)
            torch.accelerator.set_device_index(current)
        yield
    _drawn()  # as all do: whoever does not agree raises before


def _drawn() -> int:
    return int(torch.randint(1 << 48, ()))


def _memory(tensor: torch.Tensor) -> int:
    """Return what views of a tensor, as micro-batches are, have in common."""
    is_plain = tensor.layout is torch.strided and not is_traceable_wrapper_subclass(tensor)
    return tensor.untyped_storage()._cdata if is_plain else id(tensor)
