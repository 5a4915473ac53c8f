# SPDX-License-Identifier: Apache-2.0
"""The command as the wheel installs it."""

from __future__ import annotations

from pathlib import Path

import baechi
from tests.conftest import Run


def test_version_is_the_package_version(run: Run) -> None:
    result = run("--version")
    assert (result.returncode, result.stdout.strip()) == (0, baechi.__version__)


def test_command_is_the_binary_itself_and_starts_no_python(command: str) -> None:
    assert Path(command).read_bytes()[:4] == b"\x7fELF"


def test_help_goes_to_stdout(run: Run) -> None:
    result = run("--help")
    assert result.returncode == 0
    assert "Usage" in result.stdout or "baechi [" in result.stdout
    assert result.stderr == ""
