# SPDX-License-Identifier: Apache-2.0
"""Graphs: one of dynamo's, its forward and backward as programs behind one node of autograd.

The node is ours, not AOTAutograd's, so that gradients are what eager autograd gives: where nothing
reads an output, its part of the backward does not run, and weights behind it have no gradient; a
second derivative is that of the graph run eagerly.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from baechi.torch.capture.checkpoints import backward_of
from baechi.torch.capture.keys import TANGENT, is_call, is_move, is_random, is_tangent
from baechi.torch.private import keeps_graph
from baechi.torch.program import Program
from baechi.torch.program.instructions import HOST, Slot
from baechi.torch.run import executor
from baechi.torch.run.joint import Joint, plain
from baechi.torch.run.marks import program_of, promised_by, put_away
from baechi.torch.run.placement import Placement
from baechi.torch.run.regions import gathered
from baechi.torch.run.undefined import reached, read_later, without
from baechi.torch.where.drawn import repeats_programs
from baechi.torch.where.mode import Aside

_FREED = object()
_AGAIN = (
    "Trying to backward through the graph a second time: its values were freed by the first; give "
    "backward(retain_graph=True) there"
)


def partition(joint: fx.GraphModule, returned: int) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Return forward and backward of a marked joint graph.

    What the forward gives behind what it returns, the backward reads in that order, and then
    tangents.

    Args:
        joint: Its outputs are what the forward returns, then gradients.
        returned: How many of them the forward returns.

    """
    graph = joint.graph
    outputs = list(graph.output_node().args[0])
    behind = backward_of(graph, returned)
    read = [n for node in graph.nodes if node in behind for n in node.all_input_nodes]
    read += [n for n in outputs[returned:] if isinstance(n, fx.Node)]
    saved = dict.fromkeys(n for n in read if n not in behind and n.op != "get_attr")
    forward = [n for n in graph.nodes if n not in behind and n.op != "output"]
    kinds = ("get_attr", "placeholder", "call_function")
    backward = [n for n in graph.nodes if n in behind or n.op == "get_attr"]
    backward.sort(key=lambda node: kinds.index(node.op))
    return (
        _copied(joint, (), forward, [*outputs[:returned], *saved]),
        _copied(joint, saved, backward, outputs[returned:]),
    )


def _copied(
    joint: fx.GraphModule,
    given: Iterable[fx.Node],
    nodes: Iterable[fx.Node],
    outputs: Iterable[Any],
) -> fx.GraphModule:
    """Return a graph of some nodes, to which others are given."""
    graph, made = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in given:
        made[node] = graph.placeholder(node.name)
        made[node].meta = dict(node.meta)
    for node in nodes:
        made[node] = graph.node_copy(node, made.__getitem__)
    graph.output([made[out] if isinstance(out, fx.Node) else out for out in outputs])
    graph.eliminate_dead_code()
    return fx.GraphModule(joint, graph)


class Kept:
    """What one run of a forward keeps for its backward, for as long as autograd would.

    Autograd frees what a call has saved when the backward has run it. A graph is one node: where
    its backward runs by some of its outputs alone, what only others need stays for a later run.
    Values and arguments that others have, too, are watched.
    """

    def __init__(
        self,
        saved: Sequence[Any],
        args: Sequence[Any],
        outputs: Sequence[Any],
        shown: Mapping[int, int],
        number: int = 0,
    ) -> None:
        """Keep what a forward has saved.

        Args:
            saved: For the backward, in its order.
            args: What the forward was called with; None for what it has changed.
            outputs: What it returned. They are held without the node, which holds this.
            shown: Which of what it saved show arguments or outputs, or are copies of them: their
                places among both. Views made below autograd have versions of their own.
            number: Which call it was.

        """
        self.number = number
        ours = {id(value): value.detach() for value in outputs if isinstance(value, torch.Tensor)}
        others = [*args, *(ours.get(id(value)) for value in outputs)]
        self._saved = [ours.get(id(value), value) for value in saved]
        self._watched = {
            i: (others[place], others[place]._version)
            for i, place in shown.items()
            if isinstance(others[place], torch.Tensor)
        }
        self._args: list[Any] | None = list(args)
        self._before = [a._version if isinstance(a, torch.Tensor) else 0 for a in args]

    def take(self, read: Sequence[int], later: Collection[int], *, again: bool) -> list[Any]:
        """Return saved values by their positions.

        Args:
            read: The positions.
            later: Of what a later run may read although this one is not to be run again.
            again: The same may run again: nothing is freed.

        """
        values = [self._saved[i] for i in read]
        if any(value is _FREED for value in values):
            raise RuntimeError(_AGAIN)
        for i in read:
            if i in self._watched:
                _check_unchanged(*self._watched[i])
        if not again:
            self._saved = [v if i in later else _FREED for i, v in enumerate(self._saved)]
            if not later:
                self._args = None
            self._watched = {i: one for i, one in self._watched.items() if i in later}
        return values

    @property
    def args(self) -> list[Any]:
        """What the forward was called with."""
        if self._args is None:
            raise RuntimeError(_AGAIN)
        for value, version in zip(self._args, self._before, strict=True):
            if isinstance(value, torch.Tensor):
                _check_unchanged(value, version)
        return self._args


def _check_unchanged(tensor: torch.Tensor, version: int) -> None:
    if tensor._version != version:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace "
            f"operation: a tensor of shape {list(tensor.shape)} on {tensor.device} is at version "
            f"{tensor._version}; expected version {version} instead"
        )


@dataclass(frozen=True)
class _Backward:
    """A backward by some outputs: what it reads of what is saved, and what stays for others."""

    name: str
    run: Any
    read: list[int]
    later: Collection[int] = ()


class Graph:
    """A graph of dynamo's that runs as programs."""

    def __init__(
        self, graph: fx.GraphModule, example_inputs: Sequence[Any], placement: Placement
    ) -> None:
        self.joint = joint = Joint(graph, example_inputs, placement)
        self.placement = placement
        self.tangent_of = joint.tangent_of
        self.layouts = [_layout(node.meta["val"]) for node in joint.tangents]
        self.mutated = joint.mutated
        nodes = joint.module.graph.nodes
        self.runs_once = bool(joint.mutated or joint.wraps) or any(
            is_call(node) and is_random(node) for node in nodes
        )
        self.forward_graph, self.backward_graph = partition(joint.module, joint.returned)
        self.programs: dict[str, Program] = {}
        self._backwards: dict[tuple[bool, ...], _Backward | None] = {}
        given = self.backward_graph.graph.find_nodes(op="placeholder")
        self.given = [node.name for node in given if not is_tangent(node)]
        put_away(given, placement.away)
        self.whole = self._lowered(self.backward_graph)
        saved = [slot.name for slot in self.whole.inputs if not slot.name.startswith(TANGENT)]
        self.place_of = {name: i for i, name in enumerate(saved)}
        nodes = self._save(saved)
        promised = self._promised()
        homes = {slot.name: slot.device for slot in self.whole.inputs}
        promised[joint.returned :] = [  # what shows a weight that is away is on the host here
            _device_in(name) if placement.away.store is None else homes[name] for name in saved
        ]
        forward = program_of(self.forward_graph, placement, promised)
        self.forward = self._compiled("forward", forward)
        plain = range(joint.returned)
        kept = [i for i in plain if joint.kinds[i] != "InputMutationAOTOutput"]
        self.outputs = [i for i in kept if i not in joint.shown]
        self.order = kept
        self.place = {joint.results[i]: i for i in self.outputs}
        self.shown = joint.shown_among(nodes, self.outputs)

    def __call__(self, *args: Any) -> list[Any]:
        """Run the forward; autograd gets a node for the backward.

        A batch that wants a gradient may be asked for its derivative, as gradient penalties are:
        what cannot be run again for that runs eagerly. So it does without gradients, since a
        checkpoint may run it again with them, and it has to draw the same numbers.
        """
        if self._is_for_eager(args):
            return self.eagerly(args)
        args = (*plain(args),)
        if self.joint.tangents:
            outputs = Call.apply(self, *args)
        else:
            with torch.no_grad():
                values = self.run_forward(args)
            outputs = [values[i] for i in self.outputs]
        found = dict(zip(self.outputs, outputs, strict=True))
        for i, (*views, base) in self.joint.shown.items():
            inputs = self.joint.primals
            value = args[inputs.index(base)] if base in inputs else found[self.place[base]]
            for view in (view for view in reversed(views) if not is_move(view)):
                given = fx.node.map_arg((view.args, view.kwargs), lambda _, value=value: value)
                value = view.target(*given[0], **given[1])
            found[i] = value
        return [found[i] for i in self.order]

    def number(self) -> int:
        """Return what tells a call from others, where that matters."""
        return 0

    def _is_for_eager(self, args: Sequence[Any]) -> bool:
        return self.runs_once and not repeats_programs() and any(map(_wants_gradient, args))

    def eagerly(self, args: Sequence[Any]) -> list[Any]:
        """Run it as it was traced."""
        return list(self.joint.source(*args))

    def run_forward(self, args: Sequence[Any]) -> list[Any]:
        """Run the forward; return what it gives, and write what it changes."""
        values: list[Any] = self.forward(list(args))
        for position, output in self.mutated.items():
            if values[output] is not None:  # as on ranks that have others
                args[position].copy_(values[output])
        return values

    def backward(self, kept: Kept, tangents: list[Any], shapes: list[Any]) -> list[Any]:
        """Run the backward; of outputs without a gradient its part is left out.

        Args:
            kept: What the forward saved.
            tangents: The gradients of the outputs, None where there is none.
            shapes: Size, type and device of each of them.

        """
        defined = tuple(tangent is not None for tangent in tangents)
        part = self._backward_of(defined)
        again = keeps_graph()
        if part is not None:
            values = kept.take(part.read, part.later, again=again)
            values.extend(tangent for tangent in tangents if tangent is not None)
            return part.run(values)
        whole = self._backward_of((True,) * len(defined))
        assert whole is not None  # it needs no zeros
        values = kept.take(whole.read, (), again=again)
        for tangent, (size, kind), layout in zip(tangents, shapes, self.layouts, strict=True):
            filled = torch.zeros(size, **kind) if tangent is None else tangent
            values.append(_laid_out(filled, layout))
        there = reached(self.backward_graph, [i for i, d in enumerate(defined) if not d])
        found = whole.run(values)
        return [value if is_there else None for value, is_there in zip(found, there, strict=True)]

    def _backward_of(self, defined: tuple[bool, ...]) -> _Backward | None:
        """Return the program of a backward without some outputs; None where it has to be filled."""
        if defined not in self._backwards:
            try:
                self._backwards[defined] = self._made_backward(defined)
            except NotImplementedError:
                self._backwards[defined] = None
        return self._backwards[defined]

    def _made_backward(self, defined: tuple[bool, ...]) -> _Backward:
        graph = self.backward_graph
        if all(defined):
            run = self._compiled("backward", self.whole)
            return _Backward("backward", run, list(self.place_of.values()))
        there = [i for i, is_there in enumerate(defined) if is_there]
        missing = [i for i, is_there in enumerate(defined) if not is_there]
        names = read_later(graph, there, missing)
        later = {i for name, i in self.place_of.items() if name.partition("@")[0] in names}
        graph = without(graph, missing)
        for node in graph.graph.find_nodes(op="placeholder"):
            if not node.users and not is_tangent(node):
                graph.graph.erase_node(node)
        program = self._lowered(graph)
        saved = [slot.name for slot in program.inputs if not slot.name.startswith(TANGENT)]
        if any(name not in self.place_of for name in saved):
            raise NotImplementedError("it reads something on a device that the whole does not")
        read = [self.place_of[name] for name in saved]
        name = f"backward of {there}"
        return _Backward(name, self._compiled(name, program), read, later)

    def ran(self) -> tuple[Program, list[Slot]] | None:
        """Return the backward that runs, and what is kept for others; None: there are several.

        That of all outputs is one, whatever else has run.
        """
        made = {b.name: b for b in self._backwards.values() if b is not None}
        only = next(iter(made.values())) if len(made) == 1 else None
        if (found := made.get("backward", only)) is None:
            return None
        saved = [slot for slot in self.whole.inputs if not slot.name.startswith(TANGENT)]
        later = sorted(set(found.later) - set(found.read))
        return self.programs[found.name], [saved[i] for i in later]

    def _save(self, saved: Sequence[str]) -> list[fx.Node]:
        """Have the forward save what the backward reads, on the devices that read it."""
        output = self.forward_graph.graph.output_node()
        made = dict(zip(self.given, output.args[0][self.joint.returned :], strict=True))
        nodes = [made[name.partition("@")[0]] for name in saved]
        output.args = ((*output.args[0][: self.joint.returned], *nodes),)
        return nodes

    def _lowered(self, backward: fx.GraphModule) -> Program:
        promised = self.joint.promised[self.joint.returned :]
        return program_of(backward, self.placement, promised, self.given, back=True)

    def _promised(self) -> list[int | None]:
        """Return the device that each result of the forward comes back on."""
        return promised_by(self.forward_graph, self.placement, self.joint.returned)

    def _compiled(self, name: str, program: Program) -> Any:
        program = gathered(program, self.placement)
        self.programs[name] = program
        return self._runnable(name, program)

    def _runnable(self, name: str, program: Program) -> Any:  # noqa: ARG002
        """Return what runs a program."""
        return executor.compile(program, self.placement.devices)


def _device_in(name: str) -> int | None:
    """Return the device that a program's input came to; None: its own."""
    device = name.partition("@")[2]
    return None if not device else HOST if device == "host" else int(device)


def _layout(value: torch.Tensor) -> list[int]:
    """Return the dimensions of a tensor, that of the longest steps first."""
    return sorted(range(value.dim()), key=value.stride, reverse=True)


def _laid_out(value: torch.Tensor, layout: list[int]) -> torch.Tensor:
    """Return a gradient in the layout that was traced: views in the backward count on it."""
    if value.layout != torch.strided or value.permute(layout).is_contiguous():
        return value
    inverse = sorted(range(len(layout)), key=layout.__getitem__)
    return value.permute(layout).contiguous().permute(inverse)


def _wants_gradient(arg: Any) -> bool:
    """Tell whether a caller wants a tensor's gradient: of itself, or of what was sent here."""
    if not isinstance(arg, torch.Tensor) or isinstance(arg, nn.Parameter) or not arg.requires_grad:
        return False
    if arg.is_leaf:
        return True
    function = arg.grad_fn
    while function is not None and function.name() == "ToCopyBackward0":
        function = function.next_functions[0][0]
    leaf = getattr(function, "variable", None)
    return leaf is not None and not isinstance(leaf, nn.Parameter)


class Call(torch.autograd.Function):
    """One run of a graph's forward, and later of its backward."""

    @staticmethod
    def forward(ctx: Any, graph: Graph, *args: Any) -> tuple[Any, ...]:
        """Run the forward program; keep what the backward reads."""
        values = graph.run_forward(args)
        outputs = tuple(values[i] for i in graph.outputs)
        ctx.graph = graph
        unchanged = [None if i in graph.mutated else a for i, a in enumerate(args)]
        saved = values[graph.joint.returned :]
        ctx.kept = Kept(saved, unchanged, outputs, graph.shown, graph.number())
        ctx.set_materialize_grads(False)
        trained = graph.tangent_of
        results = graph.joint.results  # of what others have that show a rank's own
        there = {
            p: results[i].meta["val"] if values[i] is None else values[i]
            for i, p in trained.items()
        }
        ctx.shapes = [
            (there[p].shape, {"dtype": there[p].dtype, "device": there[p].device})
            for p in range(len(there))
        ]
        dull = [
            values[i]
            for i in graph.outputs
            if i not in trained and isinstance(values[i], torch.Tensor)
        ]
        ctx.mark_non_differentiable(*dull)
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        """Run the backward program; one of second derivatives runs the graph eagerly."""
        graph: Graph = ctx.graph
        if torch.is_grad_enabled():
            return (None, *differentiable(ctx.graph, ctx.kept, gradients))
        tangents: list[Any] = [None] * len(graph.tangent_of)
        for position, gradient in zip(graph.outputs, gradients, strict=True):
            if position in graph.tangent_of and gradient is not None:
                place = graph.tangent_of[position]
                tangents[place] = _laid_out(gradient, graph.layouts[place])
        with Aside():
            return (None, *graph.backward(ctx.kept, tangents, ctx.shapes))


def differentiable(graph: Graph, kept: Kept, gradients: Sequence[Any]) -> list[Any]:
    """Return gradients that have derivatives: those of the graph run eagerly."""
    if graph.runs_once:
        raise RuntimeError(
            "baechi: a second derivative is asked for of a forward that draws random numbers, "
            "changes buffers or reads tensors that wrap others, which cannot run again for it: "
            "call the model with a leaf that requires a gradient, or under "
            "torch.compiler.set_stance('force_eager')"
        )
    args = kept.args
    with torch.enable_grad():
        outputs = graph.eagerly(args)
    flat = dict(zip(graph.order, outputs, strict=True))
    found = zip(graph.outputs, gradients, strict=True)
    pairs = [(flat[i], gradient) for i, gradient in found if gradient is not None]
    wanted = [a for a in args if isinstance(a, torch.Tensor) and a.requires_grad]
    found = torch.autograd.grad(
        [o for o, _ in pairs],
        wanted,
        [g for _, g in pairs],
        create_graph=True,
        allow_unused=True,
    )
    by_id = {id(a): g for a, g in zip(wanted, found, strict=True)}
    return [by_id.get(id(a)) if isinstance(a, torch.Tensor) else None for a in args]
