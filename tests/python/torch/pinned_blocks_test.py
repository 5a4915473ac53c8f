# SPDX-License-Identifier: Apache-2.0
"""Weights in pinned memory: in few blocks, each with a storage of its own."""

from __future__ import annotations

import copy
import gc
import io
import random
from types import ModuleType
from typing import Any

import baechi.torch
import pytest
import torch
from baechi.torch import native
from baechi.torch.where.pinned import packed, pin, ready, unpin
from quantised_test import Int8
from torch import nn

KIB = 1024


@pytest.fixture
def sim(sim: ModuleType) -> ModuleType:
    """Return the simulated devices; what other tests left to be used again is given up."""
    gc.collect()
    unpin(())
    return sim


def pinned(sim: ModuleType) -> int:
    gc.collect()
    return int(sim.host_memory_stats()["allocated_bytes.current"])


def power(size: int) -> int:
    return 1 << (size - 1).bit_length()


@pytest.mark.parametrize("seed", range(20))
def test_blocks_are_powers_of_two_that_hold_everything_once(seed: int) -> None:
    pick = random.Random(seed)
    sizes = [64 * pick.randint(1, 4 ** pick.randint(1, 8)) for _ in range(pick.randint(1, 60))]
    blocks = packed(sizes, range(len(sizes)))
    assert sorted(i for _, inside in blocks for i in inside) == [*range(len(sizes))]
    for size, inside in blocks:
        assert size == power(size) >= sum(sizes[i] for i in inside)
    least = max(size for size, _ in blocks) // 2
    smaller = packed(sizes, range(len(sizes)), least)
    assert all(size <= least for size, _ in smaller)
    there = {i for _, inside in smaller for i in inside}
    assert all((i in there) == (size <= least and least >= 4 * KIB) for i, size in enumerate(sizes))


def test_blocks_of_large_models_are_full() -> None:
    layer = [4096 * 4096] * 2 + [1024 * 4096] * 2 + [4096 * 14336] * 3 + [4096] * 2
    llama = [2 * size for size in [128256 * 4096] * 2 + layer * 32]
    blocks = packed(llama, range(len(llama)))
    assert sum(size for size, _ in blocks) < 1.01 * sum(llama) < sum(map(power, llama)) / 1.09
    assert len(blocks) < 20


class Tied(nn.Module):
    """Weights of odd sizes; two share memory, and one is a part of a larger tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(300, 40), nn.Linear(300, 40, bias=False)
        self.narrow.weight = nn.Parameter(self.wide.weight.detach(), requires_grad=False)
        self.part = nn.Parameter(torch.randn(100, 50)[:, ::2])
        self.turned = nn.Parameter(torch.randn(30, 20).t())
        self.none = nn.Parameter(torch.empty(0))
        self.register_buffer("flag", torch.tensor(True))


def test_each_storage_has_a_part_of_its_own_and_what_shared_one_does(sim: ModuleType) -> None:
    model, before = Tied(), pinned(sim)
    state = copy.deepcopy(model.state_dict())
    strides = {name: weight.stride() for name, weight in model.named_parameters()}
    weights = [*model.parameters(), *model.buffers()]
    assert pin(weights) is None
    held = pinned(sim) - before
    wanted = 4 * (300 * 40 + 40 + 100 * 25 + 30 * 20) + 1
    assert wanted <= held < wanted + 16 * KIB
    assert all(one.is_pinned() for one in weights if one.numel())
    assert model.narrow.weight.data_ptr() == model.wide.weight.data_ptr()
    assert len({one.untyped_storage().data_ptr() for one in weights}) == 6
    for name, one in model.named_parameters():
        assert one.untyped_storage().nbytes() == one.nbytes
        assert one.data_ptr() % 64 == 0
        assert name == "part" or one.stride() == strides[name]
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    assert len(file.getvalue()) < wanted + 8 * KIB
    file.seek(0)
    other = copy.deepcopy(model)
    assert pinned(sim) - before == held
    for found in (model.state_dict(), other.state_dict(), torch.load(file)):
        torch.testing.assert_close(found, state, rtol=0, atol=0)
    kept = model.wide.bias.data  # a part keeps its block
    unpin(model.parameters())
    unpin(model.buffers())
    assert not any(one.is_pinned() for one in model.parameters())
    torch.testing.assert_close(model.state_dict(), state, rtol=0, atol=0)
    del weights
    assert pinned(sim) > before
    assert torch.equal(kept, state["wide.bias"])
    del kept
    assert pinned(sim) == before


@pytest.mark.parametrize("has_compiler", [True, False])
def test_what_the_system_refuses_to_pin_stays_where_it_is(
    sim: ModuleType, monkeypatch: pytest.MonkeyPatch, has_compiler: bool
) -> None:
    if not has_compiler:
        monkeypatch.setattr(native, "library", lambda: None)
    weights = [torch.full((size * KIB,), size, dtype=torch.uint8) for size in (64, 40, 16, 6, 2)]
    before = pinned(sim)
    sim.configure(devices=1, pinned=before + KIB)
    assert pin(weights) is not None
    assert not any(weight.is_pinned() for weight in weights)
    sim.configure(devices=1, pinned=before + 60 * KIB)
    why = pin(weights)
    assert why is not None
    assert "cannot pin" in why
    assert "\n" not in why
    # 32, 16 and 8 KiB hold what they can: one block for each power of two.
    assert [w.is_pinned() for w in weights] == (
        [False, False, True, True, True] if has_compiler else [False] * 5
    )
    for weight, size in zip(weights, (64, 40, 16, 6, 2), strict=True):
        assert weight.unique().tolist() == [size]
    sim.configure(devices=1, pinned="1GiB")
    assert pin(weights) is None
    assert all(weight.is_pinned() for weight in weights)


def test_what_is_put_has_the_same_memory_in_each_step(sim: ModuleType) -> None:
    sim.configure(devices=1, memory="1MiB", asynchronous=False)
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(40, 40) for _ in range(6)))
    before, x, alone = pinned(sim), torch.randn(4, 40), copy.deepcopy(model)
    placed = baechi.torch.place(model, x, "1x1MiB+1xhost:1GiB", residency="all", budget="0.1s")
    weights = sum(weight.nbytes for weight in model.parameters())
    assert pinned(sim) - before < weights + 8 * KIB
    seen: list[set[int]] = []
    kept: list[torch.Tensor] = []
    for step in range(5):
        model.zero_grad()
        alone.zero_grad()
        for one in (model, alone):
            one(x * (step + 1)).square().mean().backward()
        gradients = [weight.grad for weight in model.parameters()]
        for mine, other in zip(gradients, alone.parameters(), strict=True):
            assert mine is not None
            assert mine.is_pinned()
            torch.testing.assert_close(mine, other.grad)
        for mine, same in zip(kept[::2], kept[1::2], strict=True):
            assert torch.equal(mine, same)  # nobody else has had its memory
        seen.append({one.data_ptr() for one in gradients if one is not None})
        held = pinned(sim) - before
        assert 2 * weights <= held < (2 if step < 3 else 2.2) * weights + 16 * KIB
        if step == 2 and gradients[0] is not None:
            kept = [gradients[0], gradients[0].clone()]
        del gradients, mine
    assert seen[0] == seen[1] == seen[2]
    assert len(seen[3] - seen[2]) == 1
    model.zero_grad()
    kept.clear()
    placed.restore()
    assert pinned(sim) == before


def test_memory_for_sizes_that_are_not_put_any_more_is_given_up(sim: ModuleType) -> None:
    unpin([])
    before = pinned(sim)
    for size in range(1, 200):
        ready([size * KIB, 64])
    assert pinned(sim) - before < 70 * 256 * KIB < sum(range(200)) * KIB
    unpin([])
    assert pinned(sim) == before
    sim.configure(devices=1, pinned=before + 20 * KIB)
    ready([16 * KIB] * 3)
    assert pinned(sim) - before == 16 * KIB
    unpin([])


def test_a_placed_model_has_its_pinned_memory_until_it_is_restored(sim: ModuleType) -> None:
    sim.configure(devices=1, memory="1MiB")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.Linear(64, 32)).double()
    scales = torch.rand(32, 1)
    model[1].weight = nn.Parameter(
        Int8(torch.ones(32, 64, dtype=torch.int8), scales), requires_grad=False
    )
    before, x = pinned(sim), torch.randn(4, 32)
    model.float()
    alone = copy.deepcopy(model)
    placed = baechi.torch.place(model, x, "1x1MiB+1xhost:1GiB", residency="all")
    wrapped: Any = model[1].weight
    assert wrapped.values.is_pinned()
    assert wrapped.scales.is_pinned()
    size = 4 * (32 * 64 + 64 + 32 + 32) + 32 * 64
    assert size <= pinned(sim) - before < size + 8 * KIB
    torch.testing.assert_close(model(x).cpu(), alone(x))
    placed.restore()
    assert pinned(sim) == before
    torch.testing.assert_close(model(x), alone(x))
