# SPDX-License-Identifier: Apache-2.0
"""Graphs of training steps at the grain of PyTorch's modules, with costs by a roofline.

A module is one operator forward; backward it is one for the gradient by its inputs and, where it
trains, one for the gradient by its weights; then one update. Weights, and what the optimizer keeps,
are variables, so that a host may keep them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from baechi._core import Graph, GraphBuilder, InputError, roofline_time

Shape = tuple[int, ...]

# Bytes a parameter that the optimizer keeps beside weights of two bytes; adamw's have a copy of
# four of each weight, which weights of four bytes do without.
OPTIMIZERS = {"adamw": 12, "adamw-bf16": 4, "adamw-8bit": 2, "sgd": 0}
_OF_FOUR = {"adamw": 8, "adamw-bf16": 8}
# Bytes a parameter of frozen weights, with their scales.
QUANTIZED = {"nf4": 0.5 + 0.0165, "int8": 1.0, "fp8": 1.0}
_TRANSCENDENTAL = 8  # operations that an exponential counts as
_HOST = "host"


@dataclass(frozen=True)
class Costing:
    """What a step is of, and on which devices."""

    presets: Mapping[str, str]  # of a device's kind
    precision: str = "bf16"
    training: bool = True
    rank: int = 0  # of adapters, which alone train; 0: all weights do
    quantize: str | None = None  # how frozen weights are kept
    optimizer: str = "adamw"

    @property
    def state(self) -> int:
        """Bytes a parameter that the optimizer keeps."""
        kept = OPTIMIZERS[self.optimizer]
        return kept if self.element == 2 else _OF_FOUR.get(self.optimizer, kept)

    @property
    def element(self) -> int:
        """Bytes of a number."""
        return 4 if self.precision in ("fp32", "tf32") else 2

    def times(self, flops: int, moved: float, kinds: Sequence[str] = ()) -> dict[str, int]:
        """Nanoseconds on each kind of device."""
        return {
            kind: roofline_time(preset, flops, int(moved), precision=self.precision)
            for kind, preset in self.presets.items()
            if kind != _HOST or kind in kinds
        }


@dataclass(eq=False)
class Value:
    """A tensor."""

    op: str
    port: int
    shape: Shape
    wants: bool  # a gradient
    gradients: list[tuple[str, int]] = field(default_factory=list)  # terms of its gradient

    @property
    def elements(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)

    @property
    def source(self) -> tuple[str, int]:
        """Who makes it."""
        return self.op, self.port


@dataclass
class Weight:
    """Parameters of a module, or of several that share them."""

    name: str
    parameters: int
    trains: bool
    gradients: list[tuple[str, int]] = field(default_factory=list)


@dataclass
class _Step:
    op: str
    inputs: list[Value]
    output: Value
    weights: list[Weight]
    flops: int
    moved: float
    saves: list[Value]
    temporary: int
    passes: bool  # its gradient is its output's


class Modules:
    """Adds one module after the other, and then the way back."""

    def __init__(self, name: str, batch: int, costing: Costing) -> None:
        self.name = name
        self.costing = costing
        self.parameters = 0
        self.trained = 0
        self.blocks: dict[str, str] = {}  # of a weight: the block that it is in
        self.sizes: dict[str, int] = {}  # bytes of a variable
        self._builder = GraphBuilder(name, batch_size=batch)
        self._scope: list[str] = []
        self._block: str | None = None
        self._steps: list[_Step] = []
        self._weights: list[Weight] = []

    @contextmanager
    def scope(self, name: str, *, block: bool = False) -> Iterator[None]:
        """Put what is added below a name; a block is what tools swap as a whole."""
        self._scope.append(name)
        outer = self._block
        if block:
            self._block = "/".join(self._scope)
        yield
        self._block = outer
        self._scope.pop()

    def input(self, name: str, *shape: int) -> Value:
        """Add what comes from outside."""
        if math.prod(shape) < 1:
            raise InputError(f"size: too small for this model: its {name} would be empty")
        size = math.prod(shape) * self.costing.element
        self._builder.add(name, self.costing.times(0, 0), kind="Input", outputs=[size])
        return Value(name, 0, shape, wants=False)

    def _path(self, name: str) -> str:
        return "/".join([*self._scope, name])

    def _variable(self, name: str, group: str, size: float) -> tuple[str, int]:
        self.sizes[name] = math.ceil(size)
        self._builder.add(
            name,
            kind="Variable",
            outputs=[math.ceil(size)],
            colocate=[group],
            per_step=True,
            variable=True,
        )
        return name, 0

    def weight(self, name: str, parameters: int, adapter: int = 0) -> list[Weight]:
        """Add parameters, and those of an adapter where adapters alone train."""
        costing, path = self.costing, self._path(name)
        self.parameters += parameters
        trains = costing.training and not costing.rank
        each = costing.element
        if costing.quantize and adapter and not trains:
            each = QUANTIZED[costing.quantize]  # type: ignore[assignment]
        self._variable(f"{path}/weight", path, parameters * each)
        weights = [Weight(f"{path}/weight", parameters, trains)]
        if costing.rank and costing.training and adapter:
            self._variable(f"{path}/adapter", path, costing.rank * adapter * costing.element)
            weights.append(Weight(f"{path}/adapter", costing.rank * adapter, trains=True))
        if self._block:
            self.blocks[f"{path}/weight"] = self._block
        self._weights += weights
        return weights

    def run(
        self,
        name: str,
        kind: str,
        inputs: Sequence[Value],
        shape: Shape,
        flops: int = 0,
        *,
        weights: Sequence[Weight] = (),
        read: int | None = None,
        saves: Sequence[Value] | None = None,
        temporary: int = 0,
        passes: bool = False,
    ) -> Value:
        """Add a module that reads `inputs` and makes one tensor.

        `read` is how many of the parameters one pass reads, `saves` what the way back reads (the
        inputs), `temporary` bytes that it takes while it runs.
        """
        path, costing = self._path(name), self.costing
        parameters = sum(w.parameters for w in weights) if read is None else read
        elements = sum(v.elements for v in inputs) + math.prod(shape) + parameters
        moved = elements * costing.element
        self._builder.add(
            path,
            costing.times(flops, moved),
            kind=kind,
            inputs=[v.source for v in inputs] + [(w.name, 0) for w in weights],
            outputs=[math.prod(shape) * costing.element],
            temporary=temporary,
            colocate=[w.name.rsplit("/", 1)[0] for w in weights],
        )
        wants = any(v.wants for v in inputs) or any(w.trains for w in weights)
        output = Value(path, 0, shape, wants)
        kept = list(inputs) if saves is None else list(saves)
        step = _Step(
            path, list(inputs), output, list(weights), flops, moved, kept, temporary, passes
        )
        if costing.training and wants:
            self._steps.append(step)
        return output

    def linear(
        self,
        name: str,
        x: Value,
        columns: int,
        bias: bool = True,
        *,
        weights: Sequence[Weight] | None = None,
        taps: int = 1,
        shape: Shape | None = None,
        adapter: bool = True,
    ) -> Value:
        """Add a product with weights: of the last dimension, or with `taps` of them a convolution.

        `weights` are those of another module, where they are shared.
        """
        inner = x.shape[-1] * taps
        shape = shape or (*x.shape[:-1], columns)
        size = inner * columns
        if weights is None:
            weights = self.weight(
                name, size + (columns if bias else 0), inner + columns if adapter else 0
            )
        products = size + sum(w.parameters for w in weights[1:])
        rows = math.prod(shape) // columns
        wide = size * self.costing.element if self.costing.quantize and self.costing.rank else 0
        kind = "Linear" if taps == 1 else "Conv"
        return self.run(
            name, kind, [x], shape, 2 * rows * products, weights=weights, temporary=wide, saves=[x]
        )

    def embedding(self, name: str, ids: Value, rows: int, width: int) -> tuple[Value, list[Weight]]:
        """Add a table that is looked up, and return it too."""
        weights = self.weight(name, rows * width)
        shape = (*ids.shape, width)
        found = self.run(
            name, "Embedding", [ids], shape, weights=weights, read=math.prod(shape), saves=[ids]
        )
        return found, weights

    def norm(self, name: str, x: Value, parameters: int | None = None) -> Value:
        """Add a normalisation of the last dimension."""
        count = x.shape[-1] if parameters is None else parameters
        weights = self.weight(name, count) if count else []
        return self.run(name, "Norm", [x], x.shape, 6 * x.elements, weights=weights)

    def each(self, name: str, kind: str, *inputs: Value, flops: int = _TRANSCENDENTAL) -> Value:
        """Add what works element by element, of the shape of the first input."""
        first = inputs[0]
        return self.run(name, kind, inputs, first.shape, flops * first.elements)

    def add(self, name: str, x: Value, y: Value) -> Value:
        """Add a sum, whose gradient is that of its terms."""
        return self.run(name, "Add", [x, y], x.shape, x.elements, saves=[], passes=True)

    def attention(
        self, name: str, query: Value, key: Value, value: Value, *, causal: bool = False
    ) -> Value:
        """Add fused attention, which stores no scores."""
        pairs = query.elements * key.shape[-2]
        flops = 4 * pairs // (2 if causal else 1)
        return self.run(name, "Attention", [query, key, value], query.shape, flops)

    def loss(self, x: Value) -> None:
        """Add a loss of the model's output, in 32 bits, where it trains."""
        if not self.costing.training:
            return
        temporary = 4 * x.elements
        self.run("loss", "Loss", [x], (1,), 11 * x.elements, temporary=temporary)

    def graph(self) -> Graph:
        """Add the way back and the updates, where it trains, and return the graph."""
        self.trained = sum(w.parameters for w in self._weights if w.trains)
        if self.costing.training:
            for step in reversed(self._steps):
                self._differentiate(step)
            for weight in self._weights:
                if weight.trains and weight.gradients:
                    self._update(weight)
        return self._builder.build()

    def _gradient(self, value: Value) -> list[tuple[str, int]]:
        """Sum the terms of a gradient."""
        if len(value.gradients) > 1:
            name, moved = f"gradients/{value.op}/sum", (len(value.gradients) + 1) * value.elements
            self._builder.add(
                name,
                self.costing.times(value.elements, moved * self.costing.element),
                kind="AddN",
                inputs=value.gradients,
                outputs=[value.elements * self.costing.element],
                forward=value.op,
            )
            value.gradients = [(name, 0)]
        return value.gradients

    def _differentiate(self, step: _Step) -> None:
        gradient = self._gradient(step.output)
        wanted = [v for v in step.inputs if v.wants]
        if step.passes:
            for value in wanted:
                value.gradients += gradient
            return
        trained = [w for w in step.weights if w.trains]
        saved = [v.source for v in step.saves]
        product = bool(step.weights) and step.flops > 6 * step.output.elements
        halves = 1 if product else 2
        name = f"gradients/{step.op}"
        if wanted:
            self._builder.add(
                f"{name}/inputs",
                self.costing.times(halves * step.flops, halves * step.moved),
                kind="InputGradient" if step.weights else "Backward",
                inputs=gradient + ([] if product else saved) + [(w.name, 0) for w in step.weights],
                outputs=[v.elements * self.costing.element for v in wanted],
                temporary=step.temporary,
                forward=step.op,
            )
            for port, value in enumerate(wanted):
                value.gradients.append((f"{name}/inputs", port))
        for weight in trained:  # all of a module's, or its adapter alone
            part = weight.parameters / max(1, sum(w.parameters for w in step.weights))
            self._builder.add(
                f"{name}/weights",
                self.costing.times(int(step.flops * part) if product else 0, step.moved),
                kind="WeightGradient",
                inputs=gradient + saved,
                outputs=[weight.parameters * self.costing.element],
                forward=step.op,
            )
            weight.gradients.append((f"{name}/weights", 0))

    def _update(self, weight: Weight) -> None:
        costing, group = self.costing, weight.name.rsplit("/", 1)[0]
        inputs = [(weight.name, 0), *weight.gradients]
        if costing.state:
            size = costing.state * weight.parameters
            inputs.append(self._variable(f"{weight.name}/state", group, size))
        moved = 2 * (2 * costing.element + costing.state) * weight.parameters
        self._builder.add(
            f"optimizer/{weight.name}",
            costing.times(12 * weight.parameters, moved, kinds=(_HOST,)),
            kind="Update",
            inputs=inputs,
            colocate=[group],
            backward=True,
            per_step=True,
        )
