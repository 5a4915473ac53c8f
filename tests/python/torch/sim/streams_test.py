# SPDX-License-Identifier: Apache-2.0
"""Streams and events order work, and a program that orders it wrongly is found out."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import pytest
import torch

KIB = 1024
LATE = 0.25  # seconds: longer than a busy machine takes to get round to the next line


def test_a_stream_runs_while_the_caller_goes_on(sim: Any) -> None:
    start = time.monotonic()
    sim.work(LATE)
    y = torch.ones(3, device="sim") + 1
    assert not sim.current_stream().query()
    assert y.sum().item() == 6  # waits
    assert time.monotonic() - start >= LATE
    assert sim.current_stream().query()


def test_synchronous_mode_has_finished_when_a_call_returns(sim: Any) -> None:
    sim.configure(asynchronous=False)
    start = time.monotonic()
    sim.work(LATE)
    assert time.monotonic() - start >= LATE
    assert sim.current_stream().query()


def test_streams_run_side_by_side(sim: Any) -> None:
    start = time.monotonic()
    for index in (0, 1):
        for stream in (torch.Stream(f"sim:{index}"), torch.Stream(f"sim:{index}")):
            with stream:
                sim.work(LATE, index)
    for index in (0, 1):
        sim.synchronize(index)
    assert LATE <= time.monotonic() - start < 3 * LATE


def test_an_event_says_when_a_stream_has_come_so_far(sim: Any) -> None:
    stream = torch.Stream("sim:1")
    with stream:
        sim.work(LATE, 1)
    event = stream.record_event()
    assert not event.query()
    event.synchronize()
    assert event.query()
    assert stream.query()
    assert torch.Event("sim").query()  # never recorded


def test_events_measure_time_between_them(sim: Any) -> None:
    first, second = (torch.Event("sim", enable_timing=True) for _ in range(2))
    first.record()
    sim.work(LATE)
    second.record()
    second.synchronize()
    assert LATE * 1e3 <= first.elapsed_time(second) < 100 * LATE * 1e3


def test_a_copy_takes_what_its_link_says(sim: Any) -> None:
    sim.configure(
        link=sim.Link("1ms"),
        links={(0, 1): sim.Link(LATE, "1GB/s"), ("host", 2): sim.Link(bandwidth="4MB/s")},
    )
    x = torch.ones(250_000, device="sim:0")
    x.cpu()

    def seconds(target: str, source: torch.Tensor) -> float:
        start = time.monotonic()
        source.to(target)
        torch.accelerator.synchronize(target)
        return time.monotonic() - start

    assert seconds("sim:1", x) >= LATE + 0.001
    assert 0.001 <= seconds("sim:3", x) < LATE
    assert seconds("sim:2", torch.ones(250_000)) >= LATE


def test_a_copy_waits_for_both_streams_and_both_wait_for_it(sim: Any) -> None:
    sim.configure(link=sim.Link(LATE), poison=True)
    with sim.device(0):
        sim.work(LATE)
    x = torch.full((4,), 7.0, device="sim:0")
    y = x.to("sim:1")
    x.fill_(0)  # on the source's stream, after the copy
    assert (y + 1).tolist() == [8, 8, 8, 8]


def test_pageable_memory_may_change_as_soon_as_the_copy_was_asked_for(sim: Any) -> None:
    sim.work(LATE)
    x = torch.ones(3)
    y = x.to("sim", non_blocking=True)
    x.fill_(9)
    assert y.tolist() == [1, 1, 1]


def test_pinned_memory_must_not_change_before_the_copy_has_run(sim: Any) -> None:
    sim.work(LATE)
    x = torch.ones(3).pin_memory()
    y = x.to("sim", non_blocking=True)
    x.fill_(9)
    assert y.tolist() == [9, 9, 9]
    result = torch.zeros(3).pin_memory()
    sim.work(LATE)
    result.copy_(y, non_blocking=True)
    assert result.tolist() == [0, 0, 0]
    sim.synchronize()
    assert result.tolist() == [9, 9, 9]


def test_pinned_memory_lives_until_its_copy_has_run(sim: Any) -> None:
    sim.work(LATE)
    y = torch.full((1000,), 3.0).pin_memory().to("sim", non_blocking=True)
    for _ in range(20):
        torch.zeros(1000).pin_memory()
    assert y.unique().tolist() == [3]


def hand_over(sim: Any, waits: bool, recorded: bool) -> torch.Tensor:
    """Produce a tensor on one stream, use it on another, and free it before that has run."""
    producer, consumer = torch.Stream("sim:1"), torch.Stream("sim:1")
    with producer:
        sim.work("5ms", 1)
        x = torch.full((1000,), 2.0, device="sim:1")
    if waits:
        consumer.wait_event(producer.record_event())
    with consumer:
        sim.work("10ms", 1)
        y = x * 3
    if recorded:
        x.record_stream(consumer)
    del x
    with producer:
        torch.zeros(1000, device="sim:1")
    sim.synchronize(1)
    return y.cpu()


def test_a_tensor_handed_over_properly_is_right(sim: Any) -> None:
    sim.configure(poison=True)
    for seed in range(5):
        sim.configure(longest_delay="2ms", seed=seed)
        assert hand_over(sim, waits=True, recorded=True).unique().tolist() == [6]


def test_a_missing_record_stream_gives_wrong_values(sim: Any) -> None:
    sim.configure(poison=True)
    assert hand_over(sim, waits=True, recorded=False).unique().tolist() != [6]


def test_a_missing_wait_gives_wrong_values(sim: Any) -> None:
    sim.configure(poison=True)
    producer, consumer = torch.Stream("sim:1"), torch.Stream("sim:1")
    with producer:
        sim.work(LATE, 1)
        x = torch.full((1000,), 2.0, device="sim:1")
    with consumer:
        y = x * 3
    sim.synchronize(1)
    assert y.isnan().all()


def test_race_mode_finds_a_missing_wait_that_luck_would_hide(sim: Any) -> None:
    def wrong(waits: bool, seed: int) -> bool:
        sim.configure(poison=True, longest_delay="4ms", seed=seed)
        producer, consumer = torch.Stream("sim:0"), torch.Stream("sim:0")
        with producer:
            x = torch.full((10,), 2.0, device="sim:0")
        if waits:
            consumer.wait_event(producer.record_event())
        with consumer:
            y = x * 3
        sim.synchronize(0)
        return bool((y != 6).any())

    assert any(wrong(waits=False, seed=seed) for seed in range(12))
    assert not any(wrong(waits=True, seed=seed) for seed in range(12))


def test_a_recorded_stream_delays_the_reuse_of_memory_and_the_limit_waits_for_it(
    sim: Any,
) -> None:
    sim.configure(memory="1MiB")
    consumer = torch.Stream("sim:0")
    held = sim.memory_allocated(0)  # by what earlier tests left
    x = torch.zeros(200_000, device="sim:0")
    start = time.monotonic()
    with consumer:
        sim.work(LATE, 0)
    x.record_stream(consumer)
    del x
    assert sim.memory_allocated(0) == held
    assert sim.memory_stats(0)["active_bytes.all.current"] > held
    torch.zeros(200_000, device="sim:0")  # fits when the stream is done
    assert time.monotonic() - start >= LATE


def test_the_backward_runs_on_the_streams_of_the_forward(sim: Any) -> None:
    sim.configure(poison=True, longest_delay="500us", seed=3)
    stream = torch.Stream("sim:0")
    x = torch.ones(100, device="sim:0", requires_grad=True)
    event = sim.current_stream(0).record_event()
    stream.wait_event(event)
    with stream:
        y = (x * 2).square()
    sim.current_stream(0).wait_event(stream.record_event())
    y.record_stream(sim.current_stream(0))
    z = y.to("sim:1")
    z.sum().backward()
    assert x.grad is not None
    assert x.grad.unique().tolist() == [8]


CACHE_IS_EMPTIED = """
import torch
from baechi.torch import sim

sim.configure(poison=True)
for _ in range(4):
    block = torch.empty(16 * 2**20, device="sim:0")  # its pages go back to the system
    sim.work("200ms", 0)  # who does not wait for this stream reads poison
    block.fill_(1)
    reader = torch.Stream("sim:0")
    reader.wait_stream(sim.current_stream(0))  # not under `with reader`: it would wait for itself
    with reader:
        sim.work("20ms")
        read = block.sum()
    block.record_stream(reader)
    del block
    sim.empty_cache()
    assert read.cpu() == 16 * 2**20
    del read
"""


def test_memory_goes_back_to_the_system_when_nothing_writes_to_it() -> None:
    done = subprocess.run([sys.executable, "-c", CACHE_IS_EMPTIED], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_memory_beyond_the_limit_cannot_be_pinned_and_nothing_is_lost(sim: Any) -> None:
    before = sim.host_memory_stats()["allocated_bytes.current"]
    sim.configure(pinned=before + 64 * KIB)
    kept = torch.zeros(12 * KIB).pin_memory()
    assert kept.is_pinned()
    with pytest.raises(RuntimeError, match=r"out of memory: cannot pin 20480 bytes .*; pin less"):
        torch.zeros(5 * KIB).pin_memory()
    with pytest.raises(RuntimeError, match="cannot pin"):
        torch.empty(5 * KIB, pin_memory=True)
    assert torch.zeros(4 * KIB).pin_memory().is_pinned()
    assert sim.host_memory_stats()["allocated_bytes.current"] == before + 48 * KIB
    assert sim.host_memory_stats()["allocated_bytes.peak"] == before + 64 * KIB
    del kept
    assert torch.zeros(16 * KIB).pin_memory().is_pinned()


def test_a_limit_of_nothing_lets_programs_run_with_pageable_memory(sim: Any) -> None:
    sim.configure(pinned=sim.host_memory_stats()["allocated_bytes.current"])
    with pytest.raises(RuntimeError, match="out of memory"):
        torch.ones(1).pin_memory()
    assert torch.ones(3).to("sim:0", non_blocking=True).tolist() == [1, 1, 1]


@pytest.mark.parametrize("pinned", [False, True])
def test_only_copies_of_pinned_memory_let_the_host_go_on(sim: Any, pinned: bool) -> None:
    links = {("host", 0): sim.Link("3ms"), (0, "host"): sim.Link("4ms")}
    sim.configure(clock="virtual", links=links)
    x = torch.ones(8)
    x = x.pin_memory() if pinned else x
    sim.reset_virtual_clock()
    y = x.to("sim:0", non_blocking=True)
    assert sim.virtual_host_time() == pytest.approx(0 if pinned else 3e-3)
    x.copy_(y, non_blocking=True)
    assert sim.virtual_host_time() == pytest.approx(0 if pinned else 7e-3)
    sim.synchronize(0)
    assert sim.virtual_time() == pytest.approx(7e-3)
