# SPDX-License-Identifier: Apache-2.0
"""What is captured runs when it is replayed, on the same memory, as CUDA graphs do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def device(sim: Any, request: pytest.FixtureRequest) -> Any:
    """The simulated devices in both ways of running, with nothing left of freed memory."""
    sim.configure(asynchronous=request.param, poison=True)
    return sim


def test_a_list_runs_when_it_is_replayed_on_what_its_inputs_are_then(device: Any) -> None:
    x = torch.ones(4, device="sim:0")
    graph = torch.accelerator.Graph()
    with torch.Stream("sim:0"), graph:
        y = (x + 1).cumsum(0) * 2
    device.synchronize(0)
    assert not torch.equal(y.cpu(), torch.tensor([4.0, 8.0, 12.0, 16.0]))
    for value in (1.0, 3.0):
        x.fill_(value)
        graph.replay()
        assert y.tolist() == [2 * (value + 1) * n for n in (1, 2, 3, 4)]


def test_a_training_step_is_replayed_with_the_numbers_of_eager_steps(device: Any) -> None:
    torch.manual_seed(0)
    eager = nn.Sequential(nn.Conv1d(3, 4, 3, padding=1), nn.GELU(), nn.Flatten(), nn.Linear(24, 5))
    eager.to("sim:1")
    batches = [torch.randn(2, 3, 6, device="sim:1") for _ in range(4)]
    model = nn.Sequential(nn.Conv1d(3, 4, 3, padding=1), nn.GELU(), nn.Flatten(), nn.Linear(24, 5))
    model.to("sim:1").load_state_dict(eager.state_dict())
    static = torch.zeros(2, 3, 6, device="sim:1")
    optimizer = torch.optim.Adam(model.parameters(), 1e-2, capturable=True)

    def step(net: nn.Module, update: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
        loss = net(x).square().mean()
        loss.backward()
        update.step()
        return loss

    stream = torch.Stream("sim:1")
    device.set_device(1)
    try:
        stream.wait_stream(device.current_stream(1))
        with stream:  # what is made at the first step is made, and taken back
            step(model, optimizer, static)
            model.load_state_dict(eager.state_dict())
            for state in optimizer.state.values():
                for value in state.values():
                    value.zero_()
            for parameter in model.parameters():
                parameter.grad.zero_()
        graph = torch.accelerator.Graph()
        with stream, graph:
            optimizer.zero_grad(set_to_none=False)
            loss = step(model, optimizer, static)
        reference = torch.optim.Adam(eager.parameters(), 1e-2, capturable=True)
        for batch in batches:
            static.copy_(batch)
            graph.replay()
            reference.zero_grad()
            assert loss.item() == step(eager, reference, batch).item()
    finally:
        device.set_device(0)
    for one, other in zip(model.parameters(), eager.parameters(), strict=True):
        assert torch.equal(one.cpu(), other.cpu())


def test_streams_that_fork_and_join_are_captured(device: Any, tmp_path: Path) -> None:
    x = torch.ones(4, device="sim:0")
    first, second = torch.Stream("sim:0"), torch.Stream("sim:0")
    graph = torch.accelerator.Graph()
    first.wait_stream(device.current_stream(0))
    with first, graph:
        y = x + 1
        second.wait_stream(first)
        with second:
            z = y * 3
        first.wait_stream(second)
        total = y + z
    graph.debug_dump(str(tmp_path / "steps"))
    names = [line.split(": ")[1] for line in (tmp_path / "steps").read_text().splitlines()]
    assert [n for n in names if n.startswith("aten")] == ["aten::add", "aten::mul", "aten::add"]
    x.fill_(2)
    graph.replay()
    assert total.tolist() == [12, 12, 12, 12]


def test_every_replay_draws_other_random_numbers_and_a_seed_repeats_them(device: Any) -> None:
    x = torch.ones(100, device="sim:0")
    graph = torch.accelerator.Graph()
    with torch.Stream("sim:0"), graph:
        y = functional.dropout(x, 0.5) + torch.rand(100, device="sim:0")

    def draws() -> list[torch.Tensor]:
        device.manual_seed_all(5)
        found = []
        for _ in range(2):
            graph.replay()
            found.append(y.cpu())
        return found

    first, second = draws(), draws()
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])
    assert not torch.equal(first[0], first[1])


def test_memory_of_a_capture_is_its_own_until_it_is_reset(device: Any) -> None:
    def active() -> int:
        return int(device.memory_stats(0)["active_bytes.all.current"])

    before = active()
    x = torch.ones(1024, device="sim:0")
    graph = torch.accelerator.Graph()
    with torch.Stream("sim:0"), graph:
        y = ((x + 1) * 2).exp()  # the two before the last share memory in turn
    held = active() - before - 4096
    assert held == 2 * 4096
    others = [torch.zeros(1024, device="sim:0") for _ in range(4)]
    graph.replay()
    assert all(t.sum() == 0 for t in others)
    assert y.sum().isfinite()
    del y, others
    assert active() - before == 4096 + held
    graph.reset()
    assert active() - before == 4096


def reads(x: torch.Tensor) -> None:
    x.sum().item()


def chooses(x: torch.Tensor) -> None:
    x.nonzero()


def waits(_: torch.Tensor) -> None:
    torch.accelerator.synchronize()


def asks(_: torch.Tensor) -> None:
    torch.accelerator.current_stream().query()


def brings(x: torch.Tensor) -> None:
    x.copy_(torch.ones(4))


def fetches(x: torch.Tensor) -> None:
    x.cpu()


def sends(x: torch.Tensor) -> None:
    x.to("sim:1")


def allocates_elsewhere(_: torch.Tensor) -> None:
    with torch.Stream("sim:0"):
        torch.zeros(4, device="sim:0")


FORBIDDEN: list[tuple[Callable[[torch.Tensor], None], str]] = [
    (reads, "cannot read a number on the host"),
    (chooses, "cannot run aten::nonzero, which needs the host,"),
    (waits, "cannot wait"),
    (asks, "cannot ask whether a stream is done"),
    (brings, "cannot wait"),
    (fetches, "cannot wait"),
    (sends, "cannot copy between devices"),
    (allocates_elsewhere, "cannot allocate on a stream that takes no part"),
]


def capture(graph: Any, act: Callable[[], None]) -> list[str]:
    """Do something in a capture; return what it was refused with."""
    refused: list[str] = []
    with torch.Stream("sim:0"), graph:
        try:
            act()
        except RuntimeError as error:
            refused.append(str(error))
    return refused


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(("act", "said"), FORBIDDEN, ids=[act.__name__ for act, _ in FORBIDDEN])
def test_what_needs_results_is_refused_and_spoils_the_capture(
    act: Callable[[torch.Tensor], None], said: str
) -> None:
    x = torch.ones(4, device="sim:0")
    graph = torch.accelerator.Graph()
    with pytest.raises(RuntimeError, match=f"^the capture has failed: {said}") as failed:
        capture(graph, lambda: act(x))
    assert "while work is captured, not run" in str(failed.value)
    assert (x + 1).tolist() == [2, 2, 2, 2]
    with pytest.raises(RuntimeError, match="there is nothing to replay"):
        graph.replay()


@pytest.mark.usefixtures("device")
def test_a_capture_that_leaves_work_behind_is_refused() -> None:
    x = torch.ones(4, device="sim:0")

    def leave() -> None:
        other = torch.Stream("sim:0")
        other.wait_stream(torch.accelerator.current_stream())
        with other:
            x.add_(1)

    with pytest.raises(RuntimeError, match="does not wait for"):
        capture(torch.accelerator.Graph(), leave)
    assert x.tolist() == [1, 1, 1, 1]


@pytest.mark.usefixtures("device")
def test_the_default_stream_is_not_captured() -> None:
    with pytest.raises(RuntimeError, match="a stream that is not the default one"):
        torch.accelerator.Graph().capture_begin()


def test_a_replay_costs_the_host_one_call_and_the_device_its_tasks(sim: Any) -> None:
    sim.configure(clock="virtual", host_call="50us", operator_time="3us")
    x = torch.zeros(4, device="sim:0")
    graph = torch.accelerator.Graph()
    with torch.Stream("sim:0"), graph:
        for _ in range(10):
            x.add_(1)
    sim.reset_virtual_clock()
    graph.replay()
    assert sim.virtual_host_time() == pytest.approx(50e-6)
    assert sim.virtual_time() == pytest.approx(80e-6)
    assert x.tolist() == [10] * 4
