# SPDX-License-Identifier: Apache-2.0
"""What a training script uses works on simulated devices, and computes what the CPU computes."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

MODES = [
    {"asynchronous": False},
    {"asynchronous": True},
    {"asynchronous": True, "poison": True, "longest_delay": "200us", "seed": 5},
]
MODE_NAMES = ["sync", "async", "race"]


@pytest.fixture(params=MODES, ids=MODE_NAMES)
def mode(sim: Any, request: pytest.FixtureRequest) -> Any:
    """The simulated devices in each way of running."""
    sim.configure(**request.param)
    return sim


def convolutional() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1, groups=2),
        nn.GroupNorm(4, 16),
        nn.ReLU(inplace=True),
        nn.ConvTranspose2d(16, 4, 2, stride=2),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 10),
    )


def losses(first: str, second: str) -> list[float]:
    model = convolutional()
    head, tail = model[:5].to(first), model[5:].to(second)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    torch.manual_seed(1)
    result = []
    for _ in range(5):
        x, target = torch.randn(4, 3, 12, 12), torch.randint(0, 10, (4,))
        output = tail(head(x.to(first)).to(second))
        loss = functional.cross_entropy(output, target.to(second))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        result.append(loss.item())
    return result


@pytest.mark.usefixtures("mode")
def test_a_cnn_over_two_devices_has_the_losses_of_the_cpu_bit_for_bit() -> None:
    assert losses("sim:0", "sim:1") == losses("cpu", "cpu")


SPARSE: dict[str, Any] = {
    "sparse adam": lambda p: torch.optim.SparseAdam(p, 0.1),
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.1),
}


@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")
@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("name", SPARSE)
def test_sparse_gradients(name: str) -> None:
    torch.manual_seed(0)
    words = torch.tensor([[1, 2, 4], [5, 4, 4], [0, 9, 1]])
    plain = nn.ModuleList([nn.Embedding(10, 4, sparse=True), nn.EmbeddingBag(10, 4, sparse=True)])
    found: list[list[torch.Tensor]] = []
    for device in ("cpu", "sim:1"):
        model, x = copy.deepcopy(plain).to(device), words.to(device)
        optimizer = SPARSE[name](list(model.parameters()))
        for _ in range(3):
            optimizer.zero_grad()
            for scale in (1, 2):  # the second is added to the first
                (model[0](x).sum(1) * model[1](x) * scale).square().sum().backward()
            optimizer.step()
        parameters = list(model.parameters())
        assert all(p.grad is not None and p.grad.is_sparse for p in parameters)
        found.append([t.detach().to("cpu") for p in parameters for t in (p, p.grad.to_dense())])
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.usefixtures("mode")
def test_autocast_to_bfloat16() -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(8, 8), torch.randn(4, 8)
    results = []
    for device in ("cpu", "sim"):
        model.to(device)
        model.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16):
            y = model(x.to(device))
            z = torch.softmax(y.float(), 1)
            assert device == "cpu" or torch.softmax(y, 1).dtype == torch.float32
        assert y.dtype == torch.bfloat16
        z[:, 0].sum().backward()
        assert model.weight.grad is not None
        results.append((z.detach().cpu(), model.weight.grad.cpu().clone()))
    assert torch.equal(results[0][0], results[1][0])
    torch.testing.assert_close(results[0][1], results[1][1])
    with torch.autocast("cpu", dtype=torch.bfloat16):  # is about the CPU alone
        assert (model(x.to("sim"))).dtype == torch.float32


@pytest.mark.usefixtures("mode")
def test_a_gradient_scaler_skips_a_step_with_infinite_gradients() -> None:
    weight = nn.Parameter(torch.ones(2, device="sim"))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = torch.amp.GradScaler("sim", init_scale=4.0)
    for factor in (float("inf"), 1.0):
        optimizer.zero_grad()
        scaler.scale((weight * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert weight.tolist() == [0, 0]
    assert scaler.get_scale() == 2.0


@pytest.mark.usefixtures("mode")
def test_dropout_follows_the_seed() -> None:
    def masks() -> list[torch.Tensor]:
        torch.manual_seed(3)
        ones = [torch.ones(200, device=f"sim:{i}") for i in (0, 1)]
        return [functional.dropout(t, 0.5).cpu() for t in [*ones, *ones]]

    first, second = masks(), masks()
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)
        assert set(a.tolist()) == {0, 2}
        assert 60 < int((a == 0).sum()) < 140
    assert not torch.equal(first[0], first[2])  # the next draw differs
    torch.manual_seed(4)
    assert not torch.equal(first[0], functional.dropout(torch.ones(200, device="sim"), 0.5).cpu())


def test_generators_and_their_states(mode: Any) -> None:
    state = mode.get_rng_state("sim:1")
    first = torch.rand(5, device="sim:1").cpu()
    mode.set_rng_state(state, "sim:1")
    assert torch.equal(first, torch.rand(5, device="sim:1").cpu())
    own = torch.Generator("sim:1").manual_seed(4)
    first = torch.randn(5, device="sim:1", generator=own).cpu()
    own.manual_seed(4)
    assert torch.equal(first, torch.randn(5, device="sim:1", generator=own).cpu())
    with pytest.raises(RuntimeError, match="generator"):
        torch.rand(5, device="sim", generator=torch.Generator())
    torch.randperm(9, device="sim").sort()
    torch.randint(0, 5, (3,), device="sim").bernoulli_(0.5)
    torch.multinomial(torch.ones(4, device="sim"), 2).cpu()


def test_random_numbers_do_not_depend_on_which_stream_runs_first(sim: Any) -> None:
    def draws(seed: int) -> list[float]:
        sim.configure(longest_delay="1ms", seed=seed)
        torch.manual_seed(0)
        streams = [torch.Stream("sim") for _ in range(3)]
        drawn = []
        for i in range(9):
            with streams[i % 3]:
                drawn.append(torch.rand(1, device="sim"))
        sim.synchronize()
        return [float(t.item()) for t in drawn]

    assert draws(1) == draws(2)


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_draws_the_same_dropout_again(reentrant: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4)).to("sim:1")
    x = torch.randn(3, 4, device="sim:1", requires_grad=True)
    gradients = []
    for run in (model, lambda t: checkpoint(model, t, use_reentrant=reentrant)):
        torch.manual_seed(1)
        x.grad = None
        run(x).sum().backward()
        assert x.grad is not None
        gradients.append(x.grad.cpu())
    assert torch.equal(*gradients)


@pytest.mark.usefixtures("mode")
def test_saving_and_loading_somewhere_else() -> None:
    file = io.BytesIO()
    layer = nn.Linear(3, 2).to("sim:1")
    torch.save(layer.state_dict(), file)
    for where, device in ((None, "sim:1"), ("sim:2", "sim:2"), ("cpu", "cpu")):
        file.seek(0)
        loaded = torch.load(file, map_location=where)
        assert loaded["weight"].device == torch.device(device)
        assert torch.equal(loaded["weight"].cpu(), layer.weight.detach().cpu())


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adamax", "NAdam"])
@pytest.mark.parametrize("options", [{"foreach": True}, {"foreach": False}, {"fused": True}])
def test_optimizers_step_as_on_the_cpu(name: str, options: dict[str, bool]) -> None:
    if "fused" in options and name not in ("SGD", "Adam", "AdamW", "Adagrad"):
        pytest.skip("PyTorch has no fused kernel for it")
    weights = []
    for device in ("cpu", "sim:1"):
        weight = nn.Parameter(torch.arange(1.0, 4.0, device=device))
        optimizer = getattr(torch.optim, name)([weight], lr=0.1, **options)
        for _ in range(3):
            optimizer.zero_grad()
            weight.square().sum().backward()
            optimizer.step()
        weights.append(weight.detach().cpu())
    torch.testing.assert_close(weights[1], weights[0], rtol=1e-6, atol=1e-7)


@pytest.mark.usefixtures("mode")
def test_clipping_gradients_over_several_devices() -> None:
    parameters = [nn.Parameter(torch.zeros(3, device=f"sim:{i}")) for i in (0, 1, 2)]
    for p in parameters:
        p.grad = torch.full_like(p, 5.0)
    norm = nn.utils.clip_grad_norm_(parameters, 1.0)
    assert norm.item() == pytest.approx(15)
    gradients = [p.grad.cpu() for p in parameters if p.grad is not None]
    assert torch.cat(gradients).norm().item() == pytest.approx(1)


@pytest.mark.usefixtures("mode")
def test_channels_last_and_half_precision() -> None:
    torch.manual_seed(0)
    model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 6, 6).to(memory_format=torch.channels_last)
    y = copy.deepcopy(model).to("sim")(x.to("sim"))
    assert y.is_contiguous()  # as PyTorch says of convolutions on devices of this kind
    assert torch.equal(y.cpu(), model(x))
    half = torch.ones(2, 2, device="sim", dtype=torch.float16)
    assert (half @ half).tolist() == [[2, 2], [2, 2]]


@pytest.mark.usefixtures("mode")
def test_loading_data_with_pinned_memory() -> None:
    x = torch.arange(4.0).pin_memory()
    assert x.is_pinned()
    assert not torch.arange(4.0).is_pinned()
    assert x[1:].to("sim", non_blocking=True).tolist() == [1, 2, 3]


@pytest.mark.usefixtures("mode")
def test_deep_copies_and_printing() -> None:
    model = nn.Linear(2, 2).to("sim:3")
    assert torch.equal(copy.deepcopy(model).weight, model.weight)
    assert "device='sim:3'" in repr(model.weight)
