# SPDX-License-Identifier: Apache-2.0
"""What wraps a placed model, or is wrapped by it: compilers, data parallelism, libraries."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from branching_net import X, both, net, placed, placed_on, same_gradients, same_steps, step
from torch import nn
from two_processes import printed_by_two

sim: Any = pytest.importorskip("baechi.torch.sim")

pytestmark = pytest.mark.usefixtures("sim", "restored")

TIERS = pytest.mark.parametrize("tier", [1, 2])


@pytest.mark.repeats
@TIERS
@pytest.mark.parametrize("when", ["after", "in place", "before"])
def test_torch_compile(tier: int, when: str) -> None:
    plain, model = net(), net()
    called = torch.compile(model, backend="eager") if when != "in place" else model
    place = placed(model if when == "after" else called, tier)
    if when == "in place":
        model.compile(backend="eager")
    if when == "after":
        called = torch.compile(model, backend="eager")
    for n in (1, 2):
        torch.testing.assert_close(called(X * n), plain(X * n))
    assert place.tier == tier
    called(X).square().mean().backward()
    plain(X).square().mean().backward()
    same_gradients(plain, model)
    place.restore()
    torch.testing.assert_close(called(X), plain(X))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # Dynamo's look at inputs
@TIERS
def test_layers_that_were_compiled_before(tier: int) -> None:
    plain, model = net(), net()
    model.left.compile(backend="eager")
    model.right = torch.compile(model.right, backend="eager")
    compiled = model.right
    place = placed(model, tier)
    same_steps(plain, model)
    assert model.right is compiled
    place.restore()
    same_steps(plain, model)


def test_data_parallel_says_why_not() -> None:
    _, model, place = both(1)
    with pytest.raises(RuntimeError, match="must have its parameters and buffers on device"):
        nn.DataParallel(model, ["sim:0", "sim:1"])(X.to("sim:0"))
    place.restore()


RANKS = """
import gc
import sys
import torch
import torch.distributed as dist
import baechi.torch
from torch import nn

rank, tier = int(sys.argv[1]), int(sys.argv[2])
dist.init_process_group("gloo", init_method="file://" + sys.argv[3], rank=rank, world_size=2)
torch.manual_seed(5)
model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
plain = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
plain.load_state_dict(model.state_dict())
x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
placed = baechi.torch.place(
    model, x[:2], "2x1GiB", method="random", bounds=False, devices=["cpu"] * 2, tier=tier,
    ranks=False,
)
parallel = nn.parallel.DistributedDataParallel(model)
for _ in range(2):
    parallel.zero_grad()
    parallel(x[2 * rank : 2 * rank + 2]).square().mean().backward()
plain(x).square().mean().backward()
for a, b in zip(plain.parameters(), model.parameters()):
    torch.testing.assert_close(a.grad, b.grad)
assert placed.tier == tier
# A reducer that outlives its group can abort the process at its exit, without baechi, too.
del parallel
gc.collect()
dist.destroy_process_group()
"""


@TIERS
def test_two_processes_train_a_placed_model_each(tier: int, tmp_path: Path) -> None:
    printed_by_two(RANKS, tier, tmp_path / "store")


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_accelerate(precision: str) -> None:
    accelerate = pytest.importorskip("accelerate")
    losses = []
    accelerate.state.AcceleratorState._reset_state()
    for place in (False, True):
        accelerator = accelerate.Accelerator(
            cpu=True, mixed_precision=precision, gradient_accumulation_steps=2
        )
        model = net()
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        if place:
            placed(model, "auto")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            inner, wrapped = accelerator.prepare(model, optimizer)
        seen = []
        for _ in range(4):
            with accelerator.accumulate(inner):
                loss = inner(X).square().mean()
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(inner.parameters(), 1.0)
                wrapped.step()
                wrapped.zero_grad()
                seen.append(loss.item())
        losses.append(seen)
    assert losses[1] == pytest.approx(losses[0], rel=1e-2 if precision == "bf16" else 1e-4)


def test_optimizers_placed_and_moved_by_a_library_stay_together() -> None:
    plain, model = net(), net()
    expected = torch.optim.Adam(plain.parameters(), 0.01)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    step(plain, expected)
    step(model, optimizer)
    place = placed_on(model)
    with pytest.warns(UserWarning, match="its weights stay"):
        model.to("cpu")
    for _ in range(2):
        assert step(model, optimizer) == pytest.approx(step(plain, expected), rel=1e-4)
    place.restore()
