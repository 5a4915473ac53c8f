# SPDX-License-Identifier: Apache-2.0
"""The command as the wheel installs it."""

from __future__ import annotations

from pathlib import Path

import pytest

import baechi
from tests.conftest import Run


def test_version_is_the_package_version(run: Run) -> None:
    result = run("--version")
    assert result.stdout.strip() == baechi.__version__


def test_command_is_the_binary_itself_and_starts_no_python(command: str) -> None:
    assert Path(command).read_bytes()[:4] == b"\x7fELF"


def test_help_goes_to_stdout(run: Run) -> None:
    result = run("--help")
    assert "Usage" in result.stdout or "baechi [" in result.stdout
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["place", "g.json"], "--cluster is required: the devices, such as --cluster 2x24GiB"),
        (["verify", "g.json"], "plan is required: a file, which `baechi place GRAPH"),
        (["min", "g.json", "-c", "2x8GiB", "--of", "time"], "expected one of devices, memory or"),
        (["info", "g.json", "--cluster"], "--cluster needs a value, CLUSTER"),
        (["report", "g.json", "a", "b", "c", "-o", "x"], "plan: at most 2, found 3"),
        (["score", "g.json", "p.json"], "score is no longer there: `baechi simulate` says what"),
        (
            ["completion", "bash"],
            "completion is no longer there: nothing replaces it; `baechi help",
        ),
        (["sweep", "g.json", "--report", "x"], "--report is no longer there: the CSV that it prin"),
        (["export", "g.json", "p.json"], "--to is required: the format, such as --to device-map"),
        (["plaec", "g.json"], "there is no subcommand 'plaec'; did you mean 'place'?"),
        (["--foo"], "there is no option '--foo' without a subcommand"),
        (["generate", "gnmt", "--batch", "0"], "--batch: expected a whole number from 1 to "),
    ],
)
def test_what_is_wrong_or_missing_is_named_with_the_way_out(
    run: Run, arguments: list[str], said: str
) -> None:
    run(*arguments, code=2, says=said)
