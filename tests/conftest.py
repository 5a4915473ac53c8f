# SPDX-License-Identifier: Apache-2.0
"""Fixtures for the tests of the command, the Python package and the tools."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]

# What a shell starts in the background ignores Ctrl-C, and what it starts inherits that: tests that
# press it would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def root() -> Path:
    """The root folder of the project."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def data(root: Path) -> Path:
    """The folder tests/data."""
    return root / "tests" / "data"


@pytest.fixture(scope="session")
def command() -> str:
    """The installed command: $BAECHI_COMMAND, or the one beside this Python, or on the PATH."""
    beside = Path(sys.executable).parent / "baechi"
    found = os.environ.get("BAECHI_COMMAND") or (beside if beside.exists() else None)
    found = found or shutil.which("baechi")
    assert found, "the baechi command is not installed: ./do setup"
    return str(found)


@pytest.fixture(scope="session")
def run(command: str) -> Run:
    """Run ``baechi ARGUMENTS...`` and check its exit code; None: whatever it is.

    What it ``says`` is all on one line. The result has returncode, stdout and stderr as text.
    """

    def run_baechi(
        *arguments: str | Path,
        stdin: str | None = None,
        timeout: float = 60,
        code: int | None = 0,
        says: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [command, *map(str, arguments)],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        assert code in (None, done.returncode), done.stderr
        if says is not None:
            assert says in done.stderr
            assert done.stderr.count("\n") == 1
        return done

    return run_baechi
