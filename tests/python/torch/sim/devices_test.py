# SPDX-License-Identifier: Apache-2.0
"""Simulated devices as a user meets them: where tensors are, and how much fits."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

MIB = 2**20


def test_tensors_move_and_compute_where_they_are(sim: Any) -> None:
    x = torch.arange(6.0).view(2, 3)
    y = x.to("sim:1")
    z = (y @ y.t()).relu() + 1
    assert z.device == torch.device("sim", 1)
    assert torch.equal(z.cpu(), (x @ x.t()).relu() + 1)
    assert torch.equal(z.to("sim:2").cpu(), z.cpu())
    assert sim.current_device() == 0


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    "operation",
    [
        lambda a, b: a + b,
        lambda a, b: a @ b,
        lambda a, b: torch.cat([a, b]),
        lambda a, b: a.add_(b),
        lambda a, b: torch.where(a > 0, a, b),
        lambda a, b: functional.linear(a, b),
        lambda a, b: functional.conv1d(a[None], b[None]),
        lambda a, b: functional.embedding(torch.zeros(2, dtype=torch.long, device=a.device), b),
        lambda a, b: functional.layer_norm(a, (2,), b[0], b[0]),
        lambda a, b: functional.scaled_dot_product_attention(a[None, None], *[b[None, None]] * 2),
    ],
)
@pytest.mark.parametrize("other", ["sim:1", "cpu"])
def test_tensors_on_two_devices_do_not_mix(
    sim: Any, operation: Callable[[Any, Any], Any], other: str, asynchronous: bool
) -> None:
    sim.configure(asynchronous=asynchronous)
    a = torch.ones(2, 2, device="sim:0")
    b = torch.ones(2, 2, device=other)
    with pytest.raises(RuntimeError, match=r"Expected .*same device|must be on the same device"):
        operation(a, b)
    assert operation(a, b.to("sim:0")).device == a.device


@pytest.mark.usefixtures("sim")
def test_host_scalars_and_host_indices_may_take_part() -> None:
    x = torch.arange(4.0, device="sim")
    assert (x * torch.tensor(2.0)).tolist() == [0, 2, 4, 6]
    assert (x * 2).dtype == torch.float32
    assert (torch.arange(3, device="sim") * 0.5).tolist() == [0, 0.5, 1]
    assert x[torch.tensor([3, 1])].tolist() == [3, 1]
    with pytest.raises(RuntimeError, match="same device"):
        torch.tensor(2.0).add_(x[0])


def test_an_unknown_device_is_named(sim: Any) -> None:
    sim.configure(devices=2)
    assert torch.accelerator.device_count() == 2
    with pytest.raises(RuntimeError, match="there is no sim:2; the devices are sim:0 to sim:1"):
        torch.ones(1, device="sim:2")
    with pytest.raises(RuntimeError, match="there is no sim:7"):
        sim.memory_allocated("sim:7")
    with pytest.raises(ValueError, match="there is no sim:7"):
        sim.work("1ms", "sim:7")


# PyTorch 2.10 says so of every gradient that a copy brings to a leaf of another device.
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match")
def test_there_may_be_more_devices_at_any_time(sim: Any) -> None:
    sim.configure(devices=16)
    x = torch.ones(3, device="sim:15", requires_grad=True)
    (x.to("sim:9") * 2).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2, 2, 2]


def test_an_import_after_the_first_backward_says_that_it_is_too_late() -> None:
    program = (
        "import torch; torch.ones(1, requires_grad=True).sum().backward(); import baechi.torch.sim"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "must be imported before the first backward() of the process" in done.stderr


def test_memory_is_counted_in_granules_of_512_bytes(sim: Any) -> None:
    before = sim.memory_allocated(1)
    x = torch.empty(1000, device="sim:1")
    y = torch.empty(1, device="sim:1")
    assert sim.memory_allocated(1) - before == 4096 + 512
    view = x.view(10, 100)[3:5].t()
    assert sim.memory_allocated(1) - before == 4096 + 512
    del x, y
    assert sim.memory_allocated(1) - before == 4096
    del view
    assert sim.memory_allocated(1) == before
    assert sim.memory_allocated(0) == torch.accelerator.memory_allocated(0)


def test_the_peak_is_what_was_live_at_once(sim: Any) -> None:
    sim.configure(asynchronous=False)
    device = torch.device("sim", 3)
    x = torch.empty(MIB, dtype=torch.uint8, device=device)
    torch.accelerator.reset_peak_memory_stats(device)
    for _ in range(3):
        y = torch.empty(2 * MIB, dtype=torch.uint8, device=device)
        del y
    assert sim.max_memory_allocated(device) == 3 * MIB
    assert torch.accelerator.max_memory_allocated(device) == 3 * MIB
    sim.reset_peak_memory_stats(device)
    assert sim.max_memory_allocated(device) == MIB
    del x


def test_an_allocation_beyond_the_limit_raises_out_of_memory_and_can_be_recovered_from(
    sim: Any,
) -> None:
    sim.configure(memory=["1MiB", "4MiB", None, None])
    kept = torch.zeros(128 * 1024, device="sim:0")
    with pytest.raises(torch.OutOfMemoryError, match=r"sim:0 .*tried to allocate 1\.00 MiB"):
        torch.zeros(256 * 1024, device="sim:0")
    assert sim.memory_stats(0)["num_ooms"] == 1
    assert sim.mem_get_info(0) == (MIB // 2, MIB)
    torch.zeros(256 * 1024, device="sim:1")  # another device has room
    del kept
    assert torch.zeros(256 * 1024, device="sim:0").cpu().sum() == 0


def test_a_model_that_does_not_fit_one_device_trains_on_two(sim: Any) -> None:
    def train(devices: list[str]) -> float:
        torch.manual_seed(0)
        layers = [torch.nn.Linear(64, 64) for _ in range(8)]
        for i, layer in enumerate(layers):
            layer.to(devices[i * len(devices) // len(layers)])
        optimizer = torch.optim.Adam([p for layer in layers for p in layer.parameters()])
        for _ in range(2):
            x = torch.ones(4, 64)
            for layer in layers:
                x = layer(x.to(layer.weight.device))
            loss = x.square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return float(loss.item())

    sim.configure(memory="400KiB", asynchronous=False)
    with pytest.raises(torch.OutOfMemoryError):
        train(["sim:0"])
    assert train(["sim:0", "sim:1"]) == train(["cpu"])


@pytest.mark.usefixtures("sim")
def test_parameters_keep_their_identity_when_they_move() -> None:
    layer = torch.nn.Linear(3, 3)
    weight = layer.weight
    layer.to("sim:1")
    assert layer.weight is weight
    weight.data = weight.data.to("sim:2")
    assert weight.device == torch.device("sim", 2)
    weight.sum().backward()
    assert weight.grad.device == weight.device
    layer.cpu()
    assert layer.weight is weight
    assert weight.device.type == "cpu"


@pytest.mark.usefixtures("sim")
def test_views_share_memory() -> None:
    x = torch.zeros(4, 6, device="sim")
    x.t()[1:3].unfold(1, 2, 2).fill_(1)
    x.view(24)[0] = 5
    x.as_strided((2,), (7,))[1] = 7
    expected = torch.zeros(4, 6)
    expected.t()[1:3].unfold(1, 2, 2).fill_(1)
    expected.view(24)[0] = 5
    expected.as_strided((2,), (7,))[1] = 7
    assert torch.equal(x.cpu(), expected)
    torch.view_as_real(torch.zeros(2, dtype=torch.complex64, device="sim")).fill_(1)
    x.resize_(5, 6)
    assert torch.equal(x[:4].cpu(), expected)
    x.set_(torch.ones(3, device="sim"))
    assert x.tolist() == [1, 1, 1]


@pytest.mark.usefixtures("sim")
def test_results_whose_size_depends_on_values() -> None:
    x = torch.tensor([3, 1, 2, 3], device="sim:1")
    assert x.nonzero().flatten().tolist() == [0, 1, 2, 3]
    assert x[x > 1].tolist() == [3, 2, 3]
    assert x.unique().tolist() == [1, 2, 3]
    assert torch.bincount(x).tolist() == [0, 1, 1, 2]
    assert torch.histc(x, 4, 0, 4).tolist() == [0, 1, 1, 2]
    assert x.repeat_interleave(2).numel() == 8
    assert torch.equal(x, x.clone())
    assert bool((x == 3).any())


@pytest.mark.usefixtures("sim")
def test_out_arguments_get_their_size() -> None:
    x = torch.ones(2, 3, device="sim")
    out = torch.empty(0, device="sim")
    torch.mul(x, 2, out=out)
    assert out.tolist() == [[2, 2, 2], [2, 2, 2]]


def test_arguments_that_are_several_results_outlive_their_kernel(sim: Any) -> None:
    pooled: list[tuple[torch.Tensor, ...]] = []
    for asynchronous in (True, False):
        sim.configure(asynchronous=asynchronous)
        x = torch.arange(4096.0, device="sim:0").view(4, 4, 16, 16)
        for _ in range(100):  # an argument that is freed twice shows when the next one is taken
            pooled.append(torch.ops.aten.max_pool2d_with_indices(x, [2, 2]))
            pooled.append(torch.sort(x, dim=-1, descending=True))
        sim.synchronize()
    x = x.cpu()
    expected = [torch.ops.aten.max_pool2d_with_indices(x, [2, 2]), torch.sort(x, -1, True)]
    for i, results in enumerate(pooled):
        assert all(torch.equal(a.cpu(), b) for a, b in zip(results, expected[i % 2], strict=True))


@pytest.mark.usefixtures("sim")
def test_complex_and_conjugated_tensors() -> None:
    x = torch.tensor([1 + 2j, 3 - 1j], device="sim")
    assert (x.conj() * x).real.tolist() == [5, 10]
    assert x.conj().cpu().tolist() == [1 - 2j, 3 + 1j]
    assert x.conj().imag.tolist() == [-2, 1]


def test_errors_of_kernels_arrive_with_the_operator_or_later_with_its_name(sim: Any) -> None:
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        torch.ones(2, 3, device="sim") @ torch.ones(2, 3, device="sim")
    sim.configure(asynchronous=True)
    bad = torch.tensor([0, 9], device="sim")
    result = torch.ones(3, device="sim").index_select(0, bad)
    with pytest.raises((RuntimeError, IndexError), match=r"out of range.*index_select.*later"):
        result.cpu()
    assert torch.ones(3, device="sim").sum().item() == 3


def test_a_forked_child_is_told_that_it_cannot_use_the_devices(sim: Any) -> None:
    torch.ones(1, device="sim").add_(1).cpu()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        said = "nothing"
        try:
            torch.ones(1, device="sim")
        except RuntimeError as error:
            said = str(error)
        os.write(write, f"{sim.is_available()} {said}".encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 1000).decode().startswith("False simulated devices cannot be used in a")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"devices": 17}, "1 to 16 devices"),
        ({"memory": "2 gigs"}, "memory: '2 gigs' is not bytes with their unit"),
        ({"memory": ["1GiB"]}, "1 memory sizes for 4 devices"),
        ({"pinned": "1 gig"}, "pinned: '1 gig' is not bytes with their unit"),
        ({"communication": "shouting"}, "parallel, sequential, duplex"),
        ({"clock": "sundial"}, "clock is 'real' or 'virtual'"),
        ({"links": {(0, "moon"): None}}, "device numbers or 'host'"),
        ({"link": "5us,10GB/s"}, r"a link is a sim.Link, such as sim.Link\('5us', '10GB/s'\), not"),
        ({"operator_time": "-1us"}, "is not a duration"),
    ],
)
def test_a_wrong_setting_is_named(sim: Any, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sim.configure(**change)
    assert sim.current() == sim.Settings(checked=True)


def test_settings_come_back_after_a_with_block(sim: Any) -> None:
    with sim.configured(memory="1MiB", poison=True):
        assert sim.mem_get_info(2)[1] == MIB
        assert torch.empty(3, device="sim").isnan().all()
    assert sim.current() == sim.Settings(checked=True)
