# SPDX-License-Identifier: Apache-2.0
"""The cluster that the processes of a group are: their devices, and the links that are measured."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import distributed

from baechi._core import Cluster, InputError
from baechi.progress import stage, warn
from baechi.torch.base.devices import free_memory
from baechi.torch.ranks.processes import Processes

_SMALL, _LARGE = 4, 4 << 20  # bytes of a message
_TIMES = {_SMALL: 20, _LARGE: 4}  # that it goes there and back, besides once that does not count
_ALL_PAIRS = 8  # with more ranks, pairs of the same two hosts are taken for alike
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


class _Found(NamedTuple):
    """What one process has."""

    host: str
    device: str
    is_host: bool  # its device is the CPU
    memory: int  # that is free, also for others on the same device


class _Link(NamedTuple):
    """One way between two ranks."""

    latency: int  # nanoseconds
    bandwidth: int  # bytes per second


def free_on_host() -> int:
    """Return the bytes that this host has left for processes, within the limit of its container."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in _LIMITS:
        try:
            free = min(free, int(Path(limit).read_text()))
        except (OSError, ValueError):  # "max"
            continue
    return free


@stage("measuring links between ranks")
def cluster_over(processes: Processes) -> Cluster:
    """Return the cluster of all processes, the same one on each; links are measured once."""
    device = processes.device
    is_host = device.type == "cpu"
    memory = free_on_host() if is_host else free_memory(device, [])
    mine = _Found(socket.gethostname(), str(device), is_host, memory)
    found: list[_Found] = processes.all_gathered(mine)
    if processes.links is None:
        processes.links = _links(processes, [each.host for each in found[: processes.count]])
    text = json.dumps(_described(found, processes.links, processes.count))
    return Cluster.from_json(processes.from_first(text))


def _described(
    found: list[_Found], links: dict[tuple[int, int], _Link], count: int
) -> dict[str, Any]:
    """Return the cluster as its file has it; of several replicas what each of them has."""
    counts: dict[str, int] = {}
    devices = []
    shares = _shares(found)
    for rank, each in enumerate(found[:count]):
        kind = "cpu" if each.is_host else "gpu"
        if odd := next((o for o in found[rank::count] if o.is_host != each.is_host), None):
            raise InputError(
                f"replicas are alike, and device {rank} is {each.device} of {each.host} in the "
                f"first and {odd.device} of {odd.host} in another: name devices= for each"
            )
        number = counts[kind] = counts.get(kind, -1) + 1
        devices.append(
            {
                "name": f"{kind}:{number}",
                "kind": kind,
                "capacity": f"{min(shares[rank::count])}B",
                "host": each.host,
            }
        )
    rules = []
    for (a, b), link in links.items():
        rule: dict[str, Any] = {
            "scope": "pair",
            "from": devices[a]["name"],
            "to": devices[b]["name"],
            "latency": f"{link.latency}ns",
            "bandwidth": f"{link.bandwidth}B/s",
        }
        if found[a].host != found[b].host:
            rule["channels"] = ["out of {from_host}", "into {to_host}"]
        rules.append(rule)
    known = {"format": "baechi-cluster", "version": 1, "name": f"{count} ranks"}
    return {**known, "communication": "duplex", "devices": devices, "links": rules}


def _shares(found: list[_Found]) -> list[int]:
    """Return the bytes of each process: its part of what those on the same device have."""
    shares = []
    for rank, each in enumerate(found):
        sharing = [r for r, o in enumerate(found) if (o.host, o.device) == (each.host, each.device)]
        free = min(found[r].memory for r in sharing)
        shares.append(free // len(sharing))
        if len(sharing) > 1 and rank == sharing[0]:
            warn(
                f"{each.device} of {each.host} is that of {len(sharing)} ranks: each has "
                f"{free // len(sharing):,} bytes, its part of the {free:,} that are free"
            )
    return shares


def _links(processes: Processes, hosts: list[str]) -> dict[tuple[int, int], _Link]:
    """Measure the links between all pairs of ranks, one after the other; all ranks call it."""
    by_hosts: dict[tuple[str, str], tuple[int, int]] = {}
    measured: dict[tuple[int, int], tuple[int, int]] = {}  # of a pair: the one that stands for it
    for a, b in _pairs(len(hosts)):
        first, second = sorted((hosts[a], hosts[b]))
        alike = by_hosts.setdefault((first, second), (a, b))
        measured[a, b] = (a, b) if len(hosts) <= _ALL_PAIRS else alike
    mine: dict[tuple[int, int], _Link] = {}
    for a, b in dict.fromkeys(measured.values()):
        if processes.rank in (a, b):
            mine[a, b] = _link(processes, a, b)
        processes.agree("measure links", {})  # one pair at a time
    known: dict[tuple[int, int], _Link] = {}
    for each in processes.all_gathered(mine):  # of both ends and all replicas the slowest
        for pair, link in each.items():
            other = known.get(pair, link)
            slower = max(link.latency, other.latency), min(link.bandwidth, other.bandwidth)
            known[pair] = _Link(*slower)
    return {pair: known[stands] for pair, stands in measured.items()}


def _pairs(count: int) -> Iterator[tuple[int, int]]:
    return ((a, b) for a in range(count) for b in range(a + 1, count))


def _link(processes: Processes, a: int, b: int) -> _Link:
    """Measure what a message takes, from memory of one device to that of the other."""
    other = b if processes.rank == a else a
    seconds = {}
    for size, times in _TIMES.items():
        there = torch.zeros(size, dtype=torch.uint8, device=processes.device)
        trips = []
        for _ in range(times + 1):
            begin = time.perf_counter()
            for leaves in (processes.rank == a, processes.rank == b):
                _travel(processes, there, other, leaves=leaves)
            trips.append(time.perf_counter() - begin)
        seconds[size] = min(trips[1:]) / 2
    latency = max(1, round(seconds[_SMALL] * 1e9))
    beyond = max(seconds[_LARGE] - seconds[_SMALL], 1e-9)
    return _Link(latency, max(1, round((_LARGE - _SMALL) / beyond)))


def _travel(processes: Processes, there: torch.Tensor, other: int, *, leaves: bool) -> None:
    """Send or receive as steps do: through the host where tensors cannot go directly."""
    mine = processes.rank
    source, target = (mine, other) if leaves else (other, mine)
    group, number = processes.group_of(source, target), processes.number_of(other)
    if leaves:
        sent = there if processes.is_direct else there.to("cpu")
        wait: Callable[[], Any] = distributed.isend(sent, number, group=group).wait
        processes.waited(wait, "a measurement", other)
        return
    buffer = there if processes.is_direct else torch.empty_like(there, device="cpu")
    wait = distributed.irecv(buffer, number, group=group).wait
    processes.waited(wait, "a measurement", other)
    there.copy_(buffer)
    if there.device.type != "cpu":
        torch.accelerator.synchronize(there.device)
