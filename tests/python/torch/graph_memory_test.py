# SPDX-License-Identifier: Apache-2.0
"""The predicted peaks of exported graphs are what the simulated devices' allocators see."""

from __future__ import annotations

import gc
import itertools
from typing import Any

import pytest

pytest.importorskip("torch")

import baechi.torch
import torch
from baechi.torch.base.devices import logical_devices
from baechi.torch.base.repeats import sent_bytes
from baechi.torch.run import graphs
from baechi.torch.run.communication import Links
from baechi.torch.trace import surroundings
from baechi.torch.trace.exported import export
from memory_test import check, check_close, machine, placed_on
from torch import nn
from torch_models import ALL, CASES, built, deep, exported
from training_steps import loss_of

import baechi

sim: Any = pytest.importorskip("baechi.torch.sim")

__all__ = ["machine"]  # a fixture that all tests here use

GRAPHS = [name for name in ALL if name != "turns"]
PLACEMENTS: list[dict[str, Any]] = [
    {"count": 1, "method": "single", "optimizer": "adam"},
    {"count": 2, "method": "m-etf", "share": 0.8, "optimizer": "adam"},
    {"count": 3, "method": "random", "optimizer": "sgd", "mode": "plain"},
    {"count": 4, "method": "random", "optimizer": "adam"},
    {"count": 3, "method": "m-sct", "share": 0.7, "optimizer": "adam", "mode": "streams+order"},
    {"count": 4, "method": "random", "optimizer": "sgd", "mode": "streams+order"},
]


@pytest.mark.repeats
@pytest.mark.parametrize("name", GRAPHS)
def test_predicted_peaks_of_graphs_are_those_of_the_devices(name: str) -> None:
    inputs = ALL[name].inputs(16)
    need, known = 0, [exported(name)]
    for how in PLACEMENTS:
        options = {"tier": 2, "exported": known, "seed": how["count"], **how}
        share = options.pop("share", None)
        size = "1GiB" if share is None else int(need * share)
        placed = placed_on(options.pop("count"), built(ALL[name]), inputs, size, **options)
        need, known = need or placed.peaks["gpu:0"], placed._assigner.graphs.tier2.exported
        check(placed, inputs, options["optimizer"])
        assert placed.tier == 2, placed.tier_note
        placed.restore()
        del placed
        gc.collect()


@pytest.mark.repeats
@pytest.mark.parametrize("name", ["resnet", "lstm"])
def test_predicted_peaks_where_the_inputs_are_on_a_device(name: str) -> None:
    if name not in ALL:
        pytest.skip("transformers is not installed")
    inputs = baechi.torch.base.nested.map_tensors(lambda t: t.to("sim:0"), ALL[name].inputs(16))
    for seed, tier in itertools.product((1, 2), (1, 2)):
        how: dict[str, Any] = {"method": "random", "seed": seed, "tier": tier}
        how["exported"] = [exported(name)] if tier == 2 else []
        placed = placed_on(3, built(ALL[name]), inputs, **how)
        measured = []
        for _ in range(2):
            placed.model.zero_grad()
            for device in range(3):
                sim.reset_peak_memory_stats(device)
            loss_of(placed.model, inputs).backward()
            measured = [sim.max_memory_allocated(device) for device in range(3)]
        check_close(placed.peaks, measured)
        placed.restore()


@pytest.mark.repeats
@pytest.mark.parametrize("name", ["inception", "t5"])
def test_predicted_peaks_of_graphs_without_gradients(name: str) -> None:
    if name not in ALL:
        pytest.skip("transformers is not installed")
    inputs = ALL[name].inputs(16)
    known: list[Any] = []
    for count, method in ((1, "single"), (3, "random")):
        model = built(ALL[name]).eval()
        how: dict[str, Any] = {"method": method, "seed": count, "tier": 2, "exported": known}
        placed = placed_on(count, model, inputs, **how)
        known = placed._assigner.graphs.tier2.exported
        for device in range(count):
            sim.reset_peak_memory_stats(device)
        with torch.no_grad():
            loss_of(model, inputs)
        assert (placed.tier, placed.graphs) == (2, 1)  # made for the mode that was recorded
        check_close(placed.peaks, [sim.max_memory_allocated(device) for device in range(count)])
        placed.restore()


class Masked(nn.Module):
    """A constant, and a mask that repeats its only row, both of which every layer reads."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))
        self.scale = torch.full((64, 64), 0.5)  # no buffer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = self.scale.to(x.device)
        mask = x.detach().mean(0, keepdim=True).expand(x.shape[0], -1)
        for layer in self.layers:
            x = x + (layer(x) @ scale) * mask
        return x


def test_what_repeats_and_constants_are_counted_as_they_are() -> None:
    inputs = torch.randn(64, 64)
    torch.manual_seed(7)
    for seed in (1, 2):
        placed = placed_on(3, Masked(), inputs, method="random", seed=seed, tier=2)
        check(placed, inputs, "sgd")
        assert placed.tier == 2
        placed.restore()


@pytest.mark.parametrize("mode", ["plain", "streams"])
def test_of_a_tensor_that_repeats_itself_one_repetition_is_sent(mode: str) -> None:
    devices = logical_devices(["a", "b"], ["sim:0", "sim:1"])
    links = Links(devices, mode)
    row = torch.arange(8.0, device="sim:0").reshape(1, 2, 1, 4)
    for tensor in (row.expand(16, 2, 5, 4), row.expand(16, 2, 5, 4)[3], row):
        before = links.bytes
        copy = links.send(tensor, *devices).wait()
        assert links.bytes - before == sent_bytes(tensor) == 32
        assert copy.device.index == 1
        assert copy.stride() == tensor.stride()
        torch.testing.assert_close(copy.cpu(), tensor.cpu())
    wanted = row.requires_grad_().expand(16, 2, 5, 4)  # its gradient does not repeat itself
    links.send(wanted, *devices).wait().sum().backward()
    assert links.bytes - before == 32 + sent_bytes(wanted) == 32 + 16 * 2 * 5 * 4 * 4
    torch.testing.assert_close(row.grad.cpu(), torch.full((1, 2, 1, 4), 80.0))


def test_a_plan_must_stay_within_the_peaks_of_the_graph() -> None:
    """Also where the first plan does not; and where none does, it is said."""
    inputs = torch.randn(64, 256)
    whole = placed_on(1, deep(), inputs, method="single", optimizer="adam", tier=2)
    need = whole.peaks["gpu:0"]
    whole.restore()
    for mode in ("streams", "streams+order"):
        how = {"optimizer": "adam", "tier": 2, "mode": mode}
        with pytest.raises(baechi.DoesNotFit):
            placed_on(1, deep(), inputs, need - 512, **how)
        placed = placed_on(3, deep(), inputs, need // 2, **how)
        assert max(placed.peaks.values()) <= need // 2
        check(placed, inputs, "adam")
        placed.restore()


def counted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the list of what is exported from now on."""
    made: list[Any] = []

    def counting(*args: Any, **kwargs: Any) -> Any:
        made.append(args)
        return export(*args, **kwargs)

    for module in (surroundings, graphs):
        monkeypatch.setattr(module, "export", counting)
    return made


def test_the_first_call_uses_the_graph_that_the_peaks_were_predicted_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case, made = CASES["unet"], counted(monkeypatch)
    placed = placed_on(2, built(case), case.inputs(2), method="random", tier="auto")
    assert (placed.graphs, len(made)) == (1, 1)
    loss_of(placed.model, case.inputs(3))
    assert (placed.tier, len(made)) == (2, 1)
    assert set(placed.tier_peaks) == {1, 2}
    placed.restore()
    case = CASES["turns"]
    placed = placed_on(2, built(case), case.inputs(2), method="random", tier="auto")
    placed.model(case.inputs(2))
    assert (placed.tier, len(made)) == (1, 2)  # refused once
    assert "data-dependent" in placed.tier_note
    assert placed.peaks == placed.tier_peaks[1]
    placed.restore()


class Switched(nn.Module):
    """Does what a setting says."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.settings: dict[str, list[float]] = {"factors": [1.0]}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.settings["factors"][0]


def test_a_setting_that_changes_before_the_first_call_is_noticed() -> None:
    model, inputs = Switched(), torch.ones(2, 4)
    expected = model.layer(inputs) * 3
    placed = placed_on(2, model, inputs, tier=2)
    model.settings["factors"][0] = 3.0
    torch.testing.assert_close(model(inputs), expected)
    assert (placed.tier, placed.graphs) == (2, 2)
    placed.restore()


def test_hooks_that_are_there_while_a_model_is_placed_are_in_no_graph() -> None:
    model, inputs = Switched(), torch.ones(2, 4)
    expected = model(inputs)
    hook = model.layer.register_forward_hook(lambda *args: args[2] + 1)
    placed = placed_on(2, model, inputs, tier="auto")
    assert placed.graphs == 0
    hook.remove()
    torch.testing.assert_close(model(inputs), expected)
    assert placed.tier == 2
    placed.restore()
