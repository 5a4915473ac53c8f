# SPDX-License-Identifier: Apache-2.0
"""Steps of several micro-batches: collected behind dynamo's guards, then run as one program.

Beyond the paper.

A compiled function of model and loss is called once for each micro-batch, with a backend that only
collects its inputs: guards are checked and side effects happen as ever. Then one program runs all
that was collected. That needs a graph whose one tensor result is the loss: where Python is given
any other tensor, it would see a stand-in. Such a model runs one micro-batch after the other.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn

from baechi._core import InputError
from baechi.brief_errors import first_line, kind_and_line
from baechi.torch.capture.joint import flags
from baechi.torch.capture.loss import LossOf, call_arguments
from baechi.torch.program import Parts, Program, Roles, calls_of, in_parts, lower
from baechi.torch.program.parts import Output
from baechi.torch.program.peaks import exceeds
from baechi.torch.run import executor
from baechi.torch.run.away import tensors_of
from baechi.torch.run.backend import bring_together, weakly
from baechi.torch.run.calls import Classes, with_own_code
from baechi.torch.run.footprint import Walk, bytes_of_batch
from baechi.torch.run.joint import Joint, plain
from baechi.torch.run.marks import devices_of, keys_in
from baechi.torch.run.mini_batch import parts_of, samples_in
from baechi.torch.run.placement import Placement
from baechi.torch.run.regions import gathered
from baechi.torch.where.arrivals import Brought


class _ByCallsError(Exception):
    """A graph that cannot be collected, with the reason."""


@dataclass
class Collectable:
    """A graph of model and loss, whose inputs are collected instead of running it."""

    joint: Joint
    names: dict[fx.Node, str]
    loss: int  # its place among the outputs
    programs: dict[Any, tuple[Parts, Any]] = field(default_factory=dict)


Group = tuple[Collectable, list[tuple[Any, ...]], list[float]]  # micro-batches of one graph


class Steps:
    """What `placed.step` runs."""

    _is_dynamic: bool | None = None  # whether sizes vary in graphs; None: once they have

    def __init__(
        self, model: nn.Module, loss: Any, placement: Placement, micro_batches: int, samples: int
    ) -> None:
        self.model = model
        self.placement = placement
        self.micro_batches = micro_batches
        self.size = samples // micro_batches  # of a micro-batch, in samples
        self.by_calls = ""  # why micro-batches run one after the other, where they do
        self.texts: list[Program] = []
        self.walks: dict[bool, Walk] = {}  # the last ones with and without gradients before
        self._whole = LossOf(model, loss)
        self._collected: list[tuple[Collectable, tuple[Any, ...]]] = []
        self._graphs: list[Callable[..., Any]] = []  # dynamo has no other hold on them
        whole = self._whole

        arrivals = placement.arrivals

        def one(word: str, args: tuple[Any, ...], kwargs: dict[str, Any], targets: Any) -> Any:
            assert word  # which is then guarded
            if not arrivals.has_come((args, kwargs, targets)):
                args, kwargs, targets = arrivals.from_host(args, kwargs, targets)
            return whole.of(model._call_impl(*args, **kwargs), targets)

        self._classes = Classes(model)
        self._one = with_own_code(one)  # micro-batch, with its loss
        self._compiled = torch.compile(
            self._one, backend=weakly(self._backend), fullgraph=True, dynamic=self._is_dynamic
        )

    def __call__(self, inputs: Any, targets: Any, scaler: Any) -> torch.Tensor:
        """Run a mini-batch; return the mean loss, weighted by samples."""
        count = samples_in(inputs, "inputs", targets)
        there: tuple[Any, Any, Any] = inputs, {}, targets
        arrivals = self.placement.arrivals
        # Beside a store, which a batch on the CPU would be on, programs do not bring it.
        if self.placement.away.store is not None or arrivals.has_come(there):
            there = arrivals.of(*there)
        batch = Brought((inputs, targets), (there[0], there[2]))
        try:
            return self._run_parts(there[0], there[2], count, scaler)
        finally:
            batch.give_back()

    def _run_parts(self, inputs: Any, targets: Any, count: int, scaler: Any) -> torch.Tensor:
        self._collected.clear()  # of a step that was broken off
        losses: list[torch.Tensor] = []
        shares: list[float] = []
        for part, size in parts_of((inputs, targets), count, self.size):
            share = size / count
            args, kwargs = call_arguments(part[0])
            if not self._collect(args, kwargs, part[1]):
                losses += self._run(shares, scaler)
                shares = []
                losses.append(self._call(args, kwargs, part[1], share, scaler))
            else:
                shares.append(share)
        losses += self._run(shares, scaler)
        return sum(losses[1:], start=losses[0])

    def _collect(self, args: Any, kwargs: Any, targets: Any) -> bool:
        """Take a micro-batch; False where it has to be run by itself."""
        with torch._dynamo.config.patch(**flags()):
            why = self.by_calls or self._why_whole_gradients()
            why = why or self._collected_or_why(args, kwargs, targets)
        if not why:
            return True
        if not self.by_calls:
            self.by_calls = why
            warnings.warn(
                f"micro-batches run one after the other: {why}; losses and gradients are the same",
                stacklevel=4,
            )
        return False

    def _collected_or_why(self, args: Any, kwargs: Any, targets: Any) -> str:
        """Take a micro-batch; return why it has to be run by itself, if it has.

        Nothing has run yet: a call repeats what is an error of the model or of the batch.
        """
        try:
            count = len(self._collected)
            self._compiled(self._classes.word(), args, kwargs, targets)
            if len(self._collected) == count:
                raise InputError(
                    "step: torch.compile is switched off (TORCHDYNAMO_DISABLE, set_stance); "
                    "switch it on, or call the model and the backward of its loss"
                )
            return ""
        except (InputError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # dynamo's own, and of whatever it traces through
            return first_line(getattr(error, "inner_exception", error))

    def _why_whole_gradients(self) -> str:
        for name, weight in self.model.named_parameters():
            if weight._backward_hooks or weight._post_accumulate_grad_hooks:
                return f"a hook of {name!r} is called with its whole gradient"
        return ""

    def _call(self, args: Any, kwargs: Any, targets: Any, share: float, scaler: Any) -> Any:
        args, kwargs, targets = self.placement.arrivals.of(args, kwargs, targets)
        output = self.model(*args, **kwargs)
        loss = self._whole.of(output, targets)
        part = loss * share
        (part if scaler is None else scaler.scale(part)).backward()
        return part.detach()

    def _backend(self, graph: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """Return what collects the inputs of a graph; a backend of `torch.compile`."""
        try:
            found = self._collectable(graph, example_inputs)
        except _ByCallsError:
            raise
        except Exception as error:
            why = f"its graph cannot be made: {kind_and_line(error)}"
            raise _ByCallsError(why) from error

        result = stand_ins(graph)

        def collect(*args: Any) -> list[Any]:
            self._collected.append((found, tuple(plain(args))))
            return result(*args)

        self._graphs.append(collect)
        return weakly(collect)

    def _collectable(self, graph: fx.GraphModule, example_inputs: Sequence[Any]) -> Collectable:
        outputs = graph.graph.output_node().args[0]
        tensors = [
            n
            for n in outputs
            if isinstance(n, fx.Node) and isinstance(n.meta.get("example_value"), torch.Tensor)
        ]
        if len(tensors) != 1:
            raise _ByCallsError(
                f"{len(tensors)} tensors leave its graph, and only the loss may: it keeps some, or "
                "returns more"
            )
        if tensors[0].meta["example_value"].dim() != 0:
            raise InputError("loss: it has to be a scalar")
        bring_together(graph, self.placement)
        joint = Joint(graph, example_inputs, self.placement)
        if joint.wraps and joint.mutated:
            raise _ByCallsError("it changes tensors, and reads some that wrap others")
        if any(joint.results[joint.returned + i] is not None for i in joint.mutated):
            raise _ByCallsError("it changes a tensor that is trained")
        results = [i for i in range(joint.returned) if joint.kinds[i] == "PlainAOTOutput"]
        trained = [i for i in results if i in joint.tangent_of]
        if len(trained) != 1 or joint.shown:
            raise _ByCallsError("its loss is no result of its own")
        return Collectable(joint, keys_in(joint.module.graph), trained[0])

    def _run(self, shares: Sequence[float], scaler: Any) -> list[torch.Tensor]:
        """Run what was collected: micro-batches of one graph together."""
        losses: list[torch.Tensor] = []
        for found, group, own in self._grouped(shares):
            scale = scale_of(scaler, found.joint.tangents[0].meta["val"].device)
            losses += self._run_group(found, group, own, scale)
        return losses

    def _grouped(self, shares: Sequence[float]) -> list[Group]:
        """Return what was collected with its shares, those of one graph together."""
        groups: list[Group] = []
        for (found, args), share in zip(self._collected, shares, strict=True):
            if not groups or groups[-1][0] is not found:
                groups.append((found, [], []))
            groups[-1][1].append(args)
            groups[-1][2].append(share)
        self._collected.clear()
        return groups

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _run_group(
        self,
        found: Collectable,
        group: Sequence[tuple[Any, ...]],
        shares: Sequence[float],
        scale: float,
    ) -> list[torch.Tensor]:
        joint = found.joint
        weights = {
            joint.returned + i: arg
            for i, arg in enumerate(group[0])
            if joint.results[joint.returned + i] is not None and isinstance(arg, torch.Tensor)
        }
        known, existing = len(self.texts), self._existing(weights)
        parts, run = self._program(found, len(group), self._shared(group), existing)
        if len(self.texts) > known:
            self.walks[bool(existing)] = self._walk(found, parts, group)
        values = run(self._inputs(found, parts, group, [s * scale for s in shares], weights))
        losses, own = [], []
        for output, value in zip(parts.outputs, values, strict=True):
            if output.place == found.loss:
                if value is not None:
                    losses.append(value)
                    own.append(shares[output.part or 0])
            elif output.place in weights and output.place not in existing and value is not None:
                self._give(weights[output.place], value)
        made, wholes = dict(zip(parts.outputs, values, strict=True)), ((None, group[0]),)
        for i, place in joint.mutated.items():
            is_own = Output(place, 0) in made
            if not is_own and Output(place) not in made:
                torch.autograd.graph.increment_version(group[0][i])  # the program wrote it
                continue
            for part, args in enumerate(group) if is_own else wholes:
                if (new := made[Output(place, part)]) is not None:
                    args[i].copy_(new)
        if len({*own}) == 1 and sum(own) == 1.0:
            return [torch.stack(losses).mean() if losses[1:] else losses[0]]
        return [loss * share for loss, share in zip(losses, own, strict=True)]

    def _give(self, weight: torch.Tensor, gradient: torch.Tensor) -> None:
        """Give a weight a gradient: one that was tied behind dynamo's back has two."""
        if weight.grad is None:
            weight.grad = gradient
        else:
            weight.grad.add_(gradient)

    def _walk(self, found: Collectable, parts: Parts, group: Sequence[tuple[Any, ...]]) -> Walk:
        """Return the newest program and what there is of its inputs anyway."""
        program, count = self.texts[-1], len(found.joint.primals)
        pairs = zip(parts.inputs, program.inputs, strict=True)
        given = {
            slot.name: group[one.part or 0][one.place]
            for one, slot in pairs
            if not one.gradient and one.place < count
        }
        batch = bytes_of_batch(self.model, self.placement.devices, given.values())
        return Walk(program, frozenset(given), batch)

    def _shared(self, group: Sequence[tuple[Any, ...]]) -> frozenset[int]:
        """Return the inputs that all micro-batches have in common."""
        args = enumerate(group[0])
        return frozenset(i for i, arg in args if all(_same(arg, other[i]) for other in group))

    def _existing(self, weights: Mapping[int, torch.Tensor]) -> frozenset[int]:
        """Return the gradients that are there, to which the program adds."""
        return frozenset(i for i, weight in weights.items() if weight.grad is not None)

    def _finish(
        self, parts: Parts, count: int, found: Collectable, gradients: Sequence[int]
    ) -> None:
        """Add what the gradients of all parts still need."""

    def _promised(self, joint: Joint) -> list[int | None]:
        """Return the device that each output comes to."""
        return joint.promised

    def _runnable(self, program: Program, parts: Parts, joint: Joint) -> Callable[..., Any]:  # noqa: ARG002
        """Return what runs a program."""
        return executor.compile(program, self.placement.devices)

    def _inputs(
        self,
        found: Collectable,
        parts: Parts,
        group: Sequence[tuple[Any, ...]],
        tangents: Sequence[float],
        weights: Mapping[int, torch.Tensor],
    ) -> list[Any]:
        joint = found.joint
        values: list[Any] = []
        for one in parts.inputs:
            if one.gradient:
                values.append(weights[one.place].grad)
            elif one.place < len(joint.primals):
                values.append(group[one.part or 0][one.place])
            else:
                like = joint.tangents[one.place - len(joint.primals)].meta["val"]
                value = tangents[one.part or 0]
                values.append(torch.full((), value, dtype=like.dtype, device=like.device))
        return values

    def _program(
        self, found: Collectable, count: int, shared: frozenset[int], existing: frozenset[int]
    ) -> tuple[Parts, Any]:
        key = count, shared, existing
        if key not in found.programs:
            joint, placement = found.joint, self.placement
            # What micro-batches have in common goes on from one to the next; each changes its own.
            carried = {i: out for i, out in joint.mutated.items() if i in shared}
            gradients = [
                i for i in range(joint.returned, len(joint.results)) if joint.results[i] is not None
            ]
            calls = calls_of(
                joint.module,
                devices_of(joint.module.graph, placement),
                promised=self._promised(joint),
                names=found.names,
            )
            names = found.names
            roles = Roles(shared - set(carried), gradients, carried, writes=True)
            parts = in_parts(calls, count, roles, existing=existing)
            self._finish(parts, count, found, gradients)
            orders = placement.orders_of_steps(names, parts.last, count)
            tensors = tensors_of(calls, names, joint.module.graph.find_nodes(op="placeholder"))
            sums = {total: tensors[of] for total, of in parts.sums.items() if of in tensors}
            fetching = placement.away.fetching_in_parts(parts.calls, tensors, names, count, sums)
            devices = len(placement.devices)
            programs = [
                lower(parts.calls, devices=devices, order=order, fetching=fetching)
                for order in orders
            ]
            fits = not exceeds(programs[0], programs[-1], placement.spare)
            program = gathered(programs[0 if fits else -1], placement)
            self.texts.append(program)
            found.programs[key] = parts, self._runnable(program, parts, joint)
        return found.programs[key]


def scale_of(scaler: Any, device: torch.device) -> float:
    """Return the scale of a GradScaler, which has it on a device from now on."""
    return 1.0 if scaler is None else float(scaler.scale(torch.ones((), device=device)))


def stand_ins(graph: fx.GraphModule) -> Callable[..., list[Any]]:
    """Return what a collected graph gives Python: its numbers, and nothing for its loss."""
    numbers = fx.Graph()
    outputs: Any = numbers.graph_copy(graph.graph, {})
    is_tensor = [
        isinstance(node, fx.Node) and isinstance(node.meta.get("example_value"), torch.Tensor)
        for node in outputs
    ]
    numbers.output([None if t else n for n, t in zip(outputs, is_tensor, strict=True)])
    numbers.eliminate_dead_code()
    known = fx.GraphModule(graph, numbers)

    def result(*args: Any) -> list[Any]:
        pairs = zip(known(*args), is_tensor, strict=True)
        return [torch.zeros(()) if tensor else value for value, tensor in pairs]

    return result


def _same(a: Any, b: Any) -> bool:
    return a is b if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor) else a == b
