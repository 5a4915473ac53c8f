# SPDX-License-Identifier: Apache-2.0
"""The virtual clock: durations are counted, not waited for, and come out the same every time."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

import baechi


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def clock(sim: Any, request: pytest.FixtureRequest) -> Any:
    """The simulated devices on virtual time, in both ways of running."""
    sim.configure(clock="virtual", asynchronous=request.param)
    sim.reset_virtual_clock()
    return sim


def test_nothing_takes_time_unless_told(clock: Any) -> None:
    x = torch.ones(100, device="sim:0")
    (x @ x).to("sim:1").item()
    assert clock.virtual_time() == 0


def test_an_hour_of_work_is_over_at_once(clock: Any) -> None:
    start = time.monotonic()
    clock.work("3600s")
    clock.synchronize()
    assert clock.virtual_time() == 3600
    assert clock.virtual_host_time() == 3600
    assert time.monotonic() - start < 10


def test_streams_overlap_and_events_order_them(clock: Any) -> None:
    first, second = torch.Stream("sim:0"), torch.Stream("sim:0")
    with first:
        clock.work("3ms", 0)
    event = first.record_event()
    with first:
        clock.work("4ms", 0)
    with second:
        clock.work("1ms", 0)
    second.wait_event(event)
    with second:
        clock.work("2ms", 0)
    done = torch.Event("sim", enable_timing=True)
    begun = torch.Event("sim", enable_timing=True)
    begun.record(torch.Stream("sim:0"))
    done.record(second)
    clock.synchronize(0)
    assert begun.elapsed_time(done) == pytest.approx(5)
    assert clock.virtual_time() == pytest.approx(7e-3)


def test_operators_and_copies_take_what_was_set(clock: Any) -> None:
    clock.configure(
        operator_time="10us", memory_bandwidth="1GB/s", link=clock.Link("5us", "100MB/s")
    )
    x = torch.empty(1000, device="sim:0")
    y = torch.empty(1000, device="sim:0")
    clock.reset_virtual_clock()
    torch.add(x, y, out=y)  # 10 us + 3 * 4000 bytes at 1 ns each
    assert clock.virtual_time() == pytest.approx(22e-6)
    y.to("sim:1")  # 5 us + 4000 bytes at 10 ns each
    assert clock.virtual_time() == pytest.approx(67e-6)


def chain(sim: Any) -> float:
    """Blocks on one device, each of which feeds the other: copies hide behind work."""
    sim.reset_virtual_clock()
    send, receive = torch.Stream("sim:0"), torch.Stream("sim:1")
    x = torch.ones(8, 8, device="sim:0", requires_grad=True)
    for _ in range(8):
        sim.work("1ms", 0)
        x = torch.tanh(x)
        send.wait_event(sim.current_stream(0).record_event())
        with send, receive:
            y = x.to("sim:1", non_blocking=True)
        sim.current_stream(1).wait_event(receive.record_event())
        x.record_stream(send)
        y.record_stream(sim.current_stream(1))
        sim.work("1ms", 1)
        y.sum()
    sim.synchronize(1)
    return float(sim.virtual_time())


def test_a_makespan_is_the_same_every_time_and_what_arithmetic_says(clock: Any) -> None:
    clock.configure(link=clock.Link("1ms"))
    makespans = {chain(clock) for _ in range(5)}
    # 8 blocks on the first device, then the last copy and the last block of the second.
    assert len(makespans) == 1
    assert makespans.pop() == pytest.approx(10e-3)
    clock.configure(link=clock.Link("4ms"))
    assert chain(clock) == pytest.approx((1 + 8 * 4 + 1) * 1e-3)


def exchange(sim: Any) -> float:
    """Three transfers at once: 0 to 1, 1 to 0 and 0 to 2, each on streams of its own."""
    sim.reset_virtual_clock()
    pairs = [(0, 1), (1, 0), (0, 2)]
    tensors = {i: torch.ones(1000, device=f"sim:{i}") for i in range(3)}
    for source, target in pairs:
        with torch.Stream(f"sim:{source}"), torch.Stream(f"sim:{target}"):
            tensors[source].to(f"sim:{target}", non_blocking=True)
    for index in tensors:
        sim.synchronize(index)
    return float(sim.virtual_time())


@pytest.mark.parametrize(
    ("communication", "transfers"), [("parallel", 1), ("duplex", 2), ("sequential", 3)]
)
def test_transfers_queue_as_the_communication_mode_says(
    clock: Any, communication: str, transfers: int
) -> None:
    clock.configure(link=clock.Link("1ms"), communication=communication)
    assert exchange(clock) == pytest.approx(transfers * 1e-3)


@pytest.mark.parametrize("communication", ["duplex", "sequential"])
def test_what_is_ready_first_is_not_held_up_by_what_was_asked_for_earlier(
    clock: Any, communication: str
) -> None:
    clock.configure(link=clock.Link("1ms"), communication=communication, operator_time="5ms")
    late, soon = torch.ones(9, device="sim:0"), torch.ones(9, device="sim:2")
    clock.reset_virtual_clock()
    late.add_(1)
    with torch.Stream("sim:1"):
        late.to("sim:1", non_blocking=True)  # from 5 to 6 ms
    with torch.Stream("sim:1"):
        soon.to("sim:1", non_blocking=True).add_(1)  # from 0 to 1 ms, and 5 ms
    clock.synchronize(1)
    assert clock.virtual_time() == pytest.approx(6e-3)


def test_transfers_queue_on_the_real_clock_too(sim: Any) -> None:
    sim.configure(link=sim.Link("50ms"), communication="sequential")
    start = time.monotonic()
    exchange(sim)
    assert time.monotonic() - start >= 0.15


def test_a_cluster_becomes_a_simulated_machine(sim: Any) -> None:
    cluster = baechi.Cluster("2x8GiB+1x4GiB", link="50us,2GB/s", communication="duplex")
    sim.configure(sim.settings_of(cluster, clock="virtual"))
    assert sim.device_count() == 3
    assert sim.mem_get_info(2)[1] == 4 * 2**30
    x = torch.ones(1_000_000, device="sim:0")
    sim.reset_virtual_clock()
    x.to("sim:2")
    names = [device.name for device in cluster.devices]
    expected = cluster.transfer_time(4_000_000, names[0], names[2])
    assert sim.virtual_time() * 1e9 == pytest.approx(expected, abs=2)


def test_race_mode_does_not_change_virtual_time(sim: Any) -> None:
    sim.configure(clock="virtual", link=sim.Link("1ms"))
    calm = chain(sim)
    sim.configure(longest_delay="1ms", seed=1)
    assert chain(sim) == calm


def test_no_operator_starts_before_the_host_has_asked_for_it(clock: Any) -> None:
    clock.configure(host_call="2us", host_send="10us", link=clock.Link("1us"))
    x = torch.zeros(8, device="sim:0")
    clock.reset_virtual_clock()
    for _ in range(10):
        x.add_(1)  # takes no time, but that of asking
    assert clock.virtual_time() == pytest.approx(20e-6)
    clock.work("1ms", 0)
    x.add_(1)
    assert clock.virtual_host_time() == pytest.approx(24e-6)
    assert clock.virtual_time() == pytest.approx(22e-6 + 1e-3)
    y = x.to("sim:1", non_blocking=True)
    assert clock.virtual_host_time() == pytest.approx(34e-6)
    y.add_(1)
    assert clock.virtual_time() == pytest.approx(22e-6 + 1e-3 + 1e-6)


def test_the_host_is_the_bottleneck_of_small_operators_on_two_devices(clock: Any) -> None:
    clock.configure(host_call="5us", operator_time="2us")
    x, y = torch.zeros(8, device="sim:0"), torch.zeros(8, device="sim:1")
    clock.reset_virtual_clock()
    for _ in range(20):
        x.add_(1)
        y.add_(1)
    assert clock.virtual_time() == pytest.approx(40 * 5e-6 + 2e-6)


def test_what_the_host_takes_can_be_measured(clock: Any) -> None:
    clock.configure(host_call="measured", host_send="measured")
    x = torch.ones(300, 300, device="sim:0")
    x @ x
    clock.synchronize(0)
    clock.reset_virtual_clock()
    before = time.thread_time()
    for _ in range(50):
        x + x
    asked = time.thread_time() - before
    host = clock.virtual_host_time()
    assert 0 < host <= asked
    y = x @ x  # its kernel is no time of the host's, wherever it runs
    begun = time.thread_time()
    while time.thread_time() - begun < 0.02:
        pass
    y + y  # what the caller did itself is
    assert host + 0.02 <= clock.virtual_host_time() <= time.thread_time() - before
