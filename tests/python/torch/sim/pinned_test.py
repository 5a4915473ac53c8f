# SPDX-License-Identifier: Apache-2.0
"""Pinned host memory: there may be little of it, and only from it copies run by themselves."""

from __future__ import annotations

from typing import Any

import pytest
import torch

KIB = 1024


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


def test_a_wrong_limit_is_named(sim: Any) -> None:
    with pytest.raises(ValueError, match="pinned: '1 gig' is not bytes with their unit"):
        sim.configure(pinned="1 gig")
