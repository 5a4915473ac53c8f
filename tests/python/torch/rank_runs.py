# SPDX-License-Identifier: Apache-2.0
"""Runs a program of several processes for a test, however slow the machine is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

_STILL = 240.0  # seconds without a line and without work: longer than any group's timeout
_MOST = 1800.0  # seconds in all


def left_by(program: ModuleType) -> Any:
    """Return a fixture, the folder where a program's processes left what they found."""

    @pytest.fixture(scope="module", name="folder")
    def folder(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Path:
        folder = tmp_path_factory.mktemp(program.__name__)
        run_processes(str(program.__file__), folder, root)
        return folder

    return folder


def run_processes(program: str, folder: Path, root: Path) -> None:
    """Run a program that leaves logs in a folder; stop it where it hangs.

    A machine may be as busy as it likes: what is waited for is a line in a log, or work done. Who
    hangs does neither.
    """
    path = os.pathsep.join([str(root), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    environment["MALLOC_MMAP_THRESHOLD_"] = "1048576"  # what is freed is no longer resident
    with (folder / "errors").open("w") as errors:
        running = subprocess.Popen(
            [sys.executable, program, str(folder)],
            env=environment,
            stdout=errors,
            stderr=errors,
            start_new_session=True,
        )
    begin = moved = time.monotonic()
    before: tuple[int, float] = 0, 0.0
    why = ""
    while running.poll() is None and not why:
        time.sleep(0.2)
        now = time.monotonic()
        seen = sum(log.stat().st_size for log in folder.glob("log*")), _worked(running.pid)
        if seen[0] != before[0] or seen[1] > before[1] + 1.0:
            before, moved = seen, now
        if now - moved > _STILL:
            why = f"no line and no work for {_STILL:.0f} s"
        elif now - begin > _MOST:
            why = f"more than {_MOST:.0f} s"
    if why:
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()
    logs = [path.read_text()[-2000:] for path in sorted(folder.glob("log*"))]
    said = "\n".join([why, (folder / "errors").read_text()[-2000:], *logs])
    assert running.returncode == 0, said


def _worked(group: int) -> float:
    """Return the seconds that the processes of a session have computed so far."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        if int(fields[3]) == group:  # the session
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
