# SPDX-License-Identifier: Apache-2.0
"""Kernels return what their meta functions say, so traced programs train as eager ones.

Each model is trained on the CPU, on a simulated device whose calls wait, and on one whose calls do
not under `torch.compile`, with a backend that runs the traced program as it is.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from step_models import module
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


def as_traced(program: Any, _: Any) -> Any:
    """Compile nothing."""
    return make_boxed_func(program.forward)


@module(lambda function: {"linear": nn.Linear(8, 8), "function": function})
def Calls(self: Any, x: torch.Tensor) -> Any:
    """A function of a linear layer's output, as a model."""
    result = self.function(self.linear(x))
    return result[0] if isinstance(result, tuple) else result


class Attention(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.project = nn.Linear(8, 24)
        self.options = options

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.project(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(*heads, **self.options)
        return y.transpose(1, 2).flatten(2).contiguous()


class Masked(Attention):
    def __init__(self, mask: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("mask", mask)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.options = {"attn_mask": self.mask}
        return super().forward(x)


class Pictures(nn.Module):
    """Attention among pixels leaves strides that are channels last, as in diffusers' UNet2D."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 4, 3, padding=1)
        self.norm, self.attention = nn.GroupNorm(2, 8), Attention()
        self.up = nn.ConvTranspose2d(4, 2, 2, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.first(x.unsqueeze(1)))
        batch, channels, height, width = x.shape
        mixed = self.attention(x.view(batch, channels, height * width).transpose(1, 2))
        x = x + mixed.transpose(-1, -2).reshape(batch, channels, height, width)
        return self.up(functional.max_pool2d(self.last(x), 2)).view(batch, -1)


class Telling(nn.MultiheadAttention):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x, x, x)[0]


@module(lambda: {"queries": nn.Linear(8, 16), "keys": nn.Linear(8, 8)})
def Grouped(self: Any, x: torch.Tensor) -> torch.Tensor:
    """Attention whose queries share keys and values."""
    queries, keys = (
        made.unflatten(-1, (-1, 4)).transpose(1, 2) for made in (self.queries(x), self.keys(x))
    )
    return functional.scaled_dot_product_attention(queries, keys, keys.sin(), enable_gqa=True)


class Recurrent(nn.Module):
    def __init__(self, kind: Any, **options: Any) -> None:
        super().__init__()
        options |= {"num_layers": 2, "batch_first": True, "bidirectional": True}
        self.cells = kind(8, 6, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output, state = self.cells(x)
        return output.square().sum() + sum(s.sum() for s in state)


@module(lambda cell: {"cell": cell})
def Cell(self: Any, x: torch.Tensor) -> torch.Tensor:
    """One cell over the rows, whose last state is read."""
    state = None
    for row in x.unbind(1):
        state = self.cell(row, state)
    return state[0] if isinstance(state, tuple) else state


class Packed(Recurrent):
    """Cells over sequences of different lengths."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(x, torch.tensor([5, 3]), batch_first=True)
        return pad_packed_sequence(self.cells(packed)[0])[0]


class Bags(nn.Module):
    def __init__(self, mode: str, **options: Any) -> None:
        super().__init__()
        self.bags = nn.EmbeddingBag(20, 5, mode=mode, **options)
        self.scale = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        words = torch.arange(12, device=x.device) * 7 % 20
        offsets = torch.tensor([0, 3, 3, 8], device=x.device)
        return self.bags(words, offsets).sum(0) * self.scale(x).mean()


def normalised(kind: Any) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), kind, nn.Linear(8, 3))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "attention": Attention,
    "causal attention": lambda: Attention(is_causal=True),
    "masked attention": lambda: Masked(torch.randn(5, 5)),
    "attention masked by bools": lambda: Masked(torch.rand(5, 5) > 0.2),
    "attention without anything": lambda: Attention(dropout_p=1.0),
    "grouped attention": Grouped,
    "attention that tells its weights": lambda: Telling(8, 2, batch_first=True),
    "scaled attention": lambda: Attention(scale=0.3),
    "encoder layer": lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True),
    "pictures": Pictures,
    "lstm": lambda: Recurrent(nn.LSTM),
    "lstm without biases": lambda: Recurrent(nn.LSTM, bias=False),
    "lstm of packed sequences": lambda: Packed(nn.LSTM),
    "lstm cell": lambda: Cell(nn.LSTMCell(8, 6)),
    "gru": lambda: Recurrent(nn.GRU),
    "gru without biases": lambda: Recurrent(nn.GRU, bias=False),
    "gru cell": lambda: Cell(nn.GRUCell(8, 6)),
    "rnn": lambda: Recurrent(nn.RNN),
    "bags of sums": lambda: Bags("sum"),
    "bags of means": lambda: Bags("mean", padding_idx=3),
    "bags of maxima": lambda: Bags("max"),
    "batch norm": lambda: normalised(nn.BatchNorm1d(5)),
    "layer norm": lambda: normalised(nn.LayerNorm(8)),
    "instance norm": lambda: normalised(nn.InstanceNorm1d(5, affine=True)),
    "conv1d": lambda: nn.Sequential(nn.Conv1d(5, 4, 3, bias=False), nn.PReLU(), nn.Flatten()),
    "conv3d": lambda: nn.Sequential(nn.Unflatten(1, (1, 1, 5)), nn.Conv3d(1, 2, (1, 2, 3))),
}
FUNCTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "sort": lambda x: x.sort(-1),
    "topk": lambda x: x.topk(3),
    "cumsum": lambda x: x.cumsum(1).cumprod(2),
    "fft": lambda x: torch.fft.irfft(torch.fft.rfft(x) * 2j),
    "norms": lambda x: x.norm(dim=1) + torch.linalg.vector_norm(x, dim=(1,)) + x.std(1),
    "gather": lambda x: x.gather(1, x.argsort(1)) + x.index_select(2, torch.arange(8).to(x.device)),
    "scatter": lambda x: torch.zeros_like(x).scatter_add(1, x.argsort(1), x),
    "index": lambda x: x[:, [0, 2, 2]] + x.transpose(0, 1)[[0, 1, 2], :, ...].transpose(0, 1),
    "einsum": lambda x: torch.einsum("bij,bkj->bik", x, x),
    "solve": lambda x: torch.linalg.solve(x @ x.mT + 9 * torch.eye(5).to(x), x),
    "cholesky": lambda x: torch.linalg.cholesky(x @ x.mT + torch.eye(5).to(x)),
    "qr": lambda x: torch.linalg.qr(x)[1],
    "svd": lambda x: torch.linalg.svdvals(x),
    "interpolate": lambda x: functional.interpolate(x, scale_factor=2, mode="linear"),
    "pools": lambda x: functional.adaptive_avg_pool1d(x, 3) + functional.avg_pool1d(x, 3, 2),
    "pads": lambda x: functional.pad(x, (1, 2), mode="reflect").roll(1, 2).flip(1),
    "losses": lambda x: functional.huber_loss(x, x.flip(0)) + functional.l1_loss(x, x.tanh()),
    "cross entropy": lambda x: functional.cross_entropy(x, torch.zeros(2, 8).long().to(x.device)),
    "cdist": lambda x: torch.cdist(x, x.roll(1, 1) + 1),
    "activations": lambda x: functional.gelu(x) + functional.glu(x).repeat(1, 1, 2),
    "real fft": lambda x: torch.view_as_real(torch.fft.rfftn(x.transpose(0, 2))) * 2,
    "mixed types": lambda x: (torch.complex(x, x).transpose(0, 2) * x.sum().expand(8, 5, 2)).real,
    "eigenvalues": lambda x: torch.linalg.eig(x @ x.mT)[0].real,
    "log softmax": lambda x: x.transpose(0, 1).log_softmax(-1).transpose(0, 2)[..., 1:],
    "grid": lambda x: functional.grid_sample(x[:, None], x[:, :, None, :2], align_corners=False),
    "unfold": lambda x: functional.unfold(x[:, None], (2, 3)),
    "in place": lambda x: x.clone().mul_(2).index_add_(1, torch.arange(3).to(x.device), x[:, :3]),
    "channels last": lambda x: functional.avg_pool2d(
        x.view(2, 5, 2, 4).to(memory_format=torch.channels_last), 2
    ),
}  # fmt: skip


def trained(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Return the losses and weights of three steps."""
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [t.detach().cpu() for t in (*losses, *model.state_dict().values())]


def train_three_ways(sim: Any, build: Callable[[], nn.Module]) -> None:
    sim.configure(poison=True, asynchronous=False)
    torch.manual_seed(0)
    model, x = build().double(), torch.randn(2, 5, 8).double()
    expected = trained(copy.deepcopy(model), x)
    eager = copy.deepcopy(model).to("sim:1")
    torch.testing.assert_close(trained(eager, x.to("sim:1")), expected, rtol=1e-9, atol=1e-11)
    assert sim.mismatches() == []
    sim.configure(asynchronous=True, longest_delay="100us")
    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=as_traced, bw_compiler=as_traced)
    traced = torch.compile(model.to("sim:1"), backend=backend, dynamic=False)
    found = trained(traced, x.to("sim:1"))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_trains_the_same_on_the_cpu_on_a_device_and_traced(sim: Any, name: str) -> None:
    train_three_ways(sim, MODELS[name])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_the_same_on_the_cpu_on_a_device_and_traced(sim: Any, name: str) -> None:
    train_three_ways(sim, lambda: Calls(FUNCTIONS[name]))


def test_strides_of_results_do_not_depend_on_whether_calls_wait(sim: Any) -> None:
    x = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    found = []
    for asynchronous in (True, False):
        sim.configure(asynchronous=asynchronous)
        y = x.to("sim:0")
        results = [
            *torch.ops.aten.max_pool2d_with_indices(y, [2]),
            y.cumsum(1),
            *y.sort(1),
            y.logsumexp(1),
        ]
        results += [functional.conv2d(y, torch.ones(2, 3, 1, 1, device="sim:0")), y.flip(1)]
        found.append([(t.shape, t.stride(), t.dtype) for t in results])
    assert found[0] == found[1]


def test_least_squares_whose_kernel_gives_its_results_their_sizes(sim: Any) -> None:
    a, b = torch.randn(2, 6, 3), torch.randn(2, 6, 4)
    for asynchronous in (True, False):
        sim.configure(asynchronous=asynchronous)
        found = torch.linalg.lstsq(a.to("sim:0"), b.to("sim:0"))
        torch.testing.assert_close(found.solution.cpu(), torch.linalg.lstsq(a, b).solution)


def test_a_kernel_that_returns_other_strides_than_its_meta_function_is_named(sim: Any) -> None:
    library = torch.library.Library("baechi_check_test", "FRAGMENT")
    library.define("turned(Tensor x) -> Tensor")
    library.impl("turned", lambda x: x.new_empty(x.shape), "Meta")
    library.impl("turned", lambda x: x.new_empty(x.shape[::-1]).t(), "PrivateUse1")
    torch.ops.baechi_check_test.turned(torch.ones(2, 3, device="sim:0"))
    library._destroy()
    (line,) = sim.mismatches()
    assert line.startswith(
        "baechi_check_test::turned: returns (Float of sizes [2, 3] and strides [1, 2]),"
        " by its meta function (Float of sizes [2, 3] and strides [3, 1])"
    )
    assert sim.mismatches() == []
