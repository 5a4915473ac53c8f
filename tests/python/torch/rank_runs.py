# SPDX-License-Identifier: Apache-2.0
"""Runs a program in several processes, as torchrun would."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

PATIENCE = 240.0  # seconds, for a machine that is busy with much else


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def started(
    count: int, command: Sequence[Any], hosts: Sequence[str] = (), **more: str
) -> list[subprocess.Popen[str]]:
    """Start so many processes of a program in Python, maybe in a network namespace each."""
    path = os.pathsep.join(sys.path)
    port = str(free_port())
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(count), **more}
    return [
        subprocess.Popen(
            [*_inside(hosts, rank), sys.executable, *map(str, command)],
            env={
                **os.environ,
                **common,
                "PYTHONPATH": path,
                "OMP_NUM_THREADS": "1",
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(count)
    ]


def _inside(hosts: Sequence[str], rank: int) -> list[str]:
    return ["ip", "netns", "exec", hosts[rank]] if hosts else []


@contextlib.contextmanager
def two_hosts() -> Iterator[tuple[list[str], dict[str, str]]]:
    """Make two network namespaces with one link; yield them, and what a group over it needs."""
    name = f"baechi{os.getpid()}"
    hosts = [f"{name}-{i}" for i in range(2)]

    def ip(*words: str) -> None:
        done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"network namespaces cannot be made here: {done.stderr.strip()}")

    if shutil.which("ip") is None:
        pytest.skip("network namespaces need the command ip")
    try:
        for host in hosts:
            ip("netns", "add", host)
        link = "link", "add", "veth0", "netns", hosts[0], "type", "veth"
        ip(*link, "peer", "name", "veth0", "netns", hosts[1])
        for i, host in enumerate(hosts):
            ip("-n", host, "address", "add", f"10.93.0.{i + 1}/24", "dev", "veth0")
            for one in ("lo", "veth0"):
                ip("-n", host, "link", "set", one, "up")
        yield hosts, {"MASTER_ADDR": "10.93.0.1", "GLOO_SOCKET_IFNAME": "veth0"}
    finally:
        for host in hosts:
            subprocess.run(["ip", "netns", "delete", host], capture_output=True, check=False)


def ended(ranks: Sequence[subprocess.Popen[str]]) -> list[tuple[int, str]]:
    """Return the exit code of each process, and what it said; none is left behind."""
    try:
        said = [rank.communicate(timeout=PATIENCE)[0] for rank in ranks]
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
                rank.wait()
    return [(rank.returncode, words) for rank, words in zip(ranks, said, strict=True)]


def run(count: int, command: Sequence[Any], **more: str) -> list[str]:
    """Run to a good end; return what each process said."""
    found = ended(started(count, command, **more))
    assert all(code == 0 for code, _ in found), "\n".join(words[-3000:] for _, words in found)
    assert not any("nanobind: leaked" in words for _, words in found)
    return [words for _, words in found]
