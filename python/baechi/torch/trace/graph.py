# SPDX-License-Identifier: Apache-2.0
"""The operators of an exported model, what they read and write, and which storages they share.

Every call of torch.export's graph is a node. Views, what changes a storage in place, and the parts
of a tuple belong to the node that made them: they can only run where that one does.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from baechi.torch.base import _private
from baechi.torch.base.nested import tensors_in


class NotExportedError(Exception):
    """Why a model cannot run as an exported graph; one clause, without a full stop."""


@dataclass(frozen=True)
class Ref:
    """Stands for the value of a node among the arguments of another."""

    node: int


Context = Callable[[torch.device], Any]  # without gradients, or under autocast, on a device


@dataclass
class Node:
    """A value: a weight, a constant, an argument of the model, or the result of a call."""

    index: int
    name: str
    kind: str  # "weight", "constant", "input" or "call"
    target: Any  # the weight's name, the constant, the number of the input, or what is called
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    owner: str | None = None  # the module call or torch function of the recorded step
    reads: list[int] = field(default_factory=list)
    writes: list[int] = field(default_factory=list)  # of `reads`, what it changes in place
    storages: tuple[int, ...] = ()  # of the tensors it makes; views share their base's
    is_host: bool = False  # a number, not a tensor
    only_looks: bool = False  # a number that follows from shapes alone
    random: bool = False
    part_of: int | None = None  # the tuple it is taken from
    contexts: tuple[Context, ...] = ()  # that it runs in, the outermost first

    @property
    def key(self) -> str:
        """The name of the operator in a graph of operators."""
        return self.name if self.owner is None else f"{self.owner}:{self.name}"


@dataclass
class ExportedGraph:
    """The nodes in the order of the program, and what the model returns."""

    nodes: list[Node]
    outputs: list[int]
    users: dict[int, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node in self.nodes:
            for read in node.reads:
                self.users.setdefault(read, []).append(node.index)

    def computes_as(self, other: ExportedGraph) -> bool:
        """Whether both say the same, constants and numbers among the arguments included."""
        pairs = zip(self.nodes, other.nodes, strict=False)
        return (len(self.nodes), self.outputs) == (len(other.nodes), other.outputs) and all(
            (a.kind, repr(a.args), repr(a.kwargs)) == (b.kind, repr(b.args), repr(b.kwargs))
            and (torch.equal if a.kind == "constant" else operator.eq)(a.target, b.target)
            for a, b in pairs
        )


_RESIZED = ("aten.resize_.", "aten.resize_as_.", "aten.set_.")  # what was asked of it is outdated
_DROPPED = ("_assert_tensor_metadata", "_assert_scalar", "sym_constrain_range")
_SHAPES_ONLY = ("sym_size", "sym_stride", "sym_numel", "sym_storage_offset")
# Change an argument that their schema does not say: position of the flag, then of the arguments.
_HIDDEN_WRITES = {"aten::batch_norm": (5, (3, 4)), "aten::instance_norm": (5, (3, 4))}


def refs_in(value: Any) -> Iterator[int]:
    """Yield the nodes that arguments stand for."""
    if isinstance(value, Ref):
        yield value.node
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from refs_in(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from refs_in(item)
    elif isinstance(value, slice):
        yield from refs_in((value.start, value.stop, value.step))


class _Builder:
    """Takes over the nodes of one torch.fx graph."""

    def __init__(self, root: torch.nn.Module, inputs: Callable[[fx.Node], Node]) -> None:
        self._root = root
        self._input = inputs
        self.nodes: list[Node] = []
        self._of: dict[fx.Node, Any] = {}  # what stands for a node among arguments
        self._contexts: tuple[Context, ...] = ()
        self._names: set[str] = set()
        self._storages: dict[int, int] = {}  # by address; the values keep them alive
        self._fresh = itertools.count()
        self._seen: list[dict[int, int]] = []  # the storages of each node, by address
        self.parted: list[tuple[Node, set[int]]] = []  # numbers that are one storage in truth
        self.outputs: Any = None

    def build(self, graph: fx.Graph) -> None:
        for node in graph.nodes:
            if node.op == "placeholder":
                self._add(node, self._input(node))
            elif node.op == "output":
                self.outputs = self._argument(node.args[0])
            else:
                self._take(self._root, node)

    def _take(self, root: torch.nn.Module, node: fx.Node) -> None:
        if node.op == "get_attr":
            self._of[node] = _attribute(root, str(node.target))
        elif node.op != "call_function":
            raise NotExportedError(f"its graph has a node of kind {node.op!r}")
        elif isinstance(node.target, torch._ops.HigherOrderOperator):
            self._of[node] = self._inside(*_context(node.target, self._arguments(node)))
        elif str(getattr(node.target, "__module__", None)).startswith("torch._functorch"):
            raise NotExportedError("it calls a transform of torch.func")
        elif node.target is operator.getitem and isinstance(self._argument(node.args[0]), tuple):
            self._of[node] = self._argument(node.args[0])[node.args[1]]
        elif node.target is torch.ops.aten.dropout.default and _is_off(*node.args):
            self._of[node] = self._argument(node.args[0])  # no copy, which tracing takes it for
        elif any(name in str(node.target) for name in _RESIZED):
            raise NotExportedError(f"{node.target} changes the size of a tensor in place")
        elif not any(name in str(node.target) for name in _DROPPED):
            self._add(node, self._call(node))

    def _inside(self, context: Context, inner: Any, operands: Sequence[Any]) -> Any:
        """Take over the nodes of a graph inside the graph; returns what it returns.

        As nodes of their own they run where their weights are, which may be on several devices.
        """
        around = self._contexts
        self._contexts = (*around, context)
        given = iter(operands)
        returned = None
        for node in inner.graph.nodes:
            if node.op == "placeholder":
                self._of[node] = next(given)
            elif node.op == "output":
                returned = self._argument(node.args[0])
            else:
                self._take(inner, node)
        self._contexts = around
        return tuple(returned) if isinstance(returned, list) else returned

    def _add(self, node: fx.Node, made: Node) -> None:
        made.index = len(self.nodes)
        made.contexts = self._contexts
        while made.name in self._names:  # graphs inside the graph have names of their own
            made.name += "_"
        self._names.add(made.name)
        self._of[node] = Ref(made.index)
        made.storages = self._storages_of(made, list(tensors_in(node.meta.get("val"))))
        if made.kind == "call":
            made.is_host = not made.storages and not made.writes
            made.only_looks = made.is_host and (
                not any(self.nodes[r].storages for r in made.reads)
                or any(name in str(made.target) for name in _SHAPES_ONLY)
            )
        self.nodes.append(made)

    def _storages_of(self, made: Node, tensors: list[torch.Tensor]) -> tuple[int, ...]:
        """Return the numbers of the storages of a node's tensors; views have their base's.

        What is a view of several tensors would have to run where each of them is. It gets numbers
        of its own, with copies of what is elsewhere, as long as nobody changes what they share.
        """
        addresses = [_private.storage_address(t) for t in tensors]
        known = {a: n for read in made.reads for a, n in self._seen[read].items()}
        if not made.writes and len({known[a] for a in addresses if a in known}) > 1:
            mine = {a: next(self._fresh) for a in addresses}
            self.parted += [(made, {known[a], mine[a]}) for a in addresses if a in known]
        else:
            mine = {a: known[a] if a in known else self._storage(a) for a in addresses}
        self._seen.append(mine)
        return tuple(mine[a] for a in addresses)

    def _storage(self, address: int) -> int:
        if address not in self._storages:
            self._storages[address] = next(self._fresh)
        return self._storages[address]

    def _argument(self, value: Any) -> Any:
        if isinstance(value, fx.Node):
            if value not in self._of:
                raise NotExportedError(f"it uses the result of {value.target}")
            return self._of[value]
        if isinstance(value, (tuple, list)):  # torch.fx has classes of its own for these
            items = [self._argument(item) for item in value]
            return items if isinstance(value, list) else tuple(items)
        if isinstance(value, Mapping):
            return {key: self._argument(item) for key, item in value.items()}
        if isinstance(value, slice):
            return slice(*(self._argument(i) for i in (value.start, value.stop, value.step)))
        return value

    def _arguments(self, node: fx.Node) -> tuple[Any, ...]:
        return tuple(self._argument(a) for a in node.args)

    def _call(self, node: fx.Node) -> Node:
        target: Any = node.target
        if target is torch.ops.aten.view.default:
            # A copy before it is left out where the CPU's kernels make memory contiguous already;
            # those of other devices may not.
            target = torch.ops.aten.reshape.default
        args = self._arguments(node)
        kwargs = {name: self._argument(a) for name, a in node.kwargs.items()}
        owner = (node.meta.get("custom") or {}).get(ANNOTATION)
        made = Node(-1, node.name, "call", target, args, kwargs, owner)
        made.reads = list(dict.fromkeys(refs_in((made.args, kwargs))))
        if target is operator.getitem and self.nodes[args[0].node].storages:
            made.part_of = args[0].node
        if isinstance(target, torch._ops.OpOverload):
            _read_schema(made)
        return made


ANNOTATION = "baechi"


def _attribute(root: Any, path: str) -> Any:
    for name in path.split("."):
        root = getattr(root, name)
    return root


def _read_schema(node: Node) -> None:
    """Note what a call changes in place, and whether it draws random numbers."""
    schema = node.target._schema
    values: dict[str, Any] = {}
    for position, argument in enumerate(schema.arguments):
        value = node.args[position] if position < len(node.args) else None
        value = node.kwargs.get(argument.name, value)
        values[argument.name] = value
        if argument.alias_info is not None and argument.alias_info.is_write:
            node.writes.extend(refs_in(value))
    hidden = _HIDDEN_WRITES.get(schema.name)
    if hidden is not None and len(node.args) > hidden[0] and node.args[hidden[0]]:
        node.writes.extend(refs_in([node.args[i] for i in hidden[1]]))
    seeded = torch.Tag.nondeterministic_seeded in node.target.tags
    off = values.get("train") is False or any(
        values.get(name) in (0, 0.0) for name in ("p", "dropout_p", "dropout") if name in values
    )
    defaults = {a.name: a.default_value for a in schema.arguments}
    if "dropout_p" in values and values["dropout_p"] is None:
        off = defaults["dropout_p"] == 0.0
    node.random = seeded and not off


def _context(target: Any, args: tuple[Any, ...]) -> tuple[Context, fx.GraphModule, Sequence[Any]]:
    """Return what a higher-order operator runs a graph in, that graph, and its arguments."""
    name = target.name() if callable(getattr(target, "name", None)) else str(target)
    if name == "wrap_with_set_grad_enabled":
        enabled, inner, *operands = args

        def context(device: torch.device) -> Any:  # noqa: ARG001
            return torch.enable_grad() if enabled else torch.no_grad()
    elif name == "wrap_with_autocast":
        _, dtype, enabled, cache, inner, *operands = args

        def context(device: torch.device) -> Any:
            return torch.autocast(device.type, dtype=dtype, enabled=enabled, cache_enabled=cache)
    else:
        raise NotExportedError(f"it has an operator of higher order, {name}")
    if not isinstance(inner, fx.GraphModule):
        raise NotExportedError(f"the inside of {name} is unknown")
    return context, inner, operands


def _is_off(_: Any, p: float, train: bool) -> bool:
    """Whether a dropout returns its input."""
    return not train or p == 0


def _without_dead(nodes: list[Node], outputs: Sequence[int]) -> ExportedGraph:
    """Drop what nobody needs: the arithmetic on shapes that tracing leaves behind."""
    needed = set(outputs)
    for node in reversed(nodes):
        effect = bool(node.writes) or node.random
        if node.index in needed or effect or node.kind == "input":
            needed.add(node.index)
            needed.update(node.reads)
    number = {old: new for new, old in enumerate(sorted(needed))}

    def renumbered(value: Any) -> Any:
        if isinstance(value, Ref):
            return Ref(number[value.node])
        if isinstance(value, (tuple, list)):
            return type(value)(renumbered(item) for item in value)
        if isinstance(value, Mapping):
            return {key: renumbered(item) for key, item in value.items()}
        if isinstance(value, slice):
            return slice(*(renumbered(i) for i in (value.start, value.stop, value.step)))
        return value

    kept = [node for node in nodes if node.index in needed]
    for node in kept:
        node.index = number[node.index]
        node.args, node.kwargs = renumbered(node.args), renumbered(node.kwargs)
        node.reads = [number[r] for r in node.reads]
        node.writes = [number[w] for w in node.writes]
        node.part_of = None if node.part_of is None else number[node.part_of]
    return ExportedGraph(kept, [number[o] for o in outputs])


def _check_parted(builder: _Builder) -> None:
    nodes = builder.nodes
    changed = {s for node in nodes for w in node.writes for s in nodes[w].storages}
    for node, numbers in builder.parted:
        if changed & numbers:
            raise NotExportedError(f"{node.target} returns views of what is changed in place")


def graph_of_export(program: Any, prefix: str) -> ExportedGraph:
    """Return the nodes of a torch.export program; `prefix` stands before the weights' names."""
    specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    kinds = torch.export.graph_signature.InputKind
    positions = iter(range(len(specs)))

    def placeholder(node: fx.Node) -> Node:
        spec = specs[node.name]
        if spec.kind in (kinds.PARAMETER, kinds.BUFFER):
            return Node(-1, node.name, "weight", spec.target.removeprefix(prefix))
        if spec.kind is kinds.CONSTANT_TENSOR:
            return Node(-1, node.name, "constant", program.constants[spec.target])
        if spec.kind is kinds.USER_INPUT:
            return Node(-1, node.name, "input", next(positions))
        raise NotExportedError(f"it needs an object beside tensors, {spec.target}")

    for spec in program.graph_signature.output_specs:
        if spec.kind is not torch.export.graph_signature.OutputKind.USER_OUTPUT:
            raise NotExportedError(f"it returns more than its outputs: {spec.kind.name}")
    builder = _Builder(program.graph_module, placeholder)
    builder.build(program.graph)
    outputs = list(builder.outputs)
    if not all(isinstance(o, Ref) for o in outputs):
        raise NotExportedError("one of its outputs is a constant")
    _check_parted(builder)
    graph = _without_dead(builder.nodes, [o.node for o in outputs])
    outside = {s for n in graph.nodes if n.kind in ("input", "constant") for s in n.storages}
    for node in graph.nodes:
        if any(outside & set(graph.nodes[w].storages) for w in node.writes):
            raise NotExportedError(f"{node.target} changes an argument of the model in place")
    return graph
