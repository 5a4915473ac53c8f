# SPDX-License-Identifier: Apache-2.0
"""What PyTorch's devices have room for and keep, and what is said of those that are not there."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from types import ModuleType

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

import baechi.torch
import torch
from baechi.torch import capture
from baechi.torch.base import _private
from baechi.torch.placing import assign
from baechi.torch.record.capture import capture_on
from torch import nn

import baechi


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Leave no model on a device: others count what is there."""
    yield
    gc.collect()


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 256), nn.Dropout(0.5), nn.Linear(256, 256))


def test_memory_that_the_model_has_already_is_room_for_it(sim: ModuleType) -> None:
    sim.configure(devices=2, memory="4MiB")
    model = wide().to("sim:0")
    placed = baechi.torch.place(model, torch.randn(4, 256), optimizer="sgd")
    assert placed.plan is not None
    assert [d.capacity for d in placed.plan.cluster.devices] == [4 << 20] * 2
    placed.restore()


def test_auto_takes_devices_without_a_limit_as_very_large(sim: ModuleType) -> None:
    sim.configure(devices=2)
    placed = baechi.torch.place(wide(), torch.randn(4, 256), optimizer="sgd")
    assert placed.plan is not None
    assert [d.capacity for d in placed.plan.cluster.devices] == [1 << 50] * 2
    placed.restore()


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        ("sim:9", "'sim:9' is no device here: there are 4, sim:0 to sim:3"),
        ("cuda:0", "'cuda:0' is no device here: baechi.torch.sim takes the place"),
        ("nonsense", "'nonsense' is no device here: name one as PyTorch does; here are sim:0, "),
    ],
)
def test_a_device_that_is_not_there_is_named_with_the_reason(
    sim: ModuleType, device: str, reason: str
) -> None:
    del sim
    model, x = wide(), torch.randn(4, 256)
    with pytest.raises(baechi.InputError, match=reason):
        baechi.torch.place(model, x, "2x1GiB", devices=["sim:0", device])
    captured = capture(model, x)
    device_of = {op.key: "gpu:0" for op in captured.ops}
    with pytest.raises(baechi.InputError, match=reason):
        assign(model, captured, device_of, {"gpu:0": device})


WITHOUT_ACCELERATOR = """
import torch, baechi, baechi.torch
from baechi import calibrate
model, x = torch.nn.Linear(2, 2), torch.ones(1, 2)
for options in ({}, {"cluster": "2x1GiB", "devices": ["cuda:0", "cuda:1"]}):
    try:
        baechi.torch.place(model, x, **options)
    except baechi.InputError as error:
        print(error)
print(calibrate.main(["--torch"]), calibrate.main(["--torch", "--devices", "cuda:0,cpu"]))
placed = baechi.torch.place(model, x, "2x1GiB")
print({d.torch_device.type for d in placed._assigner.devices})
"""


def test_without_an_accelerator_each_way_to_ask_for_one_is_answered() -> None:
    started = [sys.executable, "-W", "error", "-c", WITHOUT_ACCELERATOR]
    done = subprocess.run(started, capture_output=True, text=True, check=False)
    if "cuda" in done.stdout.splitlines()[-1:]:
        pytest.skip("there is an accelerator")
    assert done.returncode == 0, done.stderr
    auto, named, codes, fallback = done.stdout.splitlines()
    assert auto == "no accelerator is found; name the cluster, e.g. cluster='2x8GiB'"
    assert named.startswith("'cuda:0' is no device here: ")
    assert (codes, fallback) == ("2 2", "{'cpu'}")
    first, second = done.stderr.splitlines()
    assert first.startswith("baechi: calibrate: no accelerator is found; name devices")
    assert second.startswith("baechi: calibrate: 'cuda:0' is no device here: ")


def test_what_a_device_draws_next_is_as_if_no_step_had_been_recorded(sim: ModuleType) -> None:
    model, x = wide().to("sim:0"), torch.randn(4, 256, device="sim:0")
    states = [sim.get_rng_state(i) for i in range(2)]
    capture(model, x)
    placed = baechi.torch.place(model, x, "2x2MiB", devices=["sim:0", "sim:1"], optimizer="sgd")
    assert placed.verify(x)
    placed.restore()
    assert all(torch.equal(sim.get_rng_state(i), states[i]) for i in range(2))


def test_a_stream_can_be_entered_again_and_by_two_threads(sim: ModuleType) -> None:
    own, outer = sim.Stream("sim:0"), sim.Stream("sim:1")
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with _private.on_stream(outer), _private.on_stream(own):
            entered.set()
            leave.wait()
            assert sim.current_stream(0) == own
        assert sim.current_stream(0) == sim.default_stream(0)

    thread = threading.Thread(target=other)
    with _private.on_stream(outer):
        with _private.on_stream(own), _private.on_stream(own):
            thread.start()
            entered.wait()
        assert (sim.current_stream(0), sim.current_device()) == (sim.default_stream(0), 1)
        leave.set()
        thread.join()
    assert (sim.current_stream(1), sim.current_device()) == (sim.default_stream(1), 0)


class Library(nn.Module):
    """Fails on a device as CUDA's libraries do when they find no memory for themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.device.type == "sim":
            raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`")
        return self.linear(x)


def test_a_library_without_memory_is_a_device_that_is_too_small(sim: ModuleType) -> None:
    del sim
    with pytest.warns(UserWarning, match="no room for Library .* is recorded on the CPU"):
        found = capture_on(torch.device("sim:0"), Library(), torch.ones(1, 2))
    assert found.ops[0].key == "linear"


def test_recurrent_weights_are_laid_out_where_they_went(sim: ModuleType) -> None:
    del sim
    there: list[torch.device] = []

    class Watched(nn.LSTM):
        def flatten_parameters(self) -> None:
            super().flatten_parameters()
            if hasattr(self, "weight_ih_l0"):
                there.append(self.weight_ih_l0.device)

    model, x = nn.Sequential(Watched(4, 4)), torch.randn(3, 2, 4)
    there.clear()
    placed = baechi.torch.place(
        model, x, "1x1GiB", devices=["sim:2"], loss=lambda out: out[0].sum()
    )
    assert there[-1] == torch.device("sim:2")  # on the host, too, if a graph was made there
    placed.restore()


@pytest.mark.parametrize("devices", [["sim:0", "sim:0"], ["sim:0", "sim:1"]])
def test_a_placed_model_that_nobody_has_any_more_leaves_its_devices(
    sim: ModuleType, devices: list[str]
) -> None:
    """PyTorch holds on to the hooks of weights, and with them to what these know."""
    sim.configure(devices=2)
    before = [sim.memory_allocated(i) for i in range(2)]
    model, x = wide(), torch.randn(4, 256)
    baechi.torch.place(model, x, "2x1GiB", devices=devices, method="random", seed=1, tier=1)
    for _ in range(2):
        model(x).sum().backward()
    assert max(sim.memory_allocated(i) for i in range(2)) >= 1 << 18
    del model
    gc.collect()
    assert [sim.memory_allocated(i) for i in range(2)] == before


@pytest.mark.parametrize("tier", [1, 2])
def test_much_that_goes_to_the_cpu_in_every_call_is_told_once(tier: int) -> None:
    model, inputs = nn.Linear(1, 1 << 13), torch.ones(512, 1)
    placed = baechi.torch.place(
        model, inputs, "1x1GiB", devices=["sim:0"], tier=tier, verbose=False
    )
    with pytest.warns(UserWarning, match="returns 16 MiB to the CPU.*inputs on 'sim:0'") as told:
        placed.model(inputs)
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        placed.model(inputs)
    placed.restore()
    placed = baechi.torch.place(
        model, inputs, "1x1GiB", devices=["sim:0"], tier=tier, verbose=False
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        placed.model(inputs.to("sim:0"))
        with torch.no_grad():
            placed.model(inputs)
    placed.restore()
