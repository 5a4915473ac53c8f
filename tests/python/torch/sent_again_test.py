# SPDX-License-Identifier: Apache-2.0
"""A tensor that was sent to a device and then changed is sent again, however it was changed."""

from __future__ import annotations

import functools
from typing import Any

import pytest

pytest.importorskip("torch")

import baechi.torch
import torch
from baechi.torch.placing import assign
from torch import nn

sim: Any = pytest.importorskip("baechi.torch.sim")

pytestmark = pytest.mark.usefixtures("sim")


@functools.cache
def second_is_filled() -> Any:
    def fill(value: torch.Tensor, target: torch.Tensor) -> None:
        target.copy_(value)

    fill.__annotations__ = {"value": torch.Tensor, "target": torch.Tensor, "return": None}
    return torch.library.custom_op("baechi_tests::fill", fill, mutates_args=("target",))


CHANGES: dict[str, Any] = {
    "a method": lambda x, sent: sent.copy_(x * 3),
    "out": lambda x, sent: torch.mul(x, 3, out=sent),
    "its data": lambda x, sent: sent.data.copy_(x * 3),
    "a list": lambda x, sent: torch._foreach_add_([x.clone(), sent], 1.0),
    "an operator of the user's": lambda x, sent: second_is_filled()(x * 3, sent),
}


class Changing(nn.Module):
    """Sends a tensor to `b` before and after it changed it."""

    def __init__(self, change: Any) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.change = change

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.a(x)
        sent = x.clone()
        before = self.b(sent)
        self.change(x, sent)
        return before, self.b(sent)


def placed_on_two(model: nn.Module, inputs: Any, mode: str = "streams", tier: int = 1) -> Any:
    captured = baechi.torch.capture(model, inputs)
    device_of = {op.key: "two" if op.module == "b" else "one" for op in captured.ops}
    devices = {"one": "sim:0", "two": "sim:1"}
    return assign(model, captured, device_of, devices, mode=mode, tier=tier)


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("how", CHANGES)
def test_inside_the_model(how: str, inference: bool) -> None:
    torch.manual_seed(3)
    model = Changing(CHANGES[how]).eval()
    with torch.inference_mode(inference), torch.no_grad():  # inference tensors have no versions
        x = torch.ones(2, 4)
        expected = model(x)
        place = placed_on_two(model, torch.ones(2, 4))
        for found, wanted in zip(model(x), expected, strict=True):
            torch.testing.assert_close(found, wanted)
        place.restore()


@pytest.mark.parametrize("inference", [False, True])
def test_between_calls_of_a_part_of_the_model(inference: bool) -> None:
    model = Changing(CHANGES["out"]).eval()
    place = placed_on_two(model, torch.ones(2, 4))
    with torch.inference_mode(inference):
        x = torch.ones(2, 4)
        first = model.b(x)
        x.fill_(5.0) if inference else x.data.fill_(5.0)
        second = model.b(x)
    place.restore()
    torch.testing.assert_close(first, model.b(torch.ones(2, 4)))
    torch.testing.assert_close(second, model.b(torch.full((2, 4), 5.0)))


class Filling(nn.Module):
    """Changes what it is given."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mul_(3)


@pytest.mark.parametrize("mode", ["plain", "streams"])
@pytest.mark.parametrize("inference", [False, True])
def test_a_module_that_changes_its_argument(mode: str, inference: bool) -> None:
    model = Changing(None).eval()
    model.filling = Filling()
    model.change = lambda _, sent: model.filling(sent)
    with torch.inference_mode(inference), torch.no_grad():
        expected = model(torch.ones(2, 4))
        place = placed_on_two(model, torch.ones(2, 4), mode)
        for found, wanted in zip(model(torch.ones(2, 4)), expected, strict=True):
            torch.testing.assert_close(found, wanted)
        place.restore()


class Adding(nn.Module):
    """Reads its second argument on another device than that is on."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.a(x) + y


@pytest.mark.parametrize("tier", [1, 2])
def test_the_caller_may_fill_an_argument_with_the_next_batch_at_once(tier: int) -> None:
    model = Adding().eval()
    expected = model(torch.ones(2, 4), torch.ones(2, 4))
    with torch.no_grad(), sim.configured(devices=2, longest_delay="5ms", seed=4):
        x, y = torch.ones(2, 4, device="sim:0"), torch.ones(2, 4, device="sim:1")
        place = placed_on_two(model, (torch.ones(2, 4), torch.ones(2, 4)), tier=tier)
        for _ in range(8):
            found = model(x, y)
            y.fill_(9.0)
            torch.testing.assert_close(found.cpu(), expected)
            y.fill_(1.0)
        assert place.tier == tier
        place.restore()


def test_nothing_is_kept_of_what_a_part_was_given() -> None:
    model = Changing(CHANGES["out"]).eval()
    place = placed_on_two(model, torch.ones(2, 4))
    for _ in range(3):
        model.b(torch.ones(2, 4, device="sim:0"))
    kept = place._assigner.sent
    assert (len(kept._copies), len(kept._sent), len(kept.links._collected)) == (0, 0, 0)
    place.restore()
