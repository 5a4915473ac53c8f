# SPDX-License-Identifier: Apache-2.0
"""Quantised weights count as the bytes that they hold, and train what is beside them."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import baechi.torch
import pytest
import torch
from baechi.pipeline import cluster_of
from baechi.torch.capture.trace import capture
from baechi.torch.costs.roofline import estimated
from baechi.torch.graph.graph import graph_of
from places import mean_square
from torch import nn

from models.bank.quantised import Adapted, int8, nf4

WIDTH = 64
X = torch.linspace(-1, 1, 8 * WIDTH).reshape(8, WIDTH)


class Int8(torch.Tensor):
    """A matrix in whole numbers, and the scale of each row."""

    values: torch.Tensor
    scales: torch.Tensor

    @staticmethod
    def __new__(cls, values: torch.Tensor, scales: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(
            cls, values.shape, dtype=scales.dtype, device=values.device
        )

    def __init__(self, values: torch.Tensor, scales: torch.Tensor) -> None:
        self.values, self.scales = values, scales

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["values", "scales"], None

    @staticmethod
    def __tensor_unflatten__(parts: dict[str, torch.Tensor], *_: Any) -> Any:
        return Int8(parts["values"], parts["scales"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        kept = {"detach", "_to_copy", "clone", "alias"}
        if func.overloadpacket.__name__ in kept:
            one = args[0]
            return Int8(func(one.values, **kwargs), func(one.scales, **kwargs))
        args, kwargs = torch.utils._pytree.tree_map_only(
            Int8, lambda t: t.values.to(t.scales.dtype) * t.scales, (args, kwargs)
        )
        return func(*args, **kwargs)


def quantised(layer: nn.Linear) -> nn.Module:
    scales = layer.weight.detach().abs().amax(1, keepdim=True) / 127
    values = (layer.weight.detach() / scales).round().to(torch.int8)
    layer.weight = nn.Parameter(Int8(values, scales), requires_grad=False)
    return layer


# How it is made, the bytes that it holds, and too little memory for a step of all layers.
WAYS: dict[str, tuple[Callable[[nn.Linear], nn.Module], int, str]] = {
    "plain": (quantised, WIDTH * WIDTH + 4 * WIDTH, "52KiB"),
    "torchao": (int8, WIDTH * WIDTH + 5 * WIDTH, "52KiB"),
    # Four bits each; scales of 8 bits, theirs and their offset; the 16 and 256 values there are.
    "bitsandbytes": (
        nf4,
        WIDTH * WIDTH // 2 + WIDTH * WIDTH // 64 + 4 + 4 + 4 * (16 + 256),
        "40KiB",
    ),
}


def model(name: str, seed: int = 2) -> nn.Module:
    torch.manual_seed(seed)
    make, *_ = WAYS[name]
    return nn.Sequential(*(Adapted(make(nn.Linear(WIDTH, WIDTH))) for _ in range(3)))


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    return {n: p.grad.cpu() for n, p in model.named_parameters() if p.grad is not None}


class State:
    """What quantised a weight."""

    def __init__(self, scales: torch.Tensor) -> None:
        self.scales, self.second = scales, {"offsets": torch.zeros(3), "again": scales[:1]}


class Held(nn.Parameter):
    """A weight whose class keeps its state in an attribute, and moves it."""

    state: State
    owner: nn.Module

    def to(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        self.state.scales = self.state.scales.to(*args, **kwargs)
        return super().to(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Held:
        made = Held(self.data.clone(), requires_grad=False)
        made.state = State(self.state.scales.clone())
        return made


class Decides(nn.Module):
    """A layer of such a weight, whose values decide how often it is used."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = Held(torch.ones(WIDTH, WIDTH, dtype=torch.int8), requires_grad=False)
        self.weight.state, self.weight.owner = State(torch.ones(WIDTH)), self
        self.adapter = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(int(self.weight.state.scales.sum().item()) // WIDTH):
            x = self.adapter(x @ (self.weight * self.weight.state.scales))
        return x


def test_what_moves_with_a_weight_counts_as_the_weights() -> None:
    step = capture(Decides(), X)
    assert step.made_by == "a recording of values"
    beside = {one.name: one.beside for one in step.inputs if one.kind == "weight"}
    assert beside == {"weight": 4 * WIDTH + 4 * 3, "adapter.weight": 0, "adapter.bias": 0}
    graph = graph_of(step, estimated(step.keys, cluster_of("1x1GiB")), cluster_of("1x1GiB")).graph
    assert sum(graph["weight"].outputs) == WIDTH * WIDTH + 4 * WIDTH + 4 * 3


@pytest.mark.filterwarnings("ignore")
def test_a_weight_in_four_bits_is_whole_while_it_is_read(sim: ModuleType) -> None:
    pytest.importorskip("bitsandbytes")
    sim.configure(devices=2, memory="1GiB")
    sim.use_cpu_kernels("bitsandbytes")  # else its kernels for any device, of many small ones
    net = model("bitsandbytes")
    search = baechi.torch.Search(method="random", seed=1)
    placed = baechi.torch.place(net, X, "2x1GiB", loss=mean_square, search=search)
    assert placed.planned.step.made_by == "dynamo"
    mean_square(net(X)).backward()
    forward, backward = placed.program.split("# graph 0, backward")
    assert "dequantize_4bit" not in forward
    # The first layer's gradient goes no further.
    assert backward.count("bitsandbytes.dequantize_4bit") == len(net) - 1
    placed.restore()


class Looking(nn.Sequential):
    """Looks at a value, so that one run of it is recorded."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum().item() > 1e9 else super().forward(x)


def test_a_weight_that_wraps_others_is_these_in_a_recording() -> None:
    step = capture(Looking(*model("plain")), X, mean_square)
    assert step.made_by == "a recording of values"
    parts = [one.part for one in step.inputs if one.name == "0.base.weight"]
    assert parts == ["values", "scales"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("parts", [None, 2])
@pytest.mark.parametrize("name", WAYS)
def test_quantised_weights_run_placed(sim: ModuleType, name: str, parts: int | None) -> None:
    if name != "plain":
        pytest.importorskip(name)
    sim.configure(devices=2, memory="1GiB")
    net = model(name)
    mean_square(net(X)).backward()
    expected = gradients(net)
    assert len(expected) == 6
    net = model(name)
    cluster = f"2x{'1GiB' if parts is None else WAYS[name][2]}"
    placed = baechi.torch.place(
        net, X, cluster, loss=mean_square, micro_batches=parts, optimizer="sgd", budget="0.3s"
    )
    graph = placed.plan.graph
    names = [n for n in graph.names if n.startswith("0.base.weight")]
    assert sum(sum(graph[n].outputs) for n in names) == WAYS[name][1]
    loss = placed.step(X) if parts else mean_square(net(X))
    if not parts:
        loss.backward()
        assert name != "plain" or not placed.left_out
    torch.testing.assert_close(gradients(net), expected)
    if parts:
        assert len({*placed.weight_devices.values()}) == 2
    placed.restore()
    torch.testing.assert_close(mean_square(net(X)).cpu(), loss.detach().cpu())
