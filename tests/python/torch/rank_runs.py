# SPDX-License-Identifier: Apache-2.0
"""Runs a program in several processes, as torchrun would."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

PATIENCE = 240.0  # seconds, for a machine that is busy with much else


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def started(count: int, command: Sequence[Any], **more: str) -> list[subprocess.Popen[str]]:
    """Start so many processes of a program in Python."""
    path = os.pathsep.join(sys.path)
    port = str(free_port())
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(count), **more}
    return [
        subprocess.Popen(
            [sys.executable, *map(str, command)],
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
    return [words for _, words in found]
