# SPDX-License-Identifier: Apache-2.0
"""A step of a model that is too large for a device is recorded there all the same."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

import baechi.torch
import torch
from baechi.torch.memory.eager import peak_memory
from baechi.torch.record.capture import capture_on
from memory_test import check
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch_models import ALL, built, deep
from training_steps import close, loss_like, train

import baechi

sim: Any = pytest.importorskip("baechi.torch.sim")

DEVICE = torch.device("sim:0")


@pytest.fixture(autouse=True)
def machine() -> Iterator[None]:
    """Devices with nothing of earlier tests on them."""
    gc.collect()
    with sim.configured(devices=4, asynchronous=False, memory="1GiB"):
        yield
        gc.collect()


def with_only(size: int) -> None:
    """Let every device have so many bytes beside what is on the first now."""
    gc.collect()
    sim.configure(memory=size + sim.memory_allocated(0))


def need_of(captured: Any) -> int:
    """Return what a step takes on one device, without an optimizer."""
    return peak_memory(captured, {o.key: "0" for o in captured.ops}, optimizer="sgd")["0"]


def ran_out() -> int:
    return int(sim.memory_stats(0)["num_ooms"])


@pytest.mark.repeats
@pytest.mark.parametrize("name", [n for n in ALL if n != "turns"])
def test_what_is_recorded_does_not_depend_on_the_room(name: str) -> None:
    inputs = ALL[name].inputs(16)
    roomy = capture_on(DEVICE, built(ALL[name]), inputs, loss=loss_like)
    with_only(need_of(roomy) * 60 // 100)
    before = ran_out()
    tight = capture_on(DEVICE, built(ALL[name]), inputs, loss=loss_like)
    assert ran_out() > before
    assert tight == roomy


class Checkpointed(nn.Module):
    """Layers whose activations are computed again in the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(64, 32)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(32, 2, 128, 0.0, batch_first=True) for _ in range(4)
        )
        self.head = nn.Linear(32, 64)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.embedding(words)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return self.head(x)


class Towers(nn.Module):
    """Two towers over one large embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Embedding(1024, 128), nn.Embedding(1024, 128)
        self.right.weight = self.left.weight
        self.up, self.down = (
            nn.Sequential(*(nn.Sequential(nn.Linear(128, 128), nn.GELU()) for _ in range(6)))
            for _ in range(2)
        )
        self.head = nn.Linear(256, 512)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        up, down = self.up(self.left(words)), self.down(self.right(words.flip(1)))
        return self.head(torch.cat([up, down], -1))


class MessagePassing(nn.Module):
    """A graph network: edges are gathered, nodes sum up what comes in."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(16, 32)
        self.messages = nn.ModuleList(nn.Linear(64, 32) for _ in range(4))
        self.updates = nn.ModuleList(nn.GRUCell(32, 32) for _ in range(4))

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        nodes = torch.relu(self.inside(nodes))
        source, target = edges
        for message, update in zip(self.messages, self.updates, strict=True):
            sent = torch.relu(message(torch.cat([nodes[source], nodes[target]], -1)))
            nodes = update(torch.zeros_like(nodes).index_add(0, target, sent), nodes)
        return nodes


class Autoencoder(nn.Module):
    """Convolutions with group norms, and a random code between them."""

    def __init__(self) -> None:
        super().__init__()

        def block(inside: int, outside: int) -> nn.Module:
            norm = nn.GroupNorm(4, inside)
            return nn.Sequential(norm, nn.SiLU(), nn.Conv2d(inside, outside, 3, 1, 1))

        self.inside = nn.Conv2d(3, 16, 3, 1, 1)
        self.encoder = nn.Sequential(block(16, 16), nn.Conv2d(16, 32, 3, 2, 1), block(32, 32))
        self.code = nn.Conv2d(32, 16, 1)
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(8, 32, 2, 2), block(32, 32), block(32, 16), block(16, 16)
        )
        self.outside = nn.Conv2d(16, 3, 3, 1, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        mean, spread = self.code(self.encoder(self.inside(images))).chunk(2, 1)
        code = mean + torch.exp(0.5 * spread) * torch.randn_like(mean)
        return self.outside(self.decoder(code))


def _words(most: int) -> torch.Tensor:
    return torch.randint(0, most, (8, 24), generator=torch.Generator().manual_seed(1))


def _nodes() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    edges = torch.randint(0, 100, (2, 400), generator=generator)
    return torch.randn(100, 16, generator=generator), edges


MODELS: dict[str, tuple[Any, Any]] = {
    "checkpointed": (Checkpointed, lambda: _words(64)),
    "towers": (Towers, lambda: _words(1024)),
    "message-passing": (MessagePassing, _nodes),
    "autoencoder": (Autoencoder, lambda: torch.randn(4, 3, 32, 32)),
}


@pytest.mark.repeats
@pytest.mark.parametrize(
    ("count", "percent", "name"),
    [
        *((2, 75, name) for name in MODELS),
        *((4, 60, name) for name in MODELS),
    ],
)
def test_predicted_peaks_of_a_model_that_no_device_has_room_for(
    count: int, percent: int, name: str
) -> None:
    build, example = MODELS[name]
    inputs = example()
    torch.manual_seed(1)
    whole = baechi.torch.place(
        build(),
        inputs,
        "1x1GiB",
        devices=["sim:0"],
        loss=loss_like,
        method="single",
        bounds=False,
        gradients="freed",
    )
    cap = whole.peaks["gpu:0"] * percent // 100
    whole.restore()
    del whole
    with_only(cap)
    devices = [f"sim:{i}" for i in range(count)]
    torch.manual_seed(1)
    placed = baechi.torch.place(
        build(),
        inputs,
        f"{count}x{cap}B",
        devices=devices,
        loss=loss_like,
        bounds=False,
        gradients="freed",
    )
    check(placed, inputs, "adam")
    placed.restore()


def test_predicted_peaks_when_what_is_computed_again_is_on_several_devices() -> None:
    inputs = _words(64)
    for seed in (1, 2):
        torch.manual_seed(1)
        placed = baechi.torch.place(
            Checkpointed(),
            inputs,
            "3x1GiB",
            devices=[f"sim:{i}" for i in range(3)],
            loss=loss_like,
            optimizer="sgd",
            bounds=False,
            method="random",
            seed=seed,
            gradients="freed",
        )
        check(placed, inputs, "sgd")
        placed.restore()


def test_the_batch_may_be_on_a_device_that_is_too_small_for_the_model() -> None:
    inputs = torch.randn(64, 256)
    whole = capture_on(DEVICE, deep(), inputs, loss=loss_like)
    cap = need_of(whole) * 70 // 100
    del whole
    with_only(cap)
    model, there = deep(), inputs.to(DEVICE)
    placed = baechi.torch.place(
        model, there, f"4x{cap}B", devices=[f"sim:{i}" for i in range(4)], loss=loss_like
    )
    assert all(peak <= cap for peak in placed.peaks.values())
    close(train(deep(), [inputs] * 3), train(model, [there] * 3))
    assert torch.equal(there.cpu(), inputs)
    placed.restore()


@pytest.mark.parametrize("home", ["cpu", "sim:0", "sim:1"])
def test_a_recording_leaves_weights_and_gradients_as_they_were(home: str) -> None:
    inputs = ALL["lstm"].inputs(16)
    need = need_of(capture_on(DEVICE, built(ALL["lstm"]), inputs, loss=loss_like))
    model = built(ALL["lstm"]).to(home)
    model.register_buffer("constant", torch.ones(3, device=home))
    part = model.output.weight[3:5].detach()
    for weight in model.parameters():
        weight.grad = torch.full_like(weight, 2.0)
    weights = {name: (w.data_ptr(), w.cpu()) for name, w in model.state_dict().items()}
    held = sim.memory_allocated(0)
    sim.configure(memory=held + need * (40 if held else 60) // 100)
    before = ran_out()
    capture_on(DEVICE, model, inputs, loss=loss_like)
    assert ran_out() > before
    for name, weight in model.state_dict().items():
        assert weight.device == torch.device(home)
        assert home == "sim:0" or weight.data_ptr() == weights[name][0]
        assert torch.equal(weight.cpu(), weights[name][1])
    assert torch.equal(part.cpu(), model.output.weight[3:5].cpu())
    for weight in model.parameters():
        assert weight.grad is not None
        assert weight.grad.device == weight.device
        assert bool((weight.grad == 2).all())


class Unseen(torch.autograd.Function):
    """Has kernels of its own, which take addresses."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        made = x * 1.5
        large = torch.empty(16384, device=x.device)  # there may be no room for it
        assert all(t.data_ptr() for t in (x, weight, made, large))
        ctx.save_for_backward(x, weight)
        return made * weight

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        torch.empty(16384, device=gradients[0].device)
        x, weight = ctx.saved_tensors
        torch.empty(16384, device=gradients[0].device)
        assert all(t.data_ptr() for t in (x, weight, gradients[0]))
        return gradients[0] * weight * 1.5, None


class WithUnseen(nn.Module):
    """Layers of which every second one takes addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(256), requires_grad=False)
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = Unseen.apply(torch.tanh(layer(x)), self.scale)
        return x


def test_what_an_operator_reads_stays_while_it_runs() -> None:
    inputs = torch.randn(16, 256)
    roomy = capture_on(DEVICE, WithUnseen(), inputs, loss=loss_like)
    for percent in (20, 24, 28, 32, 36, 40, 45, 50):
        with_only(need_of(roomy) * percent // 100)
        before = ran_out()
        assert capture_on(DEVICE, WithUnseen(), inputs, loss=loss_like) == roomy
        assert ran_out() > before


def test_a_model_with_an_operator_too_large_for_a_device_is_recorded_on_the_host() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4096))
    sim.configure(memory=40 << 10)
    inputs = torch.randn(1, 4, device=DEVICE)
    with (
        pytest.raises(baechi.DoesNotFit, match="'1"),
        pytest.warns(UserWarning, match="recorded on the CPU, .* its weight '1.weight' alone"),
    ):
        baechi.torch.place(model, inputs, "2x40KiB", devices=["sim:0", "sim:1"])
    assert all(weight.device.type == "cpu" for weight in model.parameters())
