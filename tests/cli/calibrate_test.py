# SPDX-License-Identifier: Apache-2.0
"""calibrate hands over to Python, and says what is missing there."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest


@pytest.fixture
def alone(command: str, tmp_path: Path) -> Path:
    """The command in a folder of its own, without a Python beside it."""
    path = tmp_path / "baechi"
    path.write_bytes(Path(command).read_bytes())
    path.chmod(0o755)
    return path


def test_without_python_calibrate_says_so(alone: Path) -> None:
    found = subprocess.run(
        [alone, "calibrate", "--torch"],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": str(alone.parent / "nothing")},
    )
    assert found.returncode == 2
    assert found.stderr.startswith("baechi: calibrate: it needs Python with the package baechi")
    assert found.stdout == ""


def test_the_python_beside_the_command_gets_the_arguments_and_gives_the_exit_code(
    alone: Path,
) -> None:
    python = alone.with_name("python3")
    python.write_text('#!/bin/sh\nshift 2\necho "$@"\nexit 7\n')
    python.chmod(0o755)
    words = ["-o", "out.json", "--torch", "--devices", "a b,c", "--json"]
    found = subprocess.run([alone, "calibrate", *words], capture_output=True, text=True)
    assert found.returncode == 7
    assert found.stdout == "--torch --devices=a b,c --output=out.json\n"


def test_a_python_without_the_package_is_named(alone: Path) -> None:
    python = alone.with_name("python3")
    python.write_text('#!/bin/sh\nexec /usr/bin/env PYTHONPATH= python3 -S -I "$@"\n')
    python.chmod(0o755)
    found = subprocess.run([alone, "calibrate", "--torch"], capture_output=True, text=True)
    assert found.returncode == 2
    assert "needs the Python package baechi (pip install baechi[torch])" in found.stderr
