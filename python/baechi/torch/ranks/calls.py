# SPDX-License-Identifier: Apache-2.0
"""Calls over ranks: all make the same one, each runs its part of it, and all have the result.

A call is one graph, whose forward and backward run as in one process (`run.graphs`). What it
returns, and the gradients of its batch, are shared behind each of them.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from baechi._core import InputError
from baechi.brief_errors import first_line
from baechi.torch.program import Program, Slot
from baechi.torch.program.cutting import EVERYWHERE, Layout
from baechi.torch.program.instructions import HOST
from baechi.torch.program.peaks import whole
from baechi.torch.ranks.errors import facts_of
from baechi.torch.ranks.gradients import is_finite, real, stand_for_gradients
from baechi.torch.ranks.processes import Agreement
from baechi.torch.ranks.program import READ, RankPlacement, RankProgram
from baechi.torch.run.backend import Backend, Frame, weakly
from baechi.torch.run.calls import Classes, with_own_code
from baechi.torch.run.footprint import CallWalk, bytes_of_batch, peaks_of_call
from baechi.torch.run.graphs import Graph
from baechi.torch.where.hooks import batch_on

_CALL = "call this model"
_ALIKE = 1e-2  # how far the gradients that ranks are given may differ, as kernels round


class RankCalls(Backend):
    """What a model over ranks is called by, and the backend of its graphs."""

    placement: RankPlacement

    def __init__(self, placement: RankPlacement) -> None:
        super().__init__(placement)
        self.processes = processes = placement.processes
        model = placement.model
        self.last: tuple[RankGraph, int] | None = None  # that went back, and bytes of its batch
        self._shaped = contextlib.ExitStack()  # open while a call is traced, or its guards checked
        self._facts: dict[str, str] = {}
        self._batch: Any = ()
        self._is_traced = self._has_asked = False
        self._classes = Classes(model)
        devices = [processes.traced]

        def call(word: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            assert word  # which is then guarded
            if not torch.compiler.is_compiling():
                raise InputError(
                    "torch.compile is switched off (TORCHDYNAMO_DISABLE, set_stance), and over "
                    "ranks nothing runs without it: switch it on"
                )
            args, kwargs = batch_on((args, kwargs), devices)
            return model._call_impl(*args, **kwargs)

        made, backend = with_own_code(call), weakly(self.__call__)
        self._call = torch.compile(made, backend=backend, fullgraph=True, dynamic=False)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model, as all ranks do."""
        self._batch = args, kwargs = self.placement.traced((args, kwargs))
        self._facts = self.placement.facts_of(self._batch)
        self._facts["gradients"] = str(torch.is_grad_enabled())
        self._is_traced = self._has_asked = False
        try:
            with contextlib.ExitStack() as self._shaped:
                self._shaped.enter_context(self.placement.tracing())
                result = self._call(self._classes.word(), args, kwargs)
        except Exception as error:
            if not self._has_asked:  # all are to know that this one cannot
                said = error if self._is_traced else self._refusal(error)
                self.processes.agree(_CALL, self._facts, said)
            raise
        if not self._has_asked:
            self.processes.agree(_CALL, self._facts)
        return result

    def ask(self) -> None:
        """Tell the others of this call: from here on they get its messages, or an error."""
        self._has_asked = True
        self.processes.asked = Agreement(self.processes, _CALL, self._facts)

    def _refusal(self, error: Exception) -> Exception:
        """Return why nothing was traced."""
        inner: BaseException = getattr(error, "inner_exception", error)
        if isinstance(inner, InputError):
            return inner
        while inner.__cause__ is not None:
            inner = inner.__cause__
        return self.placement.no_graph("call", first_line(inner))

    def _compiled(self, graph: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """Return what runs a graph of dynamo's."""
        made = RankGraph(graph, example_inputs, self)
        self.frames.append(Frame(made.programs))

        def called(*args: Any) -> list[Any]:
            self._shaped.close()
            self._is_traced = True
            self._facts["program"] = made.digest
            self._facts[READ] = facts_of(self.placement.others_of(args, self._batch))
            if made.joint.tangents:
                (batch,) = bytes_of_batch(self.placement.model, [self.processes.traced], args)
                self.last = made, batch
            return made(*args)

        return called


class RankGraph(Graph):
    """A graph of dynamo's of which each rank runs its part."""

    placement: RankPlacement

    def __init__(
        self, graph: fx.GraphModule, example_inputs: Sequence[Any], calls: RankCalls
    ) -> None:
        self._ask, self.processes = calls.ask, calls.processes
        self.owners: list[int] = []  # who has what the forward gives
        self.runs: dict[str, RankProgram] = {}  # by the names of programs
        super().__init__(graph, example_inputs, calls.placement)
        joint, given = self.joint, self.joint.primals
        if joint.tangents and self.processes.replicas.count > 1:
            raise InputError(
                "over replicas a call has no gradients: run placed.step(inputs, targets), or call "
                "the model under torch.no_grad()"
            )
        shown = [base for *views, base in joint.shown.values() if views and base in given]
        for place in map(given.index, shown):
            if name := joint.weights.get(place):
                raise InputError(f"over ranks no call returns a view of {name!r}: one rank has it")
        for i in self.outputs:
            _layout_of(self.programs["forward"].outputs[i], self.owners[i])

    def __call__(self, *args: Any) -> list[Any]:
        """Run the forward; hooks of weights that others have are called where these are."""
        away = {id(weight) for weight, _ in self.placement.weights.away.values()}
        return super().__call__(
            *(a.detach().requires_grad_(a.requires_grad) if id(a) in away else a for a in args)
        )

    @functools.cached_property
    def digest(self) -> str:
        """What tells its program from others."""
        return self._forward.digest

    def eagerly(self, args: Sequence[Any]) -> list[Any]:  # noqa: ARG002
        """Raise InputError: no rank has all weights."""
        raise InputError("over ranks a call has no second derivatives: no rank has all weights")

    def _is_for_eager(self, args: Sequence[Any]) -> bool:  # noqa: ARG002
        return False

    def backward(self, kept: Any, tangents: list[Any], shapes: list[Any]) -> list[Any]:
        """Run the backward, as all ranks do."""
        processes = self.processes
        there = [i for i, tangent in enumerate(tangents) if tangent is not None]
        seen = [_seen(tangents[i].detach()) for i in there]
        facts = {"outputs with gradients": str(there), "forward": self.digest}
        facts["call"] = f"number {kept.number}"
        sums = [sum(each) for each in zip(*seen, strict=True)]
        found = processes.agree("run the backward of a call", facts, None, sums)
        for rank, each in enumerate(found):
            for mine, first in zip(each, found[0], strict=True):
                is_close = math.isclose(mine, first, rel_tol=0, abs_tol=_ALIKE * found[0][0])
                if not is_close and (mine == mine or first == first):
                    raise InputError(
                        f"ranks 0 and {rank} do not have the same gradients of what a call "
                        "returned: every rank computes the same loss, of the same targets"
                    )
        gradients = super().backward(kept, tangents, shapes)
        stand_for_gradients(self.placement.weights.away)
        return gradients

    def peaks_of(self, device: int, batch: int, of_loss: int) -> list[int] | None:
        """Return the most bytes of a device, and of its rank's store, beside weights and buffers.

        Args:
            device: Which.
            batch: The bytes of the batch where it was traced.
            of_loss: What the loss makes of results, on every rank.

        """
        ends = len(self.placement.devices)
        if (walk := CallWalk.of(self, (0,) * ends)) is None:
            return None
        there = walk.resident
        if not self.processes.is_traced[device]:  # programs have copies of the batch
            where, batch = self._forward.where, 0
            there = frozenset(name for name in there if where.get(name) != EVERYWHERE)
        runs = {id(run.whole): run for run in self.runs.values()}
        forward, backward = (runs[id(half)].of(device) for half in (walk.forward, walk.backward))
        given = (out for out in forward.outputs if isinstance(out, Slot))
        there |= {out.name for out in given if out.storage in there}
        more = [0] * (forward.devices - 1)  # of the store
        here = CallWalk(forward, backward, there, (batch, *more), (walk.later[device], *more))
        shared = 0  # what others have made
        for i in self.outputs:
            out, owner = self.programs["forward"].outputs[i], self.owners[i]
            if owner != device and (layout := _layout_of(out, owner)) and out.device != HOST:
                shared += whole(layout.bytes)
        return peaks_of_call([here], [of_loss + shared, *more])

    def number(self) -> int:
        """Return which call this is: all ranks go back through it at once."""
        return next(self.processes.calls)

    def _promised(self) -> list[int | None]:
        """Have results stay where they are made, or on the host; new buffers come home."""
        homes = {output: self.joint.homes.get(place) for place, output in self.mutated.items()}
        places = enumerate(super()._promised())
        return [homes.get(i, HOST if place == HOST else None) for i, place in places]

    def _runnable(self, name: str, program: Program) -> Any:
        joint, of = self.joint, self.placement.weights.owners
        known: dict[int, int | None] = {place: of[w] for place, w in joint.weights.items()}
        if name == "forward":
            owners = [known.get(place) for place in range(len(program.inputs))]
            homes = {output: known.get(place) for place, output in self.mutated.items()}
        else:
            saved = {n: self.owners[joint.returned + i] for n, i in self.place_of.items()}
            owners, homes = [saved.get(slot.name) for slot in program.inputs], known
        wanted = [homes.get(i) for i in range(len(program.outputs))]
        run = self.runs[name] = RankProgram(program, owners, wanted, self.placement)
        if name == "forward":
            self.owners, self._forward = run.part.owners, run
        return functools.partial(self._run, name, run)

    def _run(self, name: str, run: RankProgram, values: list[Any]) -> list[Any]:
        """Run this rank's part; return all that every rank is to have."""
        processes = self.processes
        if name == "forward":  # nothing between this and what sends, if need be without values
            self._ask()
        found, error = run.tried(functools.partial(run, values), processes.part)
        there = range(len(found)) if name == "forward" else self._own_gradients(found)
        finite = name == "forward" or all(is_finite(found[i]) for i in there)
        told = processes.agree(f"finish the {name} of this call", {}, error, [float(finite)])
        if finite and not all(others[0] for others in told):  # which a GradScaler looks for
            if some := [i for i in there if found[i].numel()]:
                least = min(some, key=lambda i: found[i].numel())
                found[least] = torch.full_like(found[least], float("inf"))
            else:
                self.placement.weights.be_infinite()
        weights = self.joint.weights
        if name == "forward":  # with what becomes of the batch
            outputs = [*self.outputs, *(i for at, i in self.mutated.items() if at not in weights)]
        else:
            outputs = [i for i in range(len(found)) if i not in weights]
        for i in outputs:
            found[i] = self._shared(run.whole.outputs[i], run.part.owners[i], found[i])
        return found

    def _own_gradients(self, found: Sequence[Any]) -> list[int]:
        """Return the places of the gradients of weights that this rank has."""
        return [i for i in self.joint.weights if i < len(found) and found[i] is not None]

    def _shared(self, out: Any, owner: int, value: Any) -> Any:
        """Return a value of one rank as every rank has it."""
        layout, processes = _layout_of(out, owner), self.processes
        if layout is None:
            return value
        rank = processes.replicas.of_parts(0)[owner]
        memory = layout.empty()
        if rank == processes.rank:
            memory.copy_(value)
        line = memory.as_strided((memory.numel(),), (1,))
        processes.have(line, rank)
        if rank == processes.rank:
            return value
        is_on_host = out.device in (HOST, self.placement.away.store)
        return memory if is_on_host else memory.to(processes.device)


def _layout_of(out: Any, owner: int) -> Layout | None:
    """Return how a result is shared; None: every rank has it."""
    if not isinstance(out, Slot) or owner == EVERYWHERE:
        return None
    if out.like is None:
        raise InputError(
            f"over ranks a call returns plain tensors, which {out!r}, of rank {owner}, is not"
        )
    return Layout.of(out.like)


def _seen(tensor: torch.Tensor) -> tuple[float, float]:
    """Return the norm of a tensor, and its values' sum, each with a weight by its place."""
    values = real(tensor)
    kind = torch.promote_types(values.dtype, torch.float)
    norm = float(torch.linalg.vector_norm(values, dtype=kind))
    while values.dim():
        places = torch.arange(1.0, values.shape[-1] + 1, device=values.device)
        values = values @ places.cos().to(values.dtype)
    return norm, float(values)
