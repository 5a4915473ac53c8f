# SPDX-License-Identifier: Apache-2.0
"""The peaks of a step of micro-batches are what the simulated devices' allocators see."""

from __future__ import annotations

import gc
from typing import Any

import baechi.torch.sim as simulated
import pytest
import torch
from baechi.torch.asked import Request
from baechi.torch.micro_batched import StepRequest
from baechi.torch.placing import placed_for_steps
from baechi.torch.run.begun_gradients import begin_with
from baechi.torch.run.gradient_sums import GradientSums
from torch_models import ALL, built
from training_steps import loss_like


def peaks_of(name: str, count: int, micro_batches: int, known: list[Any], **options: Any) -> Any:
    """Return what each device holds at most in a step at random: foreseen, and measured."""
    gc.collect()
    inputs, recompute = ALL[name].inputs(64), options.pop("recompute", "none")
    with simulated.configured(devices=4, asynchronous=False, memory="1GiB"):
        request = Request(
            built(ALL[name]),
            inputs,
            cluster=f"{count}x1GiB",
            devices=[f"sim:{i}" for i in range(count)],
            exported=known,
            recompute=recompute,
            optimizer="sgd",
            in_steps=True,
            search={"method": "random", "bounds": False, **options},
        )
        placed = placed_for_steps(StepRequest(request, micro_batches, loss_like, None))
        placed.step(inputs)  # the gradients are there from now on
        for device in range(count):
            simulated.reset_peak_memory_stats(device)
        placed.step(inputs)
        measured = [simulated.max_memory_allocated(device) for device in range(count)]
        foreseen = list(placed.peaks.values())
        graphs = placed._assigner.graphs
        assert graphs is not None
        known[:] = graphs.tier2.exported  # traced once
        placed.restore()
    return foreseen, measured


def check_peaks(name: str, cases: Any) -> None:
    if name not in ALL:
        pytest.skip("transformers is not installed")
    known: list[Any] = []
    for count, micro_batches, seed, recompute in cases:
        how = {"seed": seed, "recompute": recompute}
        foreseen, measured = peaks_of(name, count, micro_batches, known, **how)
        for mine, peak in zip(foreseen, measured, strict=True):
            assert 0.97 * peak - 1024 <= mine <= 1.1 * peak + 2048, (how, foreseen, measured)


@pytest.mark.parametrize("name", ["unet", "gpt2"])
def test_on_one_device(name: str) -> None:
    """What a backward begins with is not held behind the node that takes it."""
    check_peaks(name, [(1, 4, 0, "none"), (1, 2, 0, "all")])


@pytest.mark.parametrize(
    ("name", "cases"),
    [
        ("unet", [(2, 4, 2, "none"), (4, 4, 4, "none"), (3, 2, 6, "all")]),
        ("gpt2", [(2, 4, 2, "none"), (3, 2, 6, "all")]),
        ("transformer", [(3, 8, 3, "none"), (4, 4, 4, "none"), (2, 4, 5, "all")]),
    ],
)
def test_on_several_devices(name: str, cases: Any) -> None:
    """What is sent takes memory at its target when the plan has it leave, gradients as well."""
    check_peaks(name, cases)


def test_sums_are_made_in_place_only_where_nobody_else_sees_it() -> None:
    sums = GradientSums()
    first, second, third, own = (torch.full((3,), float(i)) for i in range(4))
    for gradient in (first, second, third):
        sums.add("a", gradient)
    sums.add("a", own, own=True)
    assert torch.equal(sums.pop("a"), torch.full((3,), 6.0))
    assert [float(t[0]) for t in (first, second, third)] == [0.0, 1.0, 2.0]
    assert sums.pop("a") is None
    sums.add("b", second)
    sums.add("b", own, own=True)
    assert sums.pop("b") is own
    wide = torch.ones(1).expand(3)  # one number in memory
    sums.add("c", wide, own=True)
    sums.add("c", torch.arange(3.0))
    assert torch.equal(sums.pop("c"), torch.tensor([1.0, 2.0, 3.0]))


def tensors_of(x: torch.Tensor) -> list[torch.Tensor]:
    """Read inside and outside, a part of several, twice the same node, and what is asked for."""
    first = x * 2
    second, third = (first.exp() * first).sin().split(3)
    return [first, second, third, third, x]


def test_gradients_that_a_backward_begins_with_are_added_up() -> None:
    x = torch.randn(6).requires_grad_().sinh()
    tensors = tensors_of(x)
    gradients = [torch.randn_like(tensor) for tensor in tensors]
    expected = torch.autograd.grad(tensors, [x], gradients, retain_graph=True)
    edges = [torch.autograd.graph.get_gradient_edge(tensor) for tensor in tensors]
    for _ in range(2):  # no hook is left of the first time
        given = list(gradients)
        with begin_with(edges, edges[-1:], given) as begins:
            assert not given
            found = torch.autograd.grad(edges, edges[-1:], begins, retain_graph=True)
        torch.testing.assert_close(found, expected)
    again = torch.autograd.grad(tensors, [x], gradients)
    torch.testing.assert_close(again, expected)
